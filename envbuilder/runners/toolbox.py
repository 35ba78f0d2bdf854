"""The toolbox: apt, its fetchers, gpgv, bubblewrap, proot and the keys of Debian and Ubuntu, the same on every machine.

The files are locked packages of Debian (`toolbox.json`, which `scripts/lock-toolbox` writes). They are fetched once
into the cache. Each program runs by the toolbox's own loader with the toolbox's own libraries, so this machine's
distribution and its C library do not matter.
"""

import functools
import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tarfile import TarInfo
from typing import Final

from packaging.version import Version

from envbuilder.core.cache import Sha256, Store, sha256_bytes, sha256_text
from envbuilder.core.errors import CommandError, ToolError
from envbuilder.core.plain import counted
from envbuilder.core.process import Command, Runner
from envbuilder.core.processor import PROCESSORS, X86_64, own_processor, own_title
from envbuilder.core.system import install_command
from envbuilder.runners.enter_sandbox import PLAIN, other_id
from envbuilder.runners.sandbox import sandbox
from envbuilder.sources.deb import open_members
from envbuilder.sources.fetch import Fetcher
from envbuilder.sources.http import Progress

Show = Callable[[str, int], AbstractContextManager[Progress]]
LOCK: Final = Path(__file__).with_name("toolbox.json")
PROGRAMS: Final = "usr/bin"
LIBRARIES: Final = f"usr/lib/{X86_64.gnu}"
SANDBOXES: Final = "usr/libexec"  # not with other programs: this machine's own bubblewrap may be allowed more
_METHODS: Final = "usr/lib/apt/methods"
_FOLDERS: Final = (PROGRAMS, LIBRARIES, _METHODS, "usr/share/keyrings")  # the rest is not needed
LOADER: Final = f"{LIBRARIES}/{PurePosixPath(X86_64.loader).name}"
_REAL: Final = ".elf"  # ends the name of a program that a script of its name starts
_START: Final = """\
#!/bin/sh
top=${{0%/*}}/{up}
exec "$top/{loader}" --library-path "$top/{libraries}" --argv0 "$0" "$0{real}" "$@"
"""
# apt reads them to learn what an architecture is. They are dpkg's, which is not here.
_ARCHITECTURES: Final = {
    "usr/share/dpkg/cputable": "".join(
        f"{known.debian} {known.machine} ({known.debian}|{known.machine}) 64 little\n" for known in PROCESSORS
    ),
    "usr/share/dpkg/tupletable": "# Version=1.0\nbase-gnu-linux-<cpu> <cpu>\n",
}
_OLDEST_BWRAP: Final = Version("0.4")
_FORM: Final = 2  # raised when the same packages give another folder


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolboxFile:
    """A package of the toolbox; `core.sources.Wanted` says what the keys mean."""

    name: str
    version: str
    sha256: Sha256
    size: int
    source: str
    path: str
    kind: str = "deb"


@functools.cache
def toolbox_files() -> tuple[ToolboxFile, ...]:
    """Return the locked packages of the toolbox."""
    return tuple(ToolboxFile(**row) for row in json.loads(LOCK.read_text(encoding="utf-8")))


def toolbox_folder(store: Store) -> Path:
    """Return the folder of the toolbox, which `make_toolbox` writes: a root with the programs in usr/bin."""
    return store.tools(sha256_bytes(LOCK.read_bytes() + str(_FORM).encode()))


def make_toolbox(store: Store, fetcher: Fetcher, show: Show) -> Path:
    """Return the folder of the toolbox, after its packages are fetched and unpacked if need be.

    Raises FetchError, or ToolError on a processor that is not x86-64.
    """
    if own_processor() is not X86_64:
        raise ToolError(
            f"envbuilder's own apt and sandbox are for {X86_64.title}, and this machine is {own_title()}",
            hint=f"run `envbuilder lock` on {X86_64.title}; to build here, `{install_command('bubblewrap')}`",
        )
    folder = toolbox_folder(store)
    if store.holds(folder, whole=True):
        return folder
    files = toolbox_files()
    if missing := fetcher.missing(files):
        size = sum(package.size for package in missing)
        with show(f"fetch the toolbox: {counted(len(missing), 'package')}", size) as progress:
            fetcher.fetch(files, progress)
    fetcher.fetch(files)  # those that were there are read again before they are used
    with store.lock("toolbox"), store.workspace() as work:
        if not store.holds(folder, whole=True):
            unpack_toolbox(tuple(store.artifact(package.sha256) for package in files), work / "root")
            store.commit(work / "root", folder)
    return folder


