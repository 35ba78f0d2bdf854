"""Earlier versions of a SIF: hard links beside it, of which the name itself is one more.

`NAME.sif` stays a file, not a link to one: programs that look at it see its size, time and owner,
and copying a folder copies environments. A version is `.NAME.DIGEST.sif` in the same folder, because
some parallel file systems allow hard links within one folder alone. Putting a version in place is one
rename. Running jobs keep their file, on NFS too, as long as a version of it is kept.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
from typing import NamedTuple

from envbuilder.core.private import is_trusted, refused

DIGITS = 16  # of the sha256 in a version's name


class Version(NamedTuple):
    """A version of a SIF; `time` is when it was made or came here, in seconds."""

    digest: str
    path: str
    size: int
    time: float
    current: bool


def versions(sif: str) -> list[Version]:
    """Return the versions that are kept, the newest first.

    A file of another user under such a name is none, unless the SIF itself is that user's.
    """
    folder, name = os.path.split(sif)
    stem = re.escape(name[: -len(".sif")])
    pattern = re.compile(rf"\.{stem}\.([0-9a-f]{{{DIGITS}}})\.sif")
    found = []
    for path in glob.glob(os.path.join(glob.escape(folder), ".*.sif")):
        match = pattern.fullmatch(os.path.basename(path))
        if match and not os.path.islink(path) and _is_own(path, sif):
            status = os.stat(path)
            is_current = os.path.exists(sif) and os.path.samefile(path, sif)
            found.append(Version(match.group(1), path, status.st_size, status.st_mtime, is_current))
    return sorted(found, key=lambda one: (-one.time, one.digest))


def install(new: str, sif: str, digest: str, keep: int) -> None:
    """Rename a finished file to the SIF's name. With `keep` above 1, the last so many versions are kept.

    With 1 the earlier file is not kept, and earlier versions stay as they are. Where the file system
    has no hard links, none is kept.
    """
    if keep > 1:
        adopt(sif)
        _link(new, _version(sif, digest))
    try:
        os.replace(new, sif)
    except PermissionError as error:  # another user's file, in a folder with the sticky bit
        raise refused(sif) from error
    if keep > 1:
        prune(sif, keep)


def adopt(sif: str) -> None:
    """Make a version of the file that is there, unless it is one."""
    if (
        os.path.isfile(sif)
        and is_trusted(sif)
        and not os.path.islink(sif)
        and not any(one.current for one in versions(sif))
    ):
        _link(sif, _version(sif, file_digest(sif)))


def file_digest(path: str) -> str:
    """Return the sha256 of a file."""
    whole = hashlib.sha256()
    with open(path, "rb") as stream:
        for data in iter(lambda: stream.read(1 << 20), b""):
            whole.update(data)
    return whole.hexdigest()


def switch(sif: str, version: Version) -> None:
    """Put a version in place by one rename."""
    beside = f"{version.path}.{os.urandom(8).hex()}"
    os.link(version.path, beside)
    os.replace(beside, sif)
    if os.path.exists(beside):  # a rename between two links to one file does nothing
        os.unlink(beside)


def prune(sif: str, keep: int) -> list[Version]:
    """Remove all but the newest `keep` versions and the current one; return those that were removed."""
    found = versions(sif)
    kept = [one for one in found if one.current] + [one for one in found if not one.current]
    for one in kept[keep:]:
        os.unlink(one.path)
    return kept[keep:]


def _is_own(path: str, sif: str) -> bool:
    """Whether the file is this user's or root's, or of the user whose SIF has the name."""
    return is_trusted(path) or (os.path.exists(sif) and os.stat(path).st_uid == os.lstat(sif).st_uid)


def _version(sif: str, digest: str) -> str:
    folder, name = os.path.split(sif)
    return os.path.join(folder, f".{name[: -len('.sif')]}.{digest[:DIGITS]}.sif")


def _link(path: str, version: str) -> None:
    """Give a file its name as a version. A version of that name with the same bytes is replaced."""
    try:
        if os.path.lexists(version):
            os.unlink(version)
        os.link(path, version)
    except OSError:  # no hard links here, or too many of this file
        return
