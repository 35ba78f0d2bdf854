"""Say what a full file system lacks: bytes, inodes, or the rest of a user's quota."""

import errno
import os
from pathlib import Path
from typing import Final

from envbuilder.core.errors import SpaceError

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