def open_sandbox(store: Store, fetcher: Fetcher, runner: Runner, show: Show) -> bool:
    """Let the runner find a `bwrap` that works here: this machine's, the toolbox's, or a stand-in that needs no namespaces.

    This machine's is first, because a distribution may allow it more than other programs (AppArmor, setuid).
    Returns whether it is the stand-in, which is proot. Raises ToolError where none works, FetchError.
    """
    if other_id() is not None:
        # Another id than root's must be able to read what is written for it. The store itself is closed.
        os.umask(0o022)
    if not _refusal(runner):
        return False
    toolbox = make_toolbox(store, fetcher, show)
    runner.use(toolbox / SANDBOXES)
    if not (refused := _refusal(runner)):
        return False
    runner.use(_plain_sandbox(store, toolbox))
    if not (also := _refusal(runner)):
        with show("build with proot, which is slower: this machine refuses namespaces", 0):
            return True
    raise ToolError(
        f"this machine lets no sandbox run, because it refuses namespaces and ptrace\n  {refused}\n  {also}",
        hint="allow one of them (`user.max_user_namespaces`, AppArmor's rule, the container's seccomp profile), "
        "or `--runner buildkit` builds in a Docker engine",
    )


def _plain_sandbox(store: Store, toolbox: Path) -> Path:
    """Return the folder of a `bwrap` that is `plain_sandbox.py`."""
    program = Path(__file__).with_name("plain_sandbox.py")
    tools = (toolbox / LOADER, toolbox / LIBRARIES, toolbox / PROGRAMS / f"proot{_REAL}")
    words = (sys.executable, "-I", program, *tools, store.root)
    text = f'#!/bin/sh\nexec {shlex.join(map(str, words))} "$@"\n'
    folder = store.tools(sha256_text(text))
    if not store.holds(folder, whole=True):
        with store.workspace() as work:
            (work / "bin").mkdir()
            (work / "bin/bwrap").write_text(text, encoding="utf-8")
            (work / "bin/bwrap").chmod(0o755)
            (work / "bin" / PLAIN).touch()
            store.commit(work / "bin", folder)
    return folder


def bwrap_version(runner: Runner) -> str:
    """Return the version of this machine's `bwrap`, "" if it is not installed, does not run or is too old."""
    try:
        output = runner.run(Command(argv=("bwrap", "--version"), why="ask `bwrap` for its version"))
    except (ToolError, CommandError):
        return ""
    version = re.search(r"\d+(?:\.\d+)+", output)
    return version[0] if version and Version(version[0]) >= _OLDEST_BWRAP else ""


def sandbox_trial() -> Command:
    """Return a command that succeeds where `bwrap` works, for root as another id."""
    options = ("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev")
    return sandbox(options, ("/bin/true",), why="try the sandbox", env=())


def _refusal(runner: Runner) -> str:
    """Return why `bwrap` does not work, "" if it does."""
    try:
        runner.run(sandbox_trial())
    except (CommandError, ToolError) as error:
        return error.message.splitlines()[-1]
    return ""


def unpack_toolbox(debs: tuple[Path, ...], root: Path) -> dict[str, Path]:
    """Write the programs, libraries and keys of packages into a new folder. Returns the package of each file, by its path."""
    owners: dict[str, Path] = {}
    for folder in (*_FOLDERS, SANDBOXES, "usr/share/dpkg"):
        (root / folder).mkdir(parents=True)
    for deb in debs:
        with open_members(deb) as tar:
            for info in tar:
                path = _place(info)
                if path is not None and _write(root, path, info, b"".join(iter(tar.read, b""))):
                    owners[str(path)] = deb
    for name, text in _ARCHITECTURES.items():
        (root / name).write_text(text, encoding="utf-8")
    return owners


def _place(info: TarInfo) -> PurePosixPath | None:
    """Return where a member of a package belongs, None for what is not needed. Some packages lack the merged /usr."""
    path = PurePosixPath(info.name)
    if path.parts[:1] in (("bin",), ("lib",)):
        path = "usr" / path
    if str(path.parent) == PROGRAMS and path.name == "bwrap":
        return PurePosixPath(SANDBOXES, path.name)
    return path if str(path.parent) in _FOLDERS else None


def _write(root: Path, path: PurePosixPath, info: TarInfo, content: bytes) -> bool:
    """Write a file, or a link to a file beside it. Returns whether the member is one."""
    full, has_programs = root / path, str(path.parent) in (PROGRAMS, SANDBOXES, _METHODS)
    real = full.with_name(f"{full.name}{_REAL}")
    if info.issym() and "/" not in info.linkname:
        full.symlink_to(info.linkname)
        if has_programs:
            real.symlink_to(f"{info.linkname}{_REAL}")
        return True
    if not info.isreg():
        return False
    if has_programs and content.startswith(b"\x7fELF"):
        up = "/".join(".." for _ in path.parent.parts)
        start = _START.format(up=up, loader=LOADER, libraries=LIBRARIES, real=_REAL)
        full.write_text(start, encoding="utf-8")
        full.chmod(0o755)
        full = real
    full.write_bytes(content)
    full.chmod(0o755 if info.mode & 0o111 else 0o644)
    return True
