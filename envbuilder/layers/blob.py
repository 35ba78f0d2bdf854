"""Read a layer's blob: write its files to disk, never outside the given folder, or write the texts beside it.

Python's extraction filters for tars have been bypassed more than once (CVE-2025-4517 and others). `unpack` reads no
tar: paths come from the layer's manifest, contents from the frames of its blob. Nothing follows a link: every parent
must be a real folder, and every file is created, never opened.

`index_blob` is for a layer that came from a registry. Its blob shows where the frames begin, and the tar in it which
contents they hold. Nothing else decides the texts that `envbuilder/layers/writer.py` wrote beside it, so these are the
same, and so is the SIF.
"""

import hashlib
import mmap
import os
import stat
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import IO, Final, cast

import zstandard

from envbuilder.core.archive import DAMAGED_TAR, BoundedTar
from envbuilder.core.budget import most_unpacked, need_within
from envbuilder.core.cache import Sha256, save_text, sha256_text
from envbuilder.core.errors import BuildError
from envbuilder.core.system import NO_LINKS
from envbuilder.layers.entry import CHUNK, Entry, Kind, is_normal, make_manifest, read_member, to_bytes
from envbuilder.layers.writer import BLOCK_SIZE, Blocks, Frame, Layer

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINKS
_HEADER: Final = 18  # bytes of a frame's header at most (RFC 8878, 3.1.1)
_ONE_BYTE: Final = 1  # the type of a block that repeats one byte


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
    owners = _may_give_away()
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
    with os.fdopen(os.open(full, _NEW, 0o600), "wb") as stream:
        stream.writelines(content)
        stream.flush()
        if owners and (entry.uid or entry.gid):
            os.fchown(stream.fileno(), entry.uid, entry.gid)
        os.fchmod(stream.fileno(), entry.mode & 0o1777)
        os.utime(stream.fileno(), (entry.mtime, entry.mtime))


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


def index_blob(folder: Path, *, name: str, digest: Sha256, diff_id: Sha256) -> Layer:
    """Write the texts beside `layer.tar.zst`, whose digests the caller has checked.

    Raises BuildError for a blob that another program wrote.
    """
    blob = folder / "layer.tar.zst"
    try:
        with blob.open("rb") as stream:
            frames = tuple(_frames(stream))
            tar_size = sum(plain for _, _, plain in frames)
            need_within("bytes that it unpacks to", tar_size, most_unpacked(blob.stat().st_size))
            entries, blocks, content_size = _read(stream, frames)
    except (*DAMAGED_TAR, LookupError, zstandard.ZstdError) as error:
        raise BuildError(f"the layer {digest} is not one that envbuilder wrote: {error}") from error
    manifest, index = make_manifest(entries), blocks.to_json()
    layer = Layer(
        name=name, folder=folder, digest=digest, size=blob.stat().st_size, diff_id=diff_id, tar_size=tar_size,
        content_size=content_size, tree=sha256_text(manifest), blocks=sha256_text(index),
    )  # fmt: skip
    save_text(layer.manifest, manifest)
    save_text(layer.index, index)
    save_text(folder / "layer.json", layer.to_json())
    return layer


def _frames(stream: IO[bytes]) -> Iterator[Frame]:
    """Yield the place of each frame, from the headers of its blocks. Nothing is decompressed."""
    with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as blob:
        start = 0
        while start < len(blob):
            head = blob[start : start + _HEADER]
            plain = zstandard.frame_content_size(head)
            if not 0 < plain <= BLOCK_SIZE:
                raise ValueError(f"a frame at byte {start} has {plain} bytes")
            at, is_last = start + zstandard.frame_header_size(head), False
            while not is_last:
                word = int.from_bytes(blob[at : at + 3], "little")
                is_last = bool(word & 1) or at + 3 > len(blob)
                at += 3 + (1 if word >> 1 & 3 == _ONE_BYTE else word >> 3)
            yield start, at - start, plain
            start = at


def _read(stream: IO[bytes], frames: tuple[Frame, ...]) -> tuple[list[Entry], Blocks, int]:
    """Read the tar in the frames, and hash each file. Return the bytes of all files too, without those of hard links."""
    begins = [0, *accumulate(plain for _, _, plain in frames)]  # of each frame, in the tar
    entries, files, fragments = list[Entry](), dict[str, Entry](), dict[int, int]()
    small, large = dict[str, tuple[int, int]](), dict[str, tuple[Frame, ...]]()
    unpacked = zstandard.ZstdDecompressor().stream_reader(stream, read_size=CHUNK, read_across_frames=True)
    with BoundedTar.open(fileobj=cast("IO[bytes]", unpacked), mode="r|", bufsize=CHUNK // 16) as archive:
        for item in archive:
            archive.members.clear()  # type: ignore[attr-defined]  # it keeps every member, and each is needed once
            member = read_member(item)
            entry = member.entry
            if entry.kind is Kind.SPECIAL or not is_normal(entry.path):
                raise ValueError(f"it holds `{entry.path}`")
            if member.hard:
                first = files[member.hard]
                entry = replace(entry, size=first.size, sha256=first.sha256)
            elif entry.kind is Kind.FILE:
                digest = hashlib.file_digest(archive.extractfile(item), "sha256")  # type: ignore[arg-type]  # a buffered reader
                entry = replace(entry, sha256=digest.hexdigest())
                files[entry.path] = entry
                number = bisect_right(begins, member.offset) - 1
                offset = member.offset - begins[number]
                if entry.size >= BLOCK_SIZE:
                    end = number + -(-entry.size // BLOCK_SIZE)
                    if offset or begins[end] - begins[number] != entry.size:
                        raise ValueError(f"`{entry.path}` has no frames of its own")
                    large.setdefault(entry.sha256, frames[number:end])
                elif entry.size:
                    if member.offset + entry.size > begins[number + 1]:
                        raise ValueError(f"`{entry.path}` is in two frames")
                    fragment = fragments.setdefault(number, len(fragments))
                    small.setdefault(entry.sha256, (fragment, offset))
            entries.append(entry)
    blocks = Blocks(fragments=tuple(frames[number] for number in fragments), small=small, large=large)
    return entries, blocks, sum(file.size for file in files.values())


_USERS: Final = 1 << 16  # of Debian and Ubuntu: `nobody` is next to the last


def _may_give_away() -> bool:
    """Whether files may be given to any user: by root, unless it is that of a namespace which has few users."""
    users = Path("/proc/self/uid_map")  # lines of three numbers; the last says how many users
    is_root = os.geteuid() == 0
    if not is_root or not users.exists():
        return is_root
    return sum(int(line.split()[2]) for line in users.read_text(encoding="ascii").splitlines()) >= _USERS
