"""The closed family of errors; only `cli` catches them and turns them into exit codes.

    EnvbuilderError        EB000   1
    ├── UsageError         EB200   2
    │   └── RecipeError    EB201   2
    ├── IncompatibleError  EB300   3
    ├── LockError          EB400   4
    │   └── StaleError     EB401   4
    ├── FetchError         EB500   5
    │   └── RegistryError  EB520   5
    │       ├── AccessError   EB521   5
    │       ├── AbsentError   EB522   5
    │       ├── BusyError     EB523   5
    │       ├── CutError      EB524   5
    │       └── ContentError  EB525   5
    ├── BuildError         EB600   6
    │   ├── CommandError   EB601   6
    │   ├── SpaceError     EB602   6
    │   └── CompileError   EB603   6
    ├── VerifyError        EB700   7
    │   ├── OtherRecipeError   EB731   7
    │   ├── OtherUserError     EB732   7
    │   ├── ForeignError       EB733   7
    │   └── DamagedError       EB734   7
    ├── ToolError          EB800   8
    └── LaunchError        EB850   9

Anything outside the family is a bug and keeps its traceback.
"""

import contextlib
import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

from envbuilder.core.findings import Finding

log = logging.getLogger(__name__)


class EnvbuilderError(Exception):
    """A failure that the user can act on: a full sentence, an optional hint, and the findings behind it."""

    code: ClassVar[str] = "EB000"
    meaning: ClassVar[str] = "base, never raised itself"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", findings: tuple[Finding, ...] = ()) -> None:
        message = message.rstrip()  # it may end with a program's output
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.findings = findings
        self.log = ""  # the full log file, if there is one
        self.data: object = None  # what a command answers under `--json` in spite of the failure


class UsageError(EnvbuilderError):
    code = "EB200"
    meaning = "a wrong name, option or path on the command line"
    exit_code = 2


@contextlib.contextmanager
def blaming_path(message: str, *, hint: str = "") -> Iterator[None]:
    """Turn an OSError of the block, about a path that the user chose, into a UsageError with its reason."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{message}: {(error.strerror or str(error)).lower()}", hint=hint) from error


# What a parser raises for a text that its format does not allow, or that is nested or long beyond its limits. SystemExit: one
# of the parsers ends the process.
FOREIGN: Final = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, SystemExit, TypeError, ValueError,
)  # fmt: skip


@contextlib.contextmanager
def blaming_content(what: str) -> Iterator[None]:
    """Turn what a parser raises in the block, about a text or an answer that others wrote, into a UsageError."""
    try:
        yield
    except FOREIGN as error:
        log.debug("where it failed:", exc_info=error)
        reason = (
            "it is nested too deep" if isinstance(error, RecursionError) else f"{error}".partition("\n")[0]
        )
        raise UsageError(
            f"{what} cannot be read: {reason or type(error).__name__}",
            hint="it is not of the form that its name says; `-vv` shows where it failed",
        ) from error


class RecipeError(UsageError):
    code = "EB201"
    meaning = "what was written in a recipe, every mistake at once"


class IncompatibleError(EnvbuilderError):
    code = "EB300"
    meaning = "pins that cannot work together"
    exit_code = 3


class LockError(EnvbuilderError):
    code = "EB400"
    meaning = "lock missing or stale"
    exit_code = 4


class StaleError(LockError):
    code = "EB401"
    meaning = "a SIF or image is of another version of its recipe or lock"


class FetchError(EnvbuilderError):
    code = "EB500"
    meaning = "download, mirror or registry"
    exit_code = 5


class RegistryError(FetchError):
    code = "EB520"
    meaning = "a registry does not do what was asked"


class AccessError(RegistryError):
    code = "EB521"
    meaning = "it refuses access (401, 403)"


class AbsentError(RegistryError):
    code = "EB522"
    meaning = "it has no such thing (404)"


class BusyError(RegistryError):
    code = "EB523"
    meaning = "the registry is busy or out of order (429, 5xx)"


class CutError(RegistryError):
    code = "EB524"
    meaning = "the registry does not answer, or stopped in the middle"


class ContentError(RegistryError):
    code = "EB525"
    meaning = "the registry sends other bytes than the digest says"


class BuildError(EnvbuilderError):
    code = "EB600"
    meaning = "a build step failed"
    exit_code = 6


class CommandError(BuildError):
    code = "EB601"
    meaning = "an outside program failed"


class SpaceError(BuildError):
    code = "EB602"
    meaning = "the disk is full"


class CompileError(BuildError):
    code = "EB603"
    meaning = "the code of an extension or a source distribution does not compile"


class VerifyError(EnvbuilderError):
    code = "EB700"
    meaning = "the artifacts differ from the plan"
    exit_code = 7


class OtherRecipeError(VerifyError):
    code = "EB731"
    meaning = "the SIF or image under a recipe's name is another recipe's"


class OtherUserError(VerifyError):
    code = "EB732"
    meaning = "the SIF under a recipe's name is another user's"


class ForeignError(VerifyError):
    code = "EB733"
    meaning = "not a SIF, or envbuilder did not make it"


class DamagedError(VerifyError):
    code = "EB734"
    meaning = "a SIF is cut off or damaged"


class ToolError(EnvbuilderError):
    code = "EB800"
    meaning = "a needed tool is missing or too old"
    exit_code = 8


class LaunchError(EnvbuilderError):
    code = "EB850"
    meaning = "a job could not be started"
    exit_code = 9


FULL: Final = (errno.ENOSPC, errno.EDQUOT)
FEW: Final = 100  # inodes: a build makes more files, and what a failed one removes frees some
_ELSEWHERE: Final = (
    "or point ENVBUILDER_CACHE and the folder of artifacts at a larger disk; then run it again"
)


def lacks_inodes(place: Path) -> str:
    """Return a sentence about a file system, which takes no more files; "" for one that does, or has no limit."""
    try:
        status = os.statvfs(next(path for path in (place, *place.absolute().parents) if path.exists()))
    except OSError:
        return ""
    if not status.f_files or status.f_favail >= FEW or status.f_flag & os.ST_RDONLY:
        return ""
    free = status.f_bavail * status.f_frsize / 1e9
    return (
        f"no inodes left on the file system of `{place}`, one for each file: {status.f_favail} of {status.f_files} are "
        f"free, beside {free:.2f} GB"
    )


def full_error(*places: Path, number: int = errno.ENOSPC, message: str = "") -> SpaceError:
    """Return the error for a write that failed in one of these places. A `message` follows the cause."""
    if number == errno.EDQUOT:
        where = (
            "" if message else f" on the file system of `{places[0]}`"
        )  # a program's message names its own
        cause = f"your quota{where} is used up, of bytes or of files"
        hint = f"`quota -s`, on Lustre `lfs quota`, shows which; remove what you do not need, {_ELSEWHERE}"
    elif cause := next(filter(None, map(lacks_inodes, places)), ""):
        hint = f"remove files there, large or small, {_ELSEWHERE}"
    else:
        cause = "" if message else f"no space left on the file system of `{places[0]}`"
        hint = f"free space there, {_ELSEWHERE}"
    return SpaceError("\n".join(filter(None, (cause, message))), hint=hint)
