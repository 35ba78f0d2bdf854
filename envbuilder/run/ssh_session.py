"""Open SSH sessions in a SIF on a cluster, for VS Code's Remote-SSH and Jupyter: without Docker, ports or root there.

The user's ordinary SSH connection starts a second sshd on the cluster, as the user, and carries its
traffic. With `srun`, that sshd is a Slurm job. Each of its sessions runs a command in the SIF. Both
ends have keys of their own.
"""

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from envbuilder.artifacts.outputs import Outputs
from envbuilder.core.cache import need_same, save_text
from envbuilder.core.errors import CommandError, LaunchError, UsageError, blaming_path
from envbuilder.core.models import Shape
from envbuilder.core.plain import one_line, pasted
from envbuilder.core.process import Command, ProcessRunner, Runner
from envbuilder.run.container import START_FILE
from envbuilder.run.launch.script import compose, quoted, quoted_list, render_enter
from envbuilder.run.launch.site import HOST, Site, find_site, need_shape

BODY: Final = Path(__file__).with_suffix(".sh")
SETTINGS: Final = Path("~/.ssh/envbuilder")  # the usual folder of settings and keys
SECRET: Final = 0o600
# It becomes part of programs on the other machine, and of a path that `sshd` reads.
_NAME: Final = Shape(
    pattern=r"[A-Za-z0-9][A-Za-z0-9._@+-]*",
    expected="an environment whose name has letters, digits, `.`, `_`, `-`, `+` and `@`",
    hint="rename the SIF",
)
_USER: Final = r"[A-Za-z0-9_][A-Za-z0-9_.@+\\-]*\$?"
_HOST_KEY: Final = r"[a-z0-9@.-]+ [A-Za-z0-9+/]+=*( [^\x00-\x1f\x7f]*)?"  # as in a `.pub` file
SERVE: Final = ".envbuilder/ssh/{name}/serve"  # below the home on the cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class SshSession:
    """The connection to an environment on another machine."""

    name: str
    sif: Path  # on that machine
    host: str  # a name in ssh's settings, or user@host; "": this machine, from which Slurm starts the job
    site: Site
    folder: Path  # on this machine, for settings and keys
    srun: tuple[str, ...] | None = None  # options of srun; None: no Slurm job

    @property
    def label(self) -> str:
        return self.name if self.srun is None else f"{self.name}-slurm"

    @property
    def alias(self) -> str:
        return f"envbuilder-{self.label}"

    def how_to_use(self, config: Path) -> str:
        """Return what connects, from a shell and from VS Code; `config` is the file of the settings."""
        return (
            f"{config}: `{pasted('ssh', '-F', config, self.alias)}`; with `Include {config}` "
            f"as the first line of ~/.ssh/config VS Code knows `{self.alias}`, too"
        )

    def path(self, kind: str) -> Path:
        return self.folder / f"{self.label}.{kind}"

    @property
    def ssh(self) -> tuple[str, ...]:
        return ("ssh", *self.site.ssh.options, "--", self.host) if self.host else ()

    @property
    def through(self) -> tuple[str, ...]:
        """Return the command that starts the second sshd. On another machine its path is relative to the home."""
        # Without `--unbuffered` srun passes on whole lines, and SSH's traffic has none.
        options = ("--ntasks=1", "--unbuffered", f"--job-name={self.alias}")
        job = () if self.srun is None else ("srun", *options, *self.srun)
        serve = SERVE.format(name=self.name)
        if not self.host:
            # Jupyter kills a kernel's whole process group, and a killed srun leaves its job until the time limit.
            return ("setsid", *job, str(Path.home() / serve))
        return (*self.ssh, shlex.join((*job, serve)))


