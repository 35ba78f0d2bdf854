"""Run a command in the SIF by Apptainer, or in the image by a Docker engine.

Both get few options: GPUs where there are any, the project's folder and a site's scratch at their
own paths. What would bring another Python into the environment is kept out: packages of `~/.local`,
variables such as PYTHONHOME, and the user's shell start files. `APPTAINERENV_NAME` and `--env NAME`
pass a variable on purpose.
"""

import pwd
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from envbuilder.core.errors import CommandError, ToolError
from envbuilder.core.process import Command, Completed, ProcessRunner, why_not_started
from envbuilder.core.system import account_hint, install_command, install_hint, user_ids
from envbuilder.core.text.redact import plain
from envbuilder.plan.contents import START
from envbuilder.plan.shell import left_out, matches
from envbuilder.runners.enter_sandbox import other_id

if TYPE_CHECKING:
    from envbuilder.artifacts.docker_engine import ContainerOptions, DockerEngine

GPU_DEVICE: Final = Path("/dev/nvidiactl")  # exists while the driver is loaded
FIXED_ENV: Final = {"PYTHONNOUSERSITE": "1", "SHELL": "/bin/bash"}  # the image may lack the user's own shell
TEMPORARY: Final = "/tmp"  # noqa: S108 - in a container
_NEEDED: Final = ("PATH", "HOME", "TMPDIR")  # by Apptainer
_ALONE_ENV: Final = FIXED_ENV | {"HOME": TEMPORARY}
FOREIGN_PACKAGES: Final = ("site-packages", "dist-packages")
# Shells read this file in place of these, which may start conda or pyenv, and of Debian's /etc/profile, which resets PATH.
START_FILE: Final = Path(__file__).with_name("start_file.sh")
START_FILES: Final = (".bashrc", ".bash_profile", ".bash_login", ".profile")

