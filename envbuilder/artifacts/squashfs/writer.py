"""Lay out a squashfs whose blocks are the zstd frames of the layers' blobs.

Blocks and fragments of the squashfs are frames that `envbuilder/layers/writer.py` wrote, so no
content is compressed or decompressed again. mksquashfs and tar2sqfs take only files or a tar, and
`libsquashfs` has no Python binding: for a100 they take more CPU than all other work on a SIF. The
format is version 4.0, as the kernel's documentation describes it.
`envbuilder/artifacts/squashfs/reader.py` reads it and shares no code with this module.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from envbuilder.core.errors import BuildError
from envbuilder.layers.entry import Entry, Kind, path_order, to_bytes
from envbuilder.layers.writer import BLOCK_SIZE, Blocks, Frame, make_compressor

_SUPER: Final = struct.Struct("<5I6H8Q")
SUPER_SIZE: Final = _SUPER.size  # bytes of a file system's head
_MAGIC: Final = 0x73717368
_VERSION: Final = (4, 0)
ZSTD: Final = 6
_NO_XATTRS: Final = 0x0200
_NONE_32: Final = 0xFFFFFFFF
_NONE_64: Final = 0xFFFFFFFFFFFFFFFF  # also the mask of the numbers that places are
_META: Final = 8192  # bytes that a metadata block unpacks to
_RAW_META: Final = 0x8000  # set in a metadata block's length: stored as it is
_RAW_DATA: Final = 1 << 24  # the same for data blocks
_MOST_LISTED: Final = 256  # names below one header of a folder
_PADDING: Final = 4096  # a loop device ends at a whole sector

_INODE: Final = struct.Struct("<4H2I")
_FOLDER: Final = struct.Struct("<2I2HI")
_LONG_FOLDER: Final = struct.Struct("<4I2HI")
_FILE: Final = struct.Struct("<4I")
_LONG_FILE: Final = struct.Struct("<3Q4I")
_LINK: Final = struct.Struct("<2I")
_LISTING: Final = struct.Struct("<3I")
_NAME: Final = struct.Struct("<HhHH")
_FRAGMENT: Final = struct.Struct("<Q2I")
_XATTRS: Final = struct.Struct("<Q2I")
_XATTR_KEY: Final = struct.Struct("<2H")
_XATTR_PREFIXES: Final = ("user.", "trusted.", "security.")
_WORD: Final = struct.Struct("<I")
_QUAD: Final = struct.Struct("<Q")
_SIZE: Final = struct.Struct("<H")
_TYPES: Final = {Kind.DIRECTORY: 1, Kind.FILE: 2, Kind.LINK: 3}
_LONG: Final = 7  # added to the type of an inode with large numbers and attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A layer of the store: its blob, its paths, and the places of their contents in the blob."""

    blob: Path
    entries: Sequence[Entry]
    blocks: Blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes of a blob. `plain` is the decompressed size of a frame, or 0 for bytes that are used as they are."""

    blob: Path
    at: int
    length: int
    plain: int = 0

    @property
    def size(self) -> int:
        """Return the number of bytes that it becomes in the file."""
        return self.plain or self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class SquashfsLayout:
    """All bytes of a file system: the head, then the pieces, then the tables."""

    head: bytes
    pieces: tuple[Piece, ...]
    tables: bytes
    size: int


@dataclass(frozen=True, slots=True)
class _Where:
    """The place of a file's content: blocks from `start` on, or a part of a fragment."""

    start: int = 0
    blocks: tuple[int, ...] = ()
    fragment: int = _NONE_32
    offset: int = 0


def layout_squashfs(layers: Sequence[Packed], *, epoch: int) -> SquashfsLayout:
    """Lay out the file system of all paths of the layers. The same layers give the same bytes.

    Raises BuildError for entries that the file system cannot hold.
    """
    growing = GrowingSquashfs()
    for layer in layers:
        growing.add(layer)
    return growing.finish(epoch)