def parse_srun(text: str) -> tuple[str, ...] | None:
    """Return the options of srun, None for no job; raises UsageError for a word that is no option."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"`--srun` has an open quote: {text}") from error
    if wrong := next((word for word in words if not word.startswith("-")), ""):
        raise UsageError(
            f"`--srun` takes options of srun, found `{wrong}`",
            hint="write an option and its value as one word: `--gpus=1`",
        )
    return words or None


def open_remote(
    outputs: Outputs,
    environment: Mapping[str, str],
    *,
    host: str,
    srun: str,
    profile: str,
    folder: Path | None,
    force: bool,
) -> tuple[SshSession, Path]:
    """Set up sessions in the SIF at the same path on that host, and return them with the file of their settings."""
    session = SshSession(
        name=outputs.name, sif=outputs.sif.absolute(), host=host, site=find_site(profile), srun=parse_srun(srun),
        folder=(folder or SETTINGS.expanduser()).absolute(),
    )  # fmt: skip
    return session, set_up_session(session, ProcessRunner(environment, whole=True), force=force)


def set_up_session(session: SshSession, runner: Runner, *, force: bool) -> Path:
    """Set up the other machine, write the settings of this one, and return their file.

    Raises UsageError when that file has other content, and LaunchError when the set-up fails.
    """
    need_shape("--ssh", (session.name,), _NAME)
    need_shape("--ssh", filter(None, (session.host,)), HOST)
    config = session.path("config")
    public = ensure_key(session.folder / f"{session.name}.key")
    try:
        argv, why = (*session.ssh, "bash", "-s"), f"set up sessions on {session.host or 'this machine'}"
        answer = runner.run(Command(argv=argv, why=why, input=render_setup(session, public).encode()))
    except CommandError as error:
        hint = f"`ssh {pasted(session.host)}` must work first" if session.host else ""
        raise LaunchError(error.message, hint=hint) from error
    user, host_key = ["", "", *answer.splitlines()][-2:]
    if not re.fullmatch(_USER, user) or not re.fullmatch(_HOST_KEY, host_key):
        raise LaunchError(f"`{session.host or 'bash'}` did not print its user and host key")
    text = render_config(session, user)
    need_same(config, text, force=force)
    save_text(session.path("known_hosts"), f"{session.alias} {host_key}\n")
    save_text(config, text)
    return config


def render_setup(session: SshSession, public: str) -> str:
    settings = {
        "name": quoted(session.name),
        "sif": quoted(str(session.sif)),
        "client": quoted(public),
        "modules": quoted_list(session.site.modules),
        "enter": shlex.quote(render_enter(session.name, session.sif, session.site)),
        "start_file": shlex.quote(START_FILE.read_text(encoding="utf-8")),
    }
    return compose((), settings, (BODY,))


def render_config(session: SshSession, user: str) -> str:
    return f"""\
# Sessions in {one_line(str(session.sif))} on {session.host or "this cluster"}, written by envbuilder.
Host {session.alias}
  User {user}
  ProxyCommand {_literal(shlex.join(session.through))}
  HostKeyAlias {session.alias}
  UserKnownHostsFile {_path(session.path("known_hosts"))}
  StrictHostKeyChecking yes
  IdentityFile {_path(session.folder / f"{session.name}.key")}
  IdentitiesOnly yes
"""


def _literal(text: str, forbidden: str = "") -> str:
    """Return a text of one line with the `%` of tokens escaped, which `ssh` would expand."""
    return one_line(text, forbidden=forbidden).replace("%", "%%")


def _path(path: Path) -> str:
    """Quote a path. `ssh` has no escape for a quote in it."""
    return f'"{_literal(str(path), forbidden=chr(34))}"'


def ensure_key(path: Path) -> str:
    """Return the public key of the private key in that file. Makes the pair when there is none."""
    half = path.with_name(f"{path.name}.pub")
    with blaming_path(f"cannot keep a key in `{path}`"):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists() and half.exists():
            return half.read_text(encoding="utf-8").strip()
        made = Ed25519PrivateKey.generate()
        text = made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        public = made.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, SECRET), "wb") as stream:
            stream.write(text)
        save_text(half, f"{public}\n")
    return public
