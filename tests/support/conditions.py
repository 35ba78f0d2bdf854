"""Vary what machines and users differ in from build to build: names, user, clock, cores, order of files.

A build starts in namespaces of its own, so nothing of the machine changes. As a program it is the inside of one: it
sets up what `Conditions` says and becomes the command.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.support.stranger import enter_checkout

USER: Final = 20001  # a user id that no machine uses; only the namespace knows it, with ids of its own to map


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The conditions of one build. `cores` of 0 are all, `shuffle` gives folders another order, `days` moves the clock."""

    name: str
    folder: str  # below the bench's own, for the artifacts and the cache
    zone: str = "UTC"
    language: str = "C.UTF-8"
    umask: int = 0o022
    user: int = 0
    host: str = ""
    cores: int = 0
    shuffle: bool = False
    days: int = 0

    def command(self, *argv: object, place: Path) -> tuple[str, ...]:
        """The command line that runs another one in these conditions; `place` is its folder, which is shuffled."""
        facts = json.dumps(asdict(self) | {"place": str(place)})
        inside = (sys.executable, __file__, facts, *argv)
        # The end of the namespace's first process also ends all others, the shuffling file system too.
        alone = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
        outer = enter_checkout() if self.user else ()
        return tuple(map(str, (*outer, *alone, *inside)))

    @property
    def shown(self) -> str:
        user = "root" if self.user == 0 else f"user {self.user}"
        order = ", shuffled folders" if self.shuffle else ""
        cores = f"{self.cores} core{'s' if self.cores > 1 else ''}" if self.cores else "all cores"
        host = self.host or socket.gethostname()
        clock = f", clock {self.days:+} days" if self.days else ""
        return f"{user}, {self.zone}, {self.language}, umask {self.umask:03o}, host {host}, {cores}{clock}{order}"


FIVE: Final = (
    Conditions(name="as it is", folder="plain"),
    Conditions(
        name="elsewhere", folder="far/away/from/home", zone="Pacific/Kiritimati", language="tr_TR.UTF-8",
        umask=0o077, host="elsewhere.example", cores=1, days=4000,
    ),
    Conditions(
        name="a user", folder="user", zone="America/St_Johns", language="C", umask=0o027, user=USER, host="laptop",
        days=-3000,
    ),
    Conditions(
        name="another order", folder="shuffled", zone="Asia/Kathmandu", language="POSIX", umask=0o002,
        host="n0001", cores=1, shuffle=True,
    ),
    Conditions(
        name="a user elsewhere", folder="a folder, mit Ümläuten", zone="Europe/London", language="ja_JP.UTF-8",
        umask=0o022, user=USER, host="x", cores=1, days=400,
    ),
)  # fmt: skip


def missing_tools() -> tuple[str, ...]:
    """Return the missing Debian packages without which a condition would silently have no effect."""
    return tuple(program for program in ("disorderfs", "gcc") if not shutil.which(program))


def _cover(path: str, text: str) -> None:
    """Give a file of /etc another content in this namespace alone."""
    with tempfile.NamedTemporaryFile("w", dir="/run") as stream:
        stream.write(text)
        stream.flush()
        os.fchmod(stream.fileno(), 0o644)
        subprocess.run(["mount", "--bind", stream.name, path], check=True)


# What a build starts in a sandbox sees neither the machine's files nor its settings: there it comes with the command.
SANDBOX: Final = """\
#!/usr/bin/python3 -IS
import os, sys
at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
clock = ["--ro-bind", "{tools}/clock.so", "/dev/clock.so", "--setenv", "LD_PRELOAD", "/dev/clock.so"]
os.execv("{tools}/bwrap", ["bwrap", *sys.argv[1:at], *(clock if at < len(sys.argv) else []), *sys.argv[at:]])
"""


def _move_clock(days: int) -> None:
    """Tell every program of this namespace another time of day, those in sandboxes too; not those in a `chroot`."""
    tools = Path("/run/envbuilder-clock")
    tools.mkdir(exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "mode=0755", "none", tools], check=True
    )  # ends with the namespace
    source = Path(__file__).with_name("clock.c")
    shift = f"-DSHIFT={days * 86400}L"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", shift, "-o", tools / "clock.so", source], check=True)
    real = shutil.which("bwrap") or ""
    shutil.copy(real, tools / "bwrap")
    (tools / "sandbox").write_text(SANDBOX.format(tools=tools))
    (tools / "sandbox").chmod(0o755)
    subprocess.run(["mount", "--bind", tools / "sandbox", real], check=True)
    Path("/etc/ld.so.preload").touch()  # to mount on; on the machine it means the same as no file
    _cover("/etc/ld.so.preload", f"{tools}/clock.so\n")


def become(facts: dict[str, object], argv: list[str]) -> None:
    """Set up the conditions and run the command. Returns only by an exception."""
    place = str(facts.pop("place"))
    want = Conditions(**facts)  # type: ignore[arg-type]
    if want.host:
        socket.sethostname(want.host)
    if want.user:
        home = tempfile.mkdtemp(prefix="home-", dir=place)
        os.chown(home, want.user, want.user)
        _cover("/etc/passwd", f"{_text('/etc/passwd')}tester:x:{want.user}:{want.user}::{home}:/bin/sh\n")
        _cover("/etc/group", f"{_text('/etc/group')}tester:x:{want.user}:\n")
        os.environ |= {"HOME": home, "USER": "tester", "LOGNAME": "tester"}
        os.environ.pop("XDG_RUNTIME_DIR", None)
    if want.shuffle:
        options = [
            "--shuffle-dirents=yes", "--multi-user=yes", "--share-locks=no", "--quiet", "-o", "nonempty",
        ]  # fmt: skip
        source = f"{place}.source"  # bind the folder to another name, because under its own name the file system would see itself
        Path(source).mkdir()
        subprocess.run(["mount", "--bind", place, source], check=True)
        subprocess.run(["disorderfs", *options, source, place], check=True)
    if want.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: want.cores])
    os.environ |= {"TZ": want.zone, "LANG": want.language, "LC_ALL": want.language}
    os.umask(want.umask)
    if want.days:
        _move_clock(want.days)
    if want.user:
        os.setgroups([])
        os.setgid(want.user)
        os.setuid(want.user)
    os.execvp(argv[0], argv)


def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


if __name__ == "__main__":
    become(json.loads(sys.argv[1]), sys.argv[2:])