class GrowingSquashfs:
    """Lays out a file system whose layers come one after the other.

    No path may be in two layers, but folders. A missing parent becomes a folder of root with mode 0755. A hard
    link becomes a file of its own that shares the content.
    """

    def __init__(self) -> None:
        self._contents = _Contents()
        self._entries: dict[str, Entry] = {}

    def add(self, layer: Packed) -> tuple[Piece, ...]:
        """Give the contents of a layer their places. Return the pieces that come next in the file."""
        first = len(self._contents.pieces)
        self._contents.add(layer)
        self._entries |= {entry.path: entry for entry in layer.entries}
        return tuple(self._contents.pieces[first:])

    def finish(self, epoch: int) -> SquashfsLayout:
        """Return the layout with all layers. Raises BuildError for entries that the file system cannot hold."""
        return _Tables(_with_parents(self._entries, epoch), self._contents).lay_out(epoch)

    def view(self, entries: Iterable[Entry], *, at: int) -> bytes:
        """Return a file system with these paths of layers that were added, to lie `at` bytes behind the head of the whole one.

        It has no contents of its own. The places of contents are counted from its head, modulo 2^64: readers add the place
        of the head to each, which leads back to the contents before it.
        """
        seen = _Tables(_with_parents({entry.path: entry for entry in entries}, 0), self._contents, at=at)
        layout = seen.lay_out(0)
        return layout.head + layout.tables


def _with_parents(entries: dict[str, Entry], epoch: int) -> dict[str, Entry]:
    whole = dict(entries)
    for path in entries:
        while path and (path := path.rpartition("/")[0]) not in whole:  # upwards
            whole[path] = Entry(path=path, kind=Kind.DIRECTORY, mode=0o755, mtime=epoch)
    return whole


def squashfs_epoch(head: bytes) -> int:
    """Return the time that `layout_squashfs` was given, from the head of a file system."""
    return int(_SUPER.unpack(head)[2])


class _Contents:
    """Assigns a place to every content, in the order of the blobs. Equal contents share one place."""

    def __init__(self) -> None:
        self.at = _SUPER.size
        self.pieces: list[Piece] = []
        self._first = 0  # piece of the layer that came last
        self.fragments: list[tuple[int, int]] = []  # start, and the length as a squashfs encodes it
        self.files: dict[str, _Where] = {}

    def add(self, layer: Packed) -> None:
        self._first = len(self.pieces)
        first = len(self.fragments)
        self.fragments += [(0, 0)] * len(layer.blocks.fragments)
        parts: list[tuple[tuple[Frame, ...], int | str]] = [
            *(((frame,), number) for number, frame in enumerate(layer.blocks.fragments)),
            *((frames, digest) for digest, frames in layer.blocks.large.items() if digest not in self.files),
        ]
        for frames, what in sorted(parts, key=lambda part: part[0][0][0]):
            start = self.at
            words = tuple(self._place(layer.blob, frame) for frame in frames)
            if isinstance(what, str):
                self.files[what] = _Where(start=start, blocks=words)
            else:
                self.fragments[first + what] = (start, words[0])
        for digest, (number, offset) in layer.blocks.small.items():
            self.files.setdefault(digest, _Where(fragment=first + number, offset=offset))

    def _place(self, blob: Path, frame: Frame) -> int:
        """Append a frame and return its length as a squashfs encodes it."""
        at, length, plain = frame
        if not length:  # the blob is another SIF, which has it as it is
            self.pieces.append(Piece(blob=blob, at=at, length=plain))
            self.at += plain
            return plain | _RAW_DATA
        last = self.pieces[-1] if len(self.pieces) > self._first else None
        if length >= plain:  # readers reject a block that is longer than its content
            self.pieces.append(Piece(blob=blob, at=at, length=length, plain=plain))
        elif last and not last.plain and last.at + last.length == at:
            self.pieces[-1] = Piece(blob=blob, at=last.at, length=last.length + length)
        else:
            self.pieces.append(Piece(blob=blob, at=at, length=length))
        self.at += min(length, plain)
        return length if length < plain else plain | _RAW_DATA


class _Metadata:
    """A table in compressed blocks of 8 KiB."""

    def __init__(self) -> None:
        self.packed = bytearray()
        self.starts: list[int] = []  # of the blocks
        self._plain = bytearray()
        self._compressor = make_compressor()

    @property
    def place(self) -> tuple[int, int]:
        """Return the place of the next byte: the start of its block, and the offset in its decompressed content."""
        return len(self.packed), len(self._plain)

    def add(self, data: bytes) -> None:
        self._plain += data
        while len(self._plain) >= _META:
            self._pack(_META)

    def finish(self) -> bytes:
        if self._plain:
            self._pack(len(self._plain))
        return bytes(self.packed)

    def _pack(self, size: int) -> None:
        plain, self._plain = bytes(self._plain[:size]), self._plain[size:]
        packed = self._compressor.compress(plain)
        raw = len(packed) >= len(plain)
        self.starts.append(len(self.packed))
        self.packed += _SIZE.pack(len(plain) | _RAW_META) + plain if raw else _SIZE.pack(len(packed)) + packed


