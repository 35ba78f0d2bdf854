"""Write a layer's files to disk, never outside the given folder.

Python's extraction filters for tars have been bypassed more than once (CVE-2025-4517 and others). Here no tar
is read: paths come from the layer's manifest, contents from the frames of its blob. Nothing follows a link:
every parent must be a real folder, and every file is created, never opened.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final

import zstandard

from envbuilder.core.system import NO_LINKS
from envbuilder.layers.entry import Entry, Kind, to_bytes
from envbuilder.layers.tar import is_normal
from envbuilder.layers.writer import Blocks, Frame

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINKS


class BlobReader:
    """Reads the contents of files from a layer's blob. Only the frames that hold them are decompressed."""

    def __init__(self, blob: IO[bytes], blocks: Blocks) -> None:
        self._blob = blob
        self._blocks = blocks
        self._fragment = (-1, b"")  # the last one: neighboring small files share it

    def content(self, file: Entry) -> Iterator[bytes]:
        """Yield the content in pieces; raises ValueError at the end if its digest differs."""
        digest = hashlib.sha256()
        for piece in self._pieces(file):
            digest.update(piece)
            yield piece
        if digest.hexdigest() != file.sha256:
            raise ValueError(f"`{file.path}` has another sha256")

    def _pieces(self, file: Entry) -> Iterator[bytes]:
        if file.sha256 in self._blocks.large:
            yield from map(self._frame, self._blocks.large[file.sha256])
        elif file.size:
            number, offset = self._blocks.small[file.sha256]
            if number != self._fragment[0]:
                self._fragment = number, self._frame(self._blocks.fragments[number])
            yield self._fragment[1][offset : offset + file.size]

    def _frame(self, frame: Frame) -> bytes:
        at, length, size = frame
        self._blob.seek(at)
        return zstandard.ZstdDecompressor().decompress(self._blob.read(length), max_output_size=size)


def unpack(entries: Iterable[Entry], reader: BlobReader, destination: Path) -> None:
    """Write every entry below `destination`; set-id bits are left out, owners are kept where files may be given away.

    Hard links become separate files. Raises ValueError for an entry outside the folder or already there.
    """
    root = os.fsencode(destination)
    owners = may_give_away()
    destination.mkdir(parents=True, exist_ok=True)
    known = {b""}  # folders below root that are real ones
    folders: list[Entry] = []
    try:
        for entry in entries:
            if not is_normal(entry.path):
                raise ValueError(f"the path {entry.path!r} is not plain")
            path = to_bytes(entry.path)
            full = root + b"/" + path
            _need_folder(root, path.rpartition(b"/")[0], known)
            if entry.kind is Kind.DIRECTORY:
                _need_folder(root, path, known)
                folders.append(entry)
            elif entry.kind is Kind.LINK:
                os.symlink(to_bytes(entry.target), full)  # noqa: PTH211  # names are bytes
                os.utime(full, (entry.mtime, entry.mtime), follow_symlinks=False)
                if owners and (entry.uid or entry.gid):
                    os.chown(full, entry.uid, entry.gid, follow_symlinks=False)
            elif entry.kind is Kind.FILE:
                _write_file(full, entry, reader.content(entry), owners=owners)
            else:
                raise ValueError(f"`{entry.path}` is a {entry.target}")
    except FileExistsError as error:
        raise ValueError(f"`{os.fsdecode(error.filename)}` is there already") from error
    for entry in reversed(folders):  # last: a folder may be read-only, and its time changes with its content
        full = root + b"/" + to_bytes(entry.path)
        if owners:
            os.chown(full, entry.uid, entry.gid)
        os.chmod(full, entry.mode & 0o1777)  # noqa: PTH101  # names are bytes
        os.utime(full, (entry.mtime, entry.mtime))


def _write_file(full: bytes, entry: Entry, content: Iterable[bytes], *, owners: bool) -> None:
    descriptor = os.open(full, _NEW, 0o600)
    try:
        for piece in content:
            left = memoryview(piece)
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


_USERS: Final = 1 << 16  # of Debian and Ubuntu: `nobody` is next to the last


def may_give_away() -> bool:
    """Whether files may be given to any user: by root, unless it is that of a namespace which has few users."""
    users = Path("/proc/self/uid_map")  # lines of three numbers; the last says how many users
    is_root = os.geteuid() == 0
    if not is_root or not users.exists():
        return is_root
    return sum(int(line.split()[2]) for line in users.read_text(encoding="ascii").splitlines()) >= _USERS
