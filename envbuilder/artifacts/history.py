"""Earlier versions of a SIF: hard links beside it, of which the name itself is one more.

`NAME.sif` stays a file, not a link to one: programs that look at it see its size, time and owner,
and copying a folder copies environments. A version is `.NAME.DIGEST.sif` in the same folder, because
some parallel file systems allow hard links within one folder alone. Putting a version in place is one
rename. Running jobs keep their file, on NFS too, as long as a version of it is kept.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from envbuilder.core.cache import sha256_file
from envbuilder.core.private import is_trusted, refused

DIGITS: Final = 16  # of the sha256 in a version's name


class Version(NamedTuple):
    """A version of a SIF; `time` is when it was made or came here, in seconds."""

    digest: str
    path: Path
    size: int
    time: float
    current: bool


def versions(sif: Path) -> list[Version]:
    """Return the versions that are kept, the newest first.

    A file of another user under such a name is none, unless the SIF itself is that user's.
    """
    pattern = re.compile(rf"\.{re.escape(sif.stem)}\.([0-9a-f]{{{DIGITS}}})\.sif")
    listed = []
    for path in sif.parent.glob(".*.sif"):
        match = pattern.fullmatch(path.name)
        if match and not path.is_symlink() and _is_own(path, sif):
            status = path.stat()
            is_current = sif.exists() and path.samefile(sif)
            listed.append(Version(match[1], path, status.st_size, status.st_mtime, is_current))
    return sorted(listed, key=lambda version: (-version.time, version.digest))


def install(new: Path, sif: Path, digest: str, keep: int) -> None:
    """Rename a finished file to the SIF's name. With `keep` above 1, the last so many versions are kept.

    With 1 the earlier file is not kept, and earlier versions stay as they are. Where the file system
    has no hard links, none is kept.
    """
    if keep > 1:
        adopt(sif)
        _link(new, sif, digest)
    try:
        new.replace(sif)
    except PermissionError as error:  # another user's file, in a folder with the sticky bit
        raise refused(str(sif)) from error
    if keep > 1:
        prune(sif, keep)


def adopt(sif: Path) -> None:
    """Make a version of the file that is there, unless it is one."""
    is_own = sif.is_file() and not sif.is_symlink() and is_trusted(str(sif))
    if is_own and not any(version.current for version in versions(sif)):
        _link(sif, sif, sha256_file(sif))


def switch(sif: Path, version: Version) -> None:
    """Put a version in place by one rename."""
    beside = version.path.with_name(f"{version.path.name}.{os.urandom(8).hex()}")
    beside.hardlink_to(version.path)
    beside.replace(sif)
    beside.unlink(missing_ok=True)  # a rename between two links to one file does nothing


def prune(sif: Path, keep: int) -> list[Version]:
    """Remove all but the newest `keep` versions and the current one; return those that were removed."""
    removed = sorted(versions(sif), key=lambda version: not version.current)[keep:]
    for version in removed:
        version.path.unlink()
    return removed


def _is_own(path: Path, sif: Path) -> bool:
    """Whether the file is this user's or root's, or of the user whose SIF has the name."""
    return is_trusted(str(path)) or (sif.exists() and path.stat().st_uid == sif.lstat().st_uid)


def _link(path: Path, sif: Path, digest: str) -> None:
    """Give a file its name as a version of the SIF. A version of that name with the same bytes is replaced."""
    version = sif.with_name(f".{sif.stem}.{digest[:DIGITS]}.sif")
    with contextlib.suppress(OSError):  # no hard links here, or too many of this file
        version.unlink(missing_ok=True)
        version.hardlink_to(path)