# A folder, and its names in their order.
_Folder: TypeAlias = tuple[Entry, list[tuple[bytes, Entry]]]


class _Tables:
    """The inodes and folders. A folder's files come first, then its list, then the folder; the root is last.

    They lie behind the contents, or behind a head that is `at` bytes behind that of the contents.
    """

    def __init__(self, entries: dict[str, Entry], contents: _Contents, *, at: int = 0) -> None:
        self._contents = contents
        self._head = at
        self._at = _SUPER.size if at else contents.at
        self._folders = _folders(entries)
        order = [entry for folder in self._folders for entry in _of(folder)]
        self._numbers = {entry.path: number for number, entry in enumerate(order, 1)}
        self._inodes, self._lists = _Metadata(), _Metadata()
        self._ids: dict[int, int] = {}
        self._xattrs: dict[tuple[tuple[str, bytes], ...], int] = {}
        self._places: dict[str, tuple[int, int]] = {}

    def lay_out(self, epoch: int) -> SquashfsLayout:
        for folder in self._folders:
            for entry in _of(folder)[:-1]:
                self._write(entry, *(self._file(entry) if entry.kind is Kind.FILE else self._link(entry)))
            place, size = self._list(folder)
            self._write(folder[0], *self._folder(folder, *place, size))
        tables = bytearray()
        starts: list[int] = []
        for part in (self._inodes, self._lists):
            starts.append(self._at + len(tables))
            tables += part.finish()
        fragments = (
            _FRAGMENT.pack(self._seen(start), length, 0) for start, length in self._contents.fragments
        )
        starts += [
            self._indexed(tables, fragments) if self._contents.fragments else _NONE_64,
            self._indexed(tables, map(_WORD.pack, self._ids)),
            self._write_xattrs(tables) if self._xattrs else _NONE_64,
        ]
        inodes, lists, fragments_at, ids, xattrs = starts
        used = self._at + len(tables)
        block, offset = self._places[""]
        head = _SUPER.pack(
            _MAGIC, len(self._numbers), epoch, BLOCK_SIZE, len(self._contents.fragments),
            ZSTD, BLOCK_SIZE.bit_length() - 1, 0 if self._xattrs else _NO_XATTRS, len(self._ids), *_VERSION,
            block << 16 | offset, used, ids, xattrs, inodes, lists, fragments_at, _NONE_64,
        )  # fmt: skip
        tables += bytes(-used % _PADDING)
        return SquashfsLayout(
            head=head,
            pieces=tuple(self._contents.pieces),
            tables=bytes(tables),
            size=self._at + len(tables),
        )

    def _seen(self, place: int) -> int:
        """Return the place of a content as seen from the head."""
        return place - self._head & _NONE_64

    def _indexed(self, tables: bytearray, records: Iterable[bytes], head: bytes = b"") -> int:
        """Add a table of metadata blocks and its index, which begins with `head`; return the place of the index."""
        part = _Metadata()
        for record in records:
            part.add(record)
        base = self._at + len(tables)
        tables += part.finish() + head
        tables += b"".join(_QUAD.pack(base + start) for start in part.starts)
        return base + len(part.packed)

    def _write(self, entry: Entry, kind: int, body: bytes) -> None:
        owner, group = (self._ids.setdefault(number, len(self._ids)) for number in (entry.uid, entry.gid))
        self._places[entry.path] = self._inodes.place
        self._inodes.add(
            _INODE.pack(kind, entry.mode, owner, group, entry.mtime, self._numbers[entry.path]) + body
        )

    def _file(self, entry: Entry) -> tuple[int, bytes]:
        where = self._contents.files[entry.sha256] if entry.size else _Where()
        blocks = struct.pack(f"<{len(where.blocks)}I", *where.blocks)
        start = self._seen(where.start) if where.blocks else 0
        if entry.xattrs or max(start, entry.size) > _NONE_32:
            xattr = self._xattr(entry)
            head = _LONG_FILE.pack(start, entry.size, 0, 1, where.fragment, where.offset, xattr)
            return _TYPES[Kind.FILE] + _LONG, head + blocks
        return _TYPES[Kind.FILE], _FILE.pack(start, where.fragment, where.offset, entry.size) + blocks

    def _link(self, entry: Entry) -> tuple[int, bytes]:
        if entry.kind is not Kind.LINK:
            raise BuildError(f"`{entry.path}` is a {entry.target}, and an environment has none")
        target = to_bytes(entry.target)
        body = _LINK.pack(1, len(target)) + target
        if entry.xattrs:
            return _TYPES[Kind.LINK] + _LONG, body + _WORD.pack(self._xattr(entry))
        return _TYPES[Kind.LINK], body

    def _folder(self, folder: _Folder, block: int, offset: int, size: int) -> tuple[int, bytes]:
        entry, links = folder[0], 2 + sum(inner.kind is Kind.DIRECTORY for _, inner in folder[1])
        # The root has no parent; its number is the one after the last.
        parent = self._numbers[entry.parent] if entry.path else len(self._numbers) + 1
        size += 3  # for `.` and `..`, which are not written
        if entry.xattrs or size > 0xFFFF:
            xattr = self._xattr(entry)
            return _TYPES[Kind.DIRECTORY] + _LONG, _LONG_FOLDER.pack(
                links, size, block, parent, 0, offset, xattr
            )
        return _TYPES[Kind.DIRECTORY], _FOLDER.pack(block, links, size, offset, parent)

    def _list(self, folder: _Folder) -> tuple[tuple[int, int], int]:
        """Write the list of a folder's names; return its place and size."""
        runs: list[list[tuple[bytes, Entry]]] = []
        for item in folder[1]:
            if runs and self._goes_with(runs[-1], item[1]):
                runs[-1].append(item)
            else:
                runs.append([item])
        place, size = self._lists.place, 0
        for run in runs:
            first = run[0][1]
            base = self._numbers[first.path]
            data = _LISTING.pack(len(run) - 1, self._places[first.path][0], base)
            for name, entry in run:
                delta, offset = self._numbers[entry.path] - base, self._places[entry.path][1]
                data += _NAME.pack(offset, delta, _TYPES[entry.kind], len(name) - 1) + name
            self._lists.add(data)
            size += len(data)
        return place, size

    def _goes_with(self, run: list[tuple[bytes, Entry]], entry: Entry) -> bool:
        """Whether a name fits under the header of the first of these."""
        first = run[0][1]
        delta = self._numbers[entry.path] - self._numbers[first.path]
        same = self._places[first.path][0] == self._places[entry.path][0]
        return same and len(run) < _MOST_LISTED and -0x8000 <= delta < 0x8000

    def _xattr(self, entry: Entry) -> int:
        return self._xattrs.setdefault(entry.xattrs, len(self._xattrs)) if entry.xattrs else _NONE_32

    def _write_xattrs(self, tables: bytearray) -> int:
        pairs = _Metadata()
        records: list[bytes] = []
        for xattrs in self._xattrs:
            (block, offset), size = pairs.place, 0
            for name, value in xattrs:
                data = _pair(name, value)
                pairs.add(data)
                size += len(data)
            records.append(_XATTRS.pack(block << 16 | offset, len(xattrs), size))
        pairs_at = self._at + len(tables)
        tables += pairs.finish()
        return self._indexed(tables, records, head=_XATTRS.pack(pairs_at, len(records), 0))