# Folders of the image: a bind mount there would hide the environment.
IMAGE_TREES: Final = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/opt/env", "/opt/envbuilder", "/proc", "/run", "/sbin", "/sys", "/usr",
)  # fmt: skip
IMAGE_FOLDERS: Final = ("/", "/home", "/media", "/mnt", "/opt", "/root", "/srv", "/tmp", "/var", "/var/tmp")  # noqa: S108
SHARED_BY_APPTAINER: Final = ("/tmp", "/var/tmp")  # noqa: S108 - by default, Apptainer mounts the host's
# In a container, /etc/passwd has no entry for the user.
PASSED_TO_IMAGE: Final = ("USER", "LOGNAME", "TERM", "TMPDIR")
SHELL: Final = ("/bin/bash",)
# Of Apptainer where the kernel or a container forbids it, or the user has no account.
_REFUSED: Final = re.compile(r"[Ff]ailed to create \w+ namespace[^\n]*|Couldn't determine user account[^\n]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The folders, GPUs and variables of this machine that a container gets."""

    folder: Path  # where the command starts
    binds: tuple[str, ...] = ()  # PATH[:PATH[:OPTIONS]], as both runtimes take them
    gpu: bool = False
    user: str = ""  # UID:GID, for a container of an image
    names: tuple[tuple[str, str], ...] = ()  # variables for Docker, which passes none on by itself
    # To the variables that Apptainer passes on; None: left out.
    changes: tuple[tuple[str, str | None], ...] = ()
    # Of `names`: this process has them, so no value stands in the list of processes.
    inherited: tuple[str, ...] = ()
    start_files: tuple[str, ...] = ()  # of the user's shells, in the home that Apptainer mounts
    # For code that is not trusted yet: it gets no network, folder, variable or right of the user. It may write this folder, as /tmp.
    alone: Path | None = None


def probe_surroundings(
    folder: Path,
    *,
    environment: Mapping[str, str],
    ids: tuple[int, int],
    binds: Sequence[str] = (),
    given: Mapping[str, str] = MappingProxyType({}),
    named: Sequence[str] = (),
) -> Surroundings:
    """Find the GPUs, the project around `folder`, and the user's temporary folder and start files.

    `given` are variables that the user passes on purpose; those of `named` are passed with the value that they have here.
    """
    project = project_folder(folder)
    wanted = [str(project), environment.get("TMPDIR", "")]
    folders = [path for path in wanted if path and want_bind(PurePosixPath(path)) and Path(path).is_dir()]
    names = [("HOME", TEMPORARY)] if ids[0] else []  # Docker's default is `/`, which only root can write
    names += [(name, environment[name]) for name in PASSED_TO_IMAGE if name in environment]
    inherited = tuple(name for name in named if name not in given)
    names += [(name, environment[name]) for name in inherited]
    changes = dict(keep_out(environment, project))
    if changes.get("PYTHONPATH"):
        names.append(("PYTHONPATH", str(changes["PYTHONPATH"])))
    # In a SIF, HOME is the account's, whatever it is here.
    homes = dict.fromkeys(filter(None, (environment.get("HOME"), home_of(ids[0]))))
    starts = [Path(home, name) for home in homes for name in START_FILES]
    return Surroundings(
        folder=folder,
        binds=tuple(dict.fromkeys([*folders, *binds])),
        gpu=GPU_DEVICE.exists(),
        user=":".join(map(str, ids)),
        names=(*names, *given.items()),
        changes=(*changes.items(), *((f"APPTAINERENV_{name}", value) for name, value in given.items())),
        inherited=inherited,
        start_files=tuple(str(path) for path in starts if path.is_file()),
    )


def probe_alone(folder: Path) -> Surroundings:
    """Return surroundings with this machine's GPUs and the empty `folder`, and nothing of its user.

    For root, programs run as an id that nobody has.
    """
    to = other_id()
    ids = user_ids() if to is None else (to, to)
    user, gpu = ":".join(map(str, ids)), GPU_DEVICE.exists()
    return Surroundings(folder=Path(TEMPORARY), alone=folder, gpu=gpu, user=user)


def keep_out(environment: Mapping[str, str], project: Path) -> Iterator[tuple[str, str | None]]:
    """Yield the variables that would bring another Python, with None. Of PYTHONPATH, the project's own folders stay."""
    if environment.get("ENVBUILDER_SHELL") == "off":
        return
    patterns = left_out()
    for name in environment:
        if matches(name, patterns):
            yield name, None
    if "PYTHONPATH" in environment:
        entries = environment["PYTHONPATH"].split(":")
        home = environment.get("HOME")
        kept = [entry for entry in entries if entry and _is_of_project(PurePosixPath(entry), project, home)]
        if kept != entries:
            yield "PYTHONPATH", ":".join(kept) or None


def _is_of_project(entry: PurePosixPath, project: Path, home: str | None) -> bool:
    if set(entry.parts) & set(FOREIGN_PACKAGES):
        return False
    return not entry.is_absolute() or (str(project) != home and entry.is_relative_to(project))


def project_folder(folder: Path) -> Path:
    """Return the checkout that holds `folder`, so that `../data` works inside, or the folder itself."""
    return next((path for path in (folder, *folder.parents) if (path / ".git").exists()), folder)


def want_bind(folder: PurePosixPath) -> bool:
    """Return whether a mount there hides nothing of the image."""
    inside_image = any(folder.is_relative_to(tree) for tree in IMAGE_TREES)
    return folder.is_absolute() and str(folder) not in IMAGE_FOLDERS and not inside_image


# ---- SIF


def sif_options(around: Surroundings) -> list[str]:
    """Return the options of `apptainer exec`. By default, Apptainer shares the host's IPC and /dev/shm."""
    options = ["--nv"] if around.gpu else []
    if around.alone:
        options += [
            "--containall", "--no-home", "--workdir", str(around.alone), "--pwd", TEMPORARY, "--net", "--network", "none",
        ]  # fmt: skip
        uid, _, gid = around.user.partition(":")
        options += ["--no-privs", "--security", f"uid:{uid},gid:{gid}"] if user_ids()[0] == 0 else []
    else:
        binds = [bind for bind in around.binds if not _shared(bind)]
        # After the other mounts, which may hold the home.
        binds += [f"{START_FILE}:{path}:ro" for path in ("/etc/profile", *around.start_files)]
        options += _each("--bind", binds)
    fixed = _ALONE_ENV if around.alone else FIXED_ENV
    return options + _each("--env", (f"{name}={value}" for name, value in fixed.items()))


def _each(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _shared(bind: str) -> bool:
    return ":" not in bind and any(PurePosixPath(bind).is_relative_to(tree) for tree in SHARED_BY_APPTAINER)


def run_in_sif(
    sif: Path, argv: Sequence[str], around: Surroundings, environment: Mapping[str, str] | None = None
) -> Completed:
    """Run a command and return its output; raises ToolError when Apptainer is not installed, or may start no container."""
    from spython.main import Client  # noqa: PLC0415 - commands that only print a command line do without it

    passed = None
    if environment is not None:
        changed = dict(environment) | dict(around.changes)
        # Apptainer would pass on `APPTAINERENV_NAME`, and programs in the container may read what Apptainer itself has.
        names = _NEEDED if around.alone else tuple(changed)
        passed = {name: value for name in names if (value := changed.get(name)) is not None}
    if around.alone:  # Apptainer takes no other HOME than the account's, which for such an id is root's
        argv = ("env", f"HOME={TEMPORARY}", *argv)
    try:
        result = Client.execute(
            str(sif), list(argv), options=sif_options(around), return_result=True, quiet=True, environ=passed
        )
    except (FileNotFoundError, PermissionError) as error:
        raise ToolError(f"Apptainer {why_not_started(error)}", hint=install_hint("apptainer")) from error
    message = result["message"]
    output = "".join(message) if isinstance(message, list) else str(message)
    if result["return_code"] and (refused := _REFUSED.search(output)):
        raise ToolError(
            f"Apptainer may start no container here: {refused[0]}",
            hint="`envbuilder doctor --for run` says why",
        )
    return Completed(code=result["return_code"], output=output)


def sif_argv(sif: Path, argv: Sequence[str], around: Surroundings) -> tuple[str, ...]:
    """Return the command line of `exec`, a shell without a command.

    spython cannot run these: it starts Apptainer as a child without the user's terminal and signals.
    The nodes that run the scripts of `launch`, `module` and `ssh` do not have spython either.
    """
    words = _each("-u", (name for name, value in around.changes if value is None))
    words += [f"{name}={value}" for name, value in around.changes if value is not None]
    changed = ("env", *words) if around.changes else ()
    # Apptainer ends with 255 for a program that is not there; env ends with 127, as a shell and Docker do.
    program = ("env", *argv) if argv else ()
    return (*changed, "apptainer", "exec" if argv else "shell", *sif_options(around), str(sif), *program)


# ---- image


def image_options(around: Surroundings) -> "ContainerOptions":
    """Return the options of a container of an image."""
    common: ContainerOptions = {
        "entrypoint": START,  # without the recipe's `run`
        "user": around.user,
        "working_dir": str(around.folder),
        "device_requests": [{"count": -1, "capabilities": [["gpu"]]}] if around.gpu else None,
        "init": True,  # without it, the command is process 1, which ignores signals such as TERM
    }
    if around.alone:
        return common | {
            "volumes": [],
            "environment": dict(_ALONE_ENV),
            "ipc_mode": "private",
            "network_mode": "none",
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
        }
    shared = [f"{bind}:{bind}" if ":" not in bind else bind for bind in around.binds]
    # Ranks share memory, and Docker's default /dev/shm of 64 MB is too small for data loaders.
    return common | {"volumes": shared, "environment": FIXED_ENV | dict(around.names), "ipc_mode": "host"}


def image_argv(image: str, argv: Sequence[str], around: Surroundings, *, terminal: bool) -> tuple[str, ...]:
    """Return the command line of `docker run` with the same options as `image_options`."""
    options = image_options(around)
    # The default context is the engine of the Docker SDK, which knows no contexts.
    words = ["docker", "--context=default", "run", "--rm", "--pull=never", "--init", "--interactive"]
    words += ["--tty"] if terminal else []
    words += [f"--entrypoint={options['entrypoint']}", f"--user={options['user']}", "--ipc=host"]
    words += ["--gpus=all"] if around.gpu else []
    words += [f"--volume={volume}" for volume in options["volumes"]]
    words += [f"--workdir={options['working_dir']}"]
    words += [
        f"--env={name}" if name in around.inherited else f"--env={name}={value}"
        for name, value in options["environment"].items()
    ]
    return (*words, image, *(argv or SHELL))


def run_in_image(engine: "DockerEngine", image: str, argv: Sequence[str], around: Surroundings) -> Completed:
    return engine.run(image, argv, image_options(around))


def need_apptainer(environment: Mapping[str, str]) -> None:
    """Raise ToolError when Apptainer is missing or refuses this user: `exec` becomes Apptainer, which gives no hint."""
    if shutil.which("apptainer") is None:
        raise ToolError("`apptainer` is not installed", hint=install_hint("apptainer"))
    user = user_ids()[0]
    if not home_of(user):  # a Python of its own may not know the site's accounts, so Apptainer is asked
        try:
            ProcessRunner(environment).run(Command(argv=("apptainer", "--version"), why="start Apptainer"))
        except CommandError as error:
            raise ToolError(plain(error.message), hint=account_hint(user)) from error


def need_docker() -> None:
    """Raise ToolError when the program `docker` is missing: `exec` runs it."""
    if shutil.which("docker") is None:
        raise ToolError(
            "a Docker engine is running, but its command `docker` is not installed",
            hint=f"`{install_command('docker.io')}` or Docker's `docker-ce-cli`, or use the SIF: `--in sif`",
        )


def home_of(user: int) -> str:
    """Return the home of an account, or "" for one without."""
    try:
        return pwd.getpwuid(user).pw_dir
    except KeyError:
        return ""
