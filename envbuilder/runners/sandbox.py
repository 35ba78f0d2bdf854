"""The sandbox in which foreign code runs: packages' scripts, projects, wheels, source distributions.

bubblewrap gives it namespaces of its own without a network, and the mounts that its caller names. `enter_sandbox.py`
starts bubblewrap without root, without variables, and with a filter of system calls.
"""

import os
import stat
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from envbuilder.core.errors import BuildError
from envbuilder.core.process import Command
from envbuilder.runners.enter_sandbox import LAYERS, give

PROGRAM: Final = Path(__file__).with_name("enter_sandbox.py")
_OWN: Final = ("--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--hostname", "build")
ROOT, USER = "0", "1000"  # ids inside, whoever builds


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    source: Path
    target: str
    writable: bool = False

    def options(self) -> tuple[str, str, str]:
        return ("--bind" if self.writable else "--ro-bind", str(self.source), self.target)


class Mounted(NamedTuple):
    """A squashfs in a file, from a place of it on, and the empty folder at which a sandbox has its files."""

    file: Path
    offset: int
    folder: Path


def sandbox(
    options: Sequence[str],
    argv: Sequence[str],
    *,
    why: str,
    env: Iterable[tuple[str, str]],
    cwd: str = "/",
    user: str = USER,
    capabilities: Sequence[str] = (),
    emulation: Sequence[str] = (),
    mounted: Sequence[Mounted] = (),
    merged: bool = False,
) -> Command:
    """Return the command that runs `argv` in a sandbox, by default as a user without rights there.

    `options` are bubblewrap's, for what is mounted. `capabilities` are those of its own user namespace alone.
    `emulation` are words of `enter_sandbox.py` for programs of another processor. What is `mounted` is there for `options` alone.
    """
    rights = (word for name in capabilities for word in ("--cap-add", name))
    variables = (word for name, value in env for word in ("--setenv", name, value))
    layers = (LAYERS, *(str(word) for each in mounted for word in each), "--") if mounted else ()
    words = (
        sys.executable, "-I", str(PROGRAM), *layers, *emulation, "--",
        *_OWN, "--uid", user, "--gid", user, "--cap-drop", "ALL", *rights, *options, *variables, "--chdir", cwd, "--", *argv,
    )  # fmt: skip
    return Command(argv=words, why=why, bare=True, merged=merged)


def take_over(folder: Path) -> None:
    """Make a folder that a sandbox wrote the user's own, without set-uid and set-gid bits, as no wheel may have them.

    Raises BuildError if the sandbox left something else in its place, such as a link.
    """
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise BuildError(
            f"a program in the sandbox replaced the folder `{folder.name}`, which nothing may do"
        )
    give(str(folder), os.geteuid(), os.getegid(), special=False)