def _folders(entries: dict[str, Entry]) -> list[_Folder]:
    """Return every folder with its names, the last path first, so each comes after its subfolders."""
    inside: dict[str, list[tuple[bytes, Entry]]] = defaultdict(list)
    for entry in entries.values():
        if entry.path:
            inside[entry.parent].append((to_bytes(entry.path.rpartition("/")[2]), entry))
    for path, names in inside.items():
        names.sort(key=lambda item: item[0])
        if entries[path].kind is not Kind.DIRECTORY:
            raise BuildError(f"`{path}` is no folder, and `{names[0][1].path}` would be in it")
    folders = [entry for entry in entries.values() if entry.kind is Kind.DIRECTORY]
    return [(entry, inside[entry.path]) for entry in sorted(folders, key=path_order, reverse=True)]


def _of(folder: _Folder) -> list[Entry]:
    """Return the inodes of a folder in the order in which they are written."""
    return [*(entry for _, entry in folder[1] if entry.kind is not Kind.DIRECTORY), folder[0]]


def _pair(name: str, value: bytes) -> bytes:
    for number, prefix in enumerate(_XATTR_PREFIXES):
        if name.startswith(prefix):
            rest = to_bytes(name.removeprefix(prefix))
            return _XATTR_KEY.pack(number, len(rest)) + rest + _WORD.pack(len(value)) + value
    raise BuildError(f"a squashfs cannot hold the extended attribute `{name}`")
