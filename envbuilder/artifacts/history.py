"""Earlier versions of a SIF: hard links beside it, of which the name itself is one more.

`NAME.sif` stays a file, not a link to one: programs that look at it see its size, time and owner,
and copying a folder copies environments. A version is `.NAME.DIGEST.sif` in the same folder, because
some parallel file systems allow hard links within one folder alone. Putting a version in place is one
rename. Running jobs keep their file, on NFS too, as long as a version of it is kept.
"""

import contextlib
import glob
import os
from pathlib import Path
from typing import Final

from envbuilder.artifacts.outputs import VERSIONS
from envbuilder.core.answer import Answer
from envbuilder.core.cache import sha256_file
from envbuilder.core.errors import UsageError
from envbuilder.core.private import is_trusted, refused
from envbuilder.core.system import utc_time

DIGITS: Final = 16  # of the sha256 in a version's name


class Version(Answer):
    """A version of a SIF: the first digits of its sha256, and when it was made or came here."""

    version: str
    time: str
    bytes: int
    current: bool


def versions(sif: Path) -> list[Version]:
    """Return the versions that are kept, the newest first.

    A file of another user under such a name is none, unless the SIF itself is that user's.
    """
    trusted = {0, os.geteuid(), *([sif.lstat().st_uid] if sif.exists() else [])}
    paths = sif.parent.glob(f".{glob.escape(sif.stem)}.{'[0-9a-f]' * DIGITS}.sif")
    files = [(path.lstat(), path) for path in paths if not path.is_symlink()]
    files = [(status, path) for status, path in files if status.st_uid in trusted]
    return [
        Version(
            version=path.name[-DIGITS - 4 : -4],
            time=utc_time(status.st_mtime).strftime("%Y-%m-%d %H:%M UTC"),
            bytes=status.st_size,
            current=sif.exists() and path.samefile(sif),
        )
        for status, path in sorted(files, key=lambda file: (-file[0].st_mtime, file[1]))
    ]


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


def choose(sif: Path, wanted: str) -> Version:
    """Return the version that begins with these digits, without any the one before the current one.

    Raises UsageError without such a version.
    """
    there = versions(sif)
    if wanted:
        digits = wanted.removeprefix("sha256:")[:DIGITS]
        chosen = [version for version in there if version.version.startswith(digits)]
        if len(chosen) != 1:
            how_many = "several versions begin" if chosen else "no version begins"
            names = ", ".join(version.version for version in there) or "none"
            raise UsageError(f"{how_many} with `{wanted}`", hint=f"`{sif.name}` has these: {names}")
        return chosen[0]
    current = next((number for number, version in enumerate(there) if version.current), -1)
    if current + 1 == len(there):
        hint = f"`{VERSIONS}=3` keeps three versions from the next build or pull on"
        raise UsageError(f"`{sif.name}` has no version before the current one", hint=hint)
    return there[current + 1]


def switch(sif: Path, version: Version) -> None:
    """Put a version in place by one rename."""
    path = path_of(sif, version.version)
    beside = path.with_name(f"{path.name}.{os.urandom(8).hex()}")
    beside.hardlink_to(path)
    beside.replace(sif)
    beside.unlink(missing_ok=True)  # a rename between two links to one file does nothing


def prune(sif: Path, keep: int) -> tuple[str, ...]:
    """Remove all but the newest `keep` versions and the current one; return those that were removed."""
    old = sorted(versions(sif), key=lambda version: not version.current)[keep:]
    for version in old:
        path_of(sif, version.version).unlink()
    return tuple(version.version for version in old)


def path_of(sif: Path, digest: str) -> Path:
    return sif.with_name(f".{sif.stem}.{digest[:DIGITS]}.sif")


def _link(path: Path, sif: Path, digest: str) -> None:
    """Give a file its name as a version of the SIF. A version of that name with the same bytes is replaced."""
    version = path_of(sif, digest)
    with contextlib.suppress(OSError):  # no hard links here, or too many of this file
        version.unlink(missing_ok=True)
        version.hardlink_to(path)
