"""Write a layer's files to disk, never outside the given folder.

Python's extraction filters have been bypassed more than once (CVE-2025-4517 and others). Nothing
here follows a link: every parent is checked to be a folder, and every file is created, never
opened.
"""

import os
import stat
from pathlib import Path
from typing import Final

from envbuilder.layers.entry import Entry, Kind, to_bytes
from envbuilder.layers.tar import TarReader

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(reader: TarReader, destination: Path) -> None:
    """Write every member below `destination`; set-id bits are left out, owners are kept when we are root.

    Raises ValueError when a member would leave the folder or meets something that is there already.
    """
    root = os.fsencode(destination)
    owners = os.geteuid() == 0
    destination.mkdir(parents=True, exist_ok=True)
    known = {b""}  # folders below root that are real ones
    folders: list[Entry] = []
    try:
        for member in reader:
            entry = member.entry
            path = to_bytes(entry.path)
            _need_folder(root, path.rpartition(b"/")[0], known)
            full = root + b"/" + path
            if entry.kind is Kind.DIRECTORY:
                _need_folder(root, path, known)
                folders.append(entry)
            elif member.hard:
                _need_folder(root, to_bytes(member.hard).rpartition(b"/")[0], known)
                os.link(root + b"/" + to_bytes(member.hard), full, follow_symlinks=False)
            elif entry.kind is Kind.LINK:
                os.symlink(to_bytes(entry.target), full)  # noqa: PTH211  # names are bytes
                os.utime(full, (entry.mtime, entry.mtime), follow_symlinks=False)
                if owners and (entry.uid or entry.gid):
                    os.chown(full, entry.uid, entry.gid, follow_symlinks=False)
            else:
                _write_file(full, entry, reader, owners=owners)
    except FileExistsError as error:
        raise ValueError(f"`{os.fsdecode(error.filename2 or error.filename)}` is there already") from error
    for entry in reversed(
        folders
    ):  # last, since a folder may be read-only and its time changes with its content
        full = root + b"/" + to_bytes(entry.path)
        if owners:
            os.chown(full, entry.uid, entry.gid)
        os.chmod(full, entry.mode & 0o1777)  # noqa: PTH101  # names are bytes
        os.utime(full, (entry.mtime, entry.mtime))


def _write_file(full: bytes, entry: Entry, reader: TarReader, *, owners: bool) -> None:
    descriptor = os.open(full, _NEW, 0o600)
    try:
        for piece in reader.content():
            left = piece
            while left:
                left = left[os.write(descriptor, left) :]
        if owners and (entry.uid or entry.gid):
            os.fchown(descriptor, entry.uid, entry.gid)
        os.fchmod(descriptor, entry.mode & 0o1777)
        os.utime(descriptor, (entry.mtime, entry.mtime))
    finally:
        os.close(descriptor)


def _need_folder(root: bytes, path: bytes, known: set[bytes]) -> None:
    """Create the folder and its parents; raises ValueError when one of them is not a real folder."""
    if path in known:
        return
    _need_folder(root, path.rpartition(b"/")[0], known)
    full = root + b"/" + path
    try:
        os.mkdir(full, 0o755)  # noqa: PTH102  # names are bytes
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(full).st_mode):
            raise ValueError(f"`{os.fsdecode(path)}` is not a folder") from None
    known.add(path)
