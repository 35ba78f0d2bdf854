"""The closed family of errors; only `cli` catches them and turns them into exit codes.

Each class names its code and the branch's exit code. Its docstring is what the code means, in the reference too. Anything
outside the family is a bug and keeps its traceback.
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
    """The base, never raised itself: a failure that the user can act on."""

    code: ClassVar[str] = "EB000"
    exit_code: ClassVar[int] = 1

    def __init_subclass__(cls, *, code: str, exit_code: int | None = None) -> None:
        cls.code, cls.exit_code = code, exit_code or cls.exit_code

    def __init__(self, message: str, *, hint: str = "", findings: tuple[Finding, ...] = ()) -> None:
        message = message.rstrip()  # it may end with a program's output
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.findings = findings
        self.log = ""  # the full log file, if there is one
        self.data: object = None  # what a command answers under `--json` in spite of the failure


class UsageError(EnvbuilderError, code="EB200", exit_code=2):
    """A wrong name, option or path on the command line."""


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
        is_deep = isinstance(error, RecursionError)
        reason = "it is nested too deep" if is_deep else f"{error}".partition("\n")[0]
        raise UsageError(
            f"{what} cannot be read: {reason or type(error).__name__}",
            hint="it is not of the form that its name says; `-vv` shows where it failed",
        ) from error


class RecipeError(UsageError, code="EB201"):
    """What was written in a recipe, every mistake at once."""


class IncompatibleError(EnvbuilderError, code="EB300", exit_code=3):
    """Pins that cannot work together."""


class LockError(EnvbuilderError, code="EB400", exit_code=4):
    """Lock missing or stale."""


class StaleError(LockError, code="EB401"):
    """A SIF or image is of another version of its recipe or lock."""


class FetchError(EnvbuilderError, code="EB500", exit_code=5):
    """Download, mirror or registry."""


class RegistryError(FetchError, code="EB520"):
    """A registry does not do what was asked."""


class AccessError(RegistryError, code="EB521"):
    """It refuses access (401, 403)."""


class AbsentError(RegistryError, code="EB522"):
    """It has no such thing (404)."""


class BusyError(RegistryError, code="EB523"):
    """The registry is busy or out of order (429, 5xx)."""


class CutError(RegistryError, code="EB524"):
    """The registry does not answer, or stopped in the middle."""


class ContentError(RegistryError, code="EB525"):
    """The registry sends other bytes than the digest says."""


class BuildError(EnvbuilderError, code="EB600", exit_code=6):
    """A build step failed."""


class CommandError(BuildError, code="EB601"):
    """An outside program failed."""


class SpaceError(BuildError, code="EB602"):
    """The disk is full."""


class CompileError(BuildError, code="EB603"):
    """The code of an extension or a source distribution does not compile."""


class VerifyError(EnvbuilderError, code="EB700", exit_code=7):
    """The artifacts differ from the plan."""


class OtherRecipeError(VerifyError, code="EB731"):
    """The SIF or image under a recipe's name is another recipe's."""


class OtherUserError(VerifyError, code="EB732"):
    """The SIF under a recipe's name is another user's."""


class ForeignError(VerifyError, code="EB733"):
    """Not a SIF, or envbuilder did not make it."""


class DamagedError(VerifyError, code="EB734"):
    """A SIF is cut off or damaged."""


class ToolError(EnvbuilderError, code="EB800", exit_code=8):
    """A needed tool is missing or too old."""


class LaunchError(EnvbuilderError, code="EB850", exit_code=9):
    """A job could not be started."""


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
        # A program's message names its own.
        where = "" if message else f" on the file system of `{places[0]}`"
        cause = f"your quota{where} is used up, of bytes or of files"
        hint = f"`quota -s`, on Lustre `lfs quota`, shows which; remove what you do not need, {_ELSEWHERE}"
    elif cause := next(filter(None, map(lacks_inodes, places)), ""):
        hint = f"remove files there, large or small, {_ELSEWHERE}"
    else:
        cause = "" if message else f"no space left on the file system of `{places[0]}`"
        hint = f"free space there, {_ELSEWHERE}"
    return SpaceError("\n".join(filter(None, (cause, message))), hint=hint)
