"""Read a squashfs file system without mounting it, without root and without writing files.

`verify` needs digests of all contents with owners, modes, times and extended attributes, from an offset
within a SIF, on all cores. This module shares nothing with `envbuilder/artifacts/squashfs/writer.py`, not
even the layouts of the records, so a mistake in either shows. It also reads the output of mksquashfs.
PySquashfsImage and unsquashfs, which tests compare both with, lack extended attributes or digests, or write
files. The format is version 4.0, as the kernel's documentation describes it.

No number in the file is trusted: a read past a table, a folder in itself or a huge block is a ValueError, and so is more
than `envbuilder/core/budget.py` allows.
"""

import functools
import hashlib
import io
import itertools
import lzma
import os
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import IO, Final

import zstandard

from envbuilder.core.archive import BlockReader
from envbuilder.core.budget import PATH, Entries, most_unpacked, need_within
from envbuilder.layers.entry import Entry, Kind, from_bytes, path_order

_SUPER: Final = struct.Struct("<5I6H8Q")
_MAGIC: Final = 0x73717368
_NONE_32: Final = 0xFFFFFFFF
_NONE_64: Final = 0xFFFFFFFFFFFFFFFF
_META: Final = 8192  # bytes that a metadata block unpacks to at most
_RAW_META: Final = 0x8000  # set in a metadata block's length: stored as it is
_RAW_DATA: Final = 1 << 24  # the same for data blocks
_STORED: Final = _RAW_DATA - 1  # the part of a data block's length that counts its bytes on disk
_MOST_BLOCK: Final = 1 << 20
_MOST_XZ: Final = 256 << 20  # bytes of memory that a block may need to be unpacked
_FRAGMENTS: Final = 32  # shared blocks that are kept, for all threads together
_BUFFER: Final = 1 << 16  # bytes that a stream of a file reads at once
_JOB: Final = 32 << 20  # bytes of content that one task of the pool hashes, about

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
_XATTR_ELSEWHERE: Final = 0x100
_MOST_VALUE: Final = 64 << 10  # bytes of an attribute's value in Linux
# Bytes of one table, unpacked: 300,000 files have 20 MB of inodes. Every metadata block but the last is full.
_MOST_TABLE: Final = 256 << 20
_MOST_INDEXED: Final = 32 << 20  # the same of fragments, owners and sets of attributes, 16 bytes each
_WORD: Final = struct.Struct("<I")
_QUAD: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The place of a file's content: consecutive blocks, then a part of a shared block (the fragment)."""

    start: int
    blocks: tuple[int, ...]
    fragment: int  # its number, or _NONE_32
    offset: int  # within the fragment
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inode:
    entry: Entry
    content: Content | None = None
    listing: tuple[int, int, int] | None = None  # block, offset and size in the table of folders


class Squashfs:
    """The file system in an open file, which must stay open as long as it is read."""

    def __init__(self, stream: IO[bytes], *, offset: int = 0, size: int | None = None) -> None:
        self._descriptor = stream.fileno()
        self._offset = offset
        self._size = os.fstat(self._descriptor).st_size - offset if size is None else size
        head = _SUPER.unpack(self.read(0, _SUPER.size))
        magic, _, self.epoch, self.block_size, fragments, compressor, *_ = head
        ids, major, minor, root = head[8:12]
        used, ids_at, xattrs_at, inodes_at, folders_at, fragments_at, exports_at = head[12:]
        if magic != _MAGIC or (major, minor) != (4, 0):
            raise ValueError("it does not start as a squashfs 4.0")
        if not 4096 <= self.block_size <= _MOST_BLOCK:
            raise ValueError(f"blocks of {self.block_size} bytes")
        self._size = min(self._size, used)
        self.compressor = compressor
        self._unpack = _decompressor(compressor)
        after = [self._first(at) for at in (ids_at, exports_at, xattrs_at) if at != _NONE_64]
        after += [self._first(fragments_at)] if fragments else []
        self._root = root
        self._unpacked = 0  # bytes of all contents so far
        self._known: dict[int, _Inode] = {}  # by reference: a file may have many names
        self._inode_table = _Table(self, inodes_at, folders_at)
        self._folder_table = _Table(self, folders_at, min(after))
        self._ids = [number for (number,) in _WORD.iter_unpack(self._indexed(ids_at, ids * _WORD.size))]
        self._fragments = list(_FRAGMENT.iter_unpack(self._indexed(fragments_at, fragments * _FRAGMENT.size)))
        self.fragments = range(fragments)
        self._fragment = functools.lru_cache(_FRAGMENTS)(self._load_fragment)
        self._xattrs = self._read_xattrs(xattrs_at) if xattrs_at != _NONE_64 else []

    def read(self, at: int, size: int) -> bytes:
        """Read bytes of the file system; raises ValueError past its end."""
        if at + size > self._size:
            raise ValueError(f"bytes {at} to {at + size} lie behind its end")
        data = os.pread(self._descriptor, size, self._offset + at)
        while len(data) < size:
            more = os.pread(self._descriptor, size - len(data), self._offset + at + len(data))
            if not more:
                raise ValueError("the file is cut off")
            data += more
        return data

    def metadata(self, at: int) -> tuple[bytes, int]:
        """Return the decompressed metadata block at a place, and the place of the next."""
        (length,) = struct.unpack("<H", self.read(at, 2))
        size = length & (_RAW_META - 1)
        if size > _META:
            raise ValueError("a metadata block that is too long")
        data = self.read(at + 2, size)
        return (data if length & _RAW_META else self._unpack(data, _META)), at + 2 + size

    def entries(self, *, threads: int, known: Mapping[Content, str] | None = None) -> tuple[Entry, ...]:
        """Return every path with the digest of its content, sorted by path. Contents with a `known` digest are not read."""
        inodes, digests = self._inodes, dict(known or {})
        contents = {inode.content for inode in inodes if inode.content} - digests.keys()
        with ThreadPoolExecutor(max(1, threads), thread_name_prefix="squashfs") as pool:
            pairs = pool.map(
                lambda some: [(content, self._digest(content)) for content in some], portions(contents)
            )
            digests |= itertools.chain.from_iterable(pairs)
        entries = [
            replace(inode.entry, sha256=digests[inode.content]) if inode.content else inode.entry
            for inode in inodes
        ]
        return tuple(sorted(entries, key=path_order))

    def contents(self) -> dict[str, Content]:
        return {inode.entry.path: inode.content for inode in self._inodes if inode.content}

    def open(self, path: str) -> io.BufferedReader:
        """Open one file without reading the folders that it is not in; raises KeyError if there is no such file."""
        inode = self._inode("", self._root)
        for name in path.split("/"):
            children = dict(self._listed(*inode.listing)) if inode.listing else {}
            inode = self._inode(name, children[name])
        if inode.content is None:
            raise KeyError(path)
        return self.stream(inode.content)

    def blocks(self, content: Content) -> Iterator[tuple[int, int, bool]]:
        """Yield the blocks of a content of whole blocks: the place, the stored size, and whether it is packed."""
        at = content.start
        for length in content.blocks:
            yield at, length & _STORED, not length & _RAW_DATA
            at += length & _STORED

    def fragment(self, number: int) -> tuple[int, int, bool]:
        """Return the same of a block that small files share."""
        start, length, _ = self._fragments[number]
        return start, length & _STORED, not length & _RAW_DATA

    def stream(self, content: Content) -> io.BufferedReader:
        """Return a seekable stream of a file's content, which is unpacked only where it is read."""
        whole = self.block_size
        lengths = (length & _STORED for length in content.blocks)
        starts = tuple(itertools.accumulate(lengths, initial=content.start))

        def load(number: int) -> bytes:
            if number >= len(content.blocks):
                return self.tail(content)
            return self.block(
                starts[number], content.blocks[number], min(whole, content.size - number * whole)
            )

        return io.BufferedReader(BlockReader(load, size=content.size, block_size=whole), _BUFFER)

    def block(self, at: int, length: int, size: int) -> bytes:
        """Read one block of a file, `size` bytes decompressed. `at` and `length` are its place and stored size."""
        data = self._plain(at, length) if length & _STORED else bytes(size)
        if len(data) != size:
            raise ValueError("a file whose blocks do not add up to its size")
        return data

    def tail(self, content: Content) -> bytes:
        size = content.size % self.block_size if content.fragment != _NONE_32 else 0
        shared = self._fragment(content.fragment) if size else b""
        part = shared[content.offset : content.offset + size]
        if len(part) != size:
            raise ValueError("a file whose blocks do not add up to its size")
        return part

    def _load_fragment(self, number: int) -> bytes:
        start, length, _ = self._fragments[number]
        return self._plain(start, length)

    @functools.cached_property
    def _inodes(self) -> list[_Inode]:
        left, inodes = [("", self._root)], list[_Inode]()
        entries = Entries()
        seen: set[int] = set()  # folders: one that is met twice lies within itself, or is a second root
        while left:
            path, reference = left.pop()
            inode = self._inode(path, reference)
            entries.add(path, len(inode.entry.target))
            inodes.append(inode)
            if inode.listing:
                if reference in seen:
                    raise ValueError(f"the folder {path!r} is there twice")
                seen.add(reference)
                left += [
                    (f"{path}/{name}" if path else name, child)
                    for name, child in self._listed(*inode.listing)
                ]
        return inodes

    def _listed(self, block: int, offset: int, size: int) -> Iterator[tuple[str, int]]:
        """Yield the names and inode references of a folder."""
        table = self._folder_table
        at = table.place(block, offset)
        end = at + size - 3  # the size counts `.` and `..`, which are not written
        while at < end:
            count, inodes, _ = table.take(_LISTING, at)
            at += _LISTING.size
            for _ in range(count + 1):
                within, _, _, length = table.take(_NAME, at)
                name = table.bytes(at + _NAME.size, length + 1)
                if name in (b".", b"..") or b"/" in name or b"\0" in name:
                    raise ValueError(f"a file named {name!r}")
                yield from_bytes(name), inodes << 16 | within
                at += _NAME.size + length + 1

    def _inode(self, path: str, reference: int) -> _Inode:
        inode = self._known.get(reference)
        if inode is None:
            inode = self._known[reference] = self._read_inode(path, reference)
        if inode.entry.path == path:
            return inode
        return replace(inode, entry=replace(inode.entry, path=path))

    def _read_inode(self, path: str, reference: int) -> _Inode:
        table = self._inode_table
        at = table.place(reference >> 16, reference & 0xFFFF)
        number, mode, uid, gid, mtime, _ = table.take(_INODE, at)
        at += _INODE.size
        kind, size, target, xattrs = Kind.DIRECTORY, 0, "", _NONE_32
        content = listing = None
        match number:
            case 1:
                block, _, length, offset, _ = table.take(_FOLDER, at)
                listing = (block, offset, length)
            case 8:
                _, length, block, _, _, offset, xattrs = table.take(_LONG_FOLDER, at)
                listing = (block, offset, length)
            case 2:
                start, fragment, offset, size = table.take(_FILE, at)
                kind, content = Kind.FILE, self._content(at + _FILE.size, start, fragment, offset, size)
            case 9:
                start, size, _, _, fragment, offset, xattrs = table.take(_LONG_FILE, at)
                kind, content = Kind.FILE, self._content(at + _LONG_FILE.size, start, fragment, offset, size)
            case 3 | 10:
                _, length = table.take(_LINK, at)
                need_within(f"bytes of the target of {path!r}", length, PATH)
                kind, target = Kind.LINK, from_bytes(table.bytes(at + _LINK.size, length))
                if number == 10:
                    (xattrs,) = table.take(_WORD, at + _LINK.size + length)
            case 4 | 5 | 6 | 7 | 11 | 12 | 13 | 14:
                kind, (target, xattrs) = Kind.SPECIAL, self._special(number, at)
            case _:
                raise ValueError(f"{path!r} is of no kind that is known")
        entry = Entry(
            path=path, kind=kind, mode=mode, uid=self._ids[uid], gid=self._ids[gid], mtime=mtime, size=size,
            target=target, xattrs=self._xattrs[xattrs] if xattrs != _NONE_32 else (),
        )  # fmt: skip
        return _Inode(entry=entry, content=content, listing=listing)

    def _special(self, number: int, at: int) -> tuple[str, int]:
        """Return the name of a device, fifo or socket, and the number of an extended kind's attributes."""
        name = ("block", "char", "fifo", "socket")[(number - 4) % 7]
        at += _WORD.size  # how many names it has
        if name in ("block", "char"):
            (device,) = self._inode_table.take(_WORD, at)
            name += f" {(device >> 8) & 0xFFF}:{(device & 0xFF) | ((device >> 12) & 0xFFF00)}"
            at += _WORD.size
        return name, self._inode_table.take(_WORD, at)[0] if number > 10 else _NONE_32

    def _content(self, at: int, start: int, fragment: int, offset: int, size: int) -> Content:
        """Read the place of a file's content, whose list of blocks is at `at` in the inode table."""
        self._unpacked += size
        need_within("bytes that it unpacks to", self._unpacked, most_unpacked(self._size))
        whole, rest = divmod(size, self.block_size)
        count = whole + (1 if rest and fragment == _NONE_32 else 0)
        blocks = struct.unpack(f"<{count}I", self._inode_table.bytes(at, count * _WORD.size))
        if not rest:
            fragment = _NONE_32
        return Content(start=start, blocks=blocks, fragment=fragment, offset=offset, size=size)

    def _digest(self, content: Content) -> str:
        digest = hashlib.sha256()
        at, left = content.start, content.size
        for length in content.blocks:
            digest.update(self.block(at, length, min(left, self.block_size)))
            at += length & _STORED
            left -= self.block_size
        digest.update(self.tail(content))
        return digest.hexdigest()

    def _plain(self, at: int, length: int) -> bytes:
        need_within("bytes of a block", length & _STORED, self.block_size)
        stored = self.read(at, length & _STORED)
        return stored if length & _RAW_DATA else self._unpack(stored, self.block_size)

    def _read_xattrs(self, at: int) -> list[tuple[tuple[str, bytes], ...]]:
        pairs_at, count, _ = _XATTRS.unpack(self.read(at, _XATTRS.size))
        table = _Table(self, pairs_at, self._first(at + _XATTRS.size))
        numbers = self._indexed(at + _XATTRS.size, count * _XATTRS.size)
        sets = []
        size = 0
        for reference, pairs, _ in _XATTRS.iter_unpack(numbers):
            place = table.place(reference >> 16, reference & 0xFFFF)
            read = []
            for _ in range(pairs):
                kind, length = table.take(_XATTR_KEY, place)
                name = _XATTR_PREFIXES[kind & 0xFF] + from_bytes(table.bytes(place + _XATTR_KEY.size, length))
                place += _XATTR_KEY.size + length
                value, after = _value(table, place)
                if kind & _XATTR_ELSEWHERE:
                    (elsewhere,) = _QUAD.unpack(value)
                    value, _ = _value(table, table.place(elsewhere >> 16, elsewhere & 0xFFFF))
                size += _XATTR_KEY.size + length + len(value)
                need_within("bytes of attributes", size, _MOST_INDEXED)
                read.append((name, value))
                place = after
            sets.append(tuple(sorted(read)))
        return sets

    def _first(self, at: int) -> int:
        """Return the place of the first block of an indexed table, before its index."""
        (first,) = _QUAD.unpack(self.read(at, _QUAD.size))
        return int(first)

    def _indexed(self, at: int, size: int) -> bytes:
        """Read a table of `size` bytes whose metadata blocks are listed at a place."""
        need_within("bytes of a table", size, _MOST_INDEXED)
        count = -(-size // _META)
        places = struct.unpack(f"<{count}Q", self.read(at, count * _QUAD.size)) if count else ()
        data = b"".join(self.metadata(place)[0] for place in places)
        if len(data) < size:
            raise ValueError("a table that is too short")
        return data[:size]


class SquashfsTree:
    """An open file system with its entries, and their contents if these are known. Files are seekable streams, unpacked where read."""

    def __init__(
        self, system: Squashfs, entries: tuple[Entry, ...], contents: Mapping[str, Content] | None = None
    ) -> None:
        self.entries = entries
        self._system = system
        self._contents = contents or system.contents()

    def open(self, path: str) -> io.BufferedReader:
        return self._system.stream(self._contents[path])


class _Table:
    """Metadata blocks from one place to another, unpacked and joined; places within are (block, offset) pairs."""

    def __init__(self, image: Squashfs, start: int, end: int) -> None:
        self._starts: dict[int, int] = {}
        data = bytearray()
        at = start
        while at < end:
            need_within("metadata blocks of a table", len(self._starts), _MOST_TABLE // _META)
            self._starts[at - start] = len(data)
            block, at = image.metadata(at)
            data += block
        self._data = bytes(data)

    def place(self, block: int, offset: int) -> int:
        try:
            return self._starts[block] + offset
        except KeyError:
            raise ValueError(f"there is no metadata block at {block}") from None

    def take(self, form: struct.Struct, at: int) -> tuple[int, ...]:
        return form.unpack(self.bytes(at, form.size))

    def bytes(self, at: int, size: int) -> bytes:
        data = self._data[at : at + size]
        if len(data) != size:
            raise ValueError("a table that is too short")
        return data


def _value(table: _Table, at: int) -> tuple[bytes, int]:
    (size,) = table.take(_WORD, at)
    need_within("bytes of an attribute", size, _MOST_VALUE)
    return table.bytes(at + _WORD.size, size), at + _WORD.size + size


def _place(content: Content) -> tuple[int, int, int]:
    """Sort contents so that neighbors share fragments and reads go forward."""
    return content.fragment if not content.blocks else -1, content.start, content.offset


def portions(contents: Collection[Content]) -> list[list[Content]]:
    """Split contents into portions of work for the threads of a pool, in the order of their places."""
    ordered = sorted(contents, key=_place)
    ends = itertools.accumulate(content.size for content in ordered)
    jobs = itertools.groupby(zip(ends, ordered, strict=True), key=lambda pair: pair[0] // _JOB)
    return [[content for _, content in job] for _, job in jobs]


def _decompressor(number: int) -> Callable[[bytes, int], bytes]:
    match number:
        case 1:
            return lambda data, most: _unpack(zlib.decompressobj(), data, most)
        case 4:
            return lambda data, most: _unpack(lzma.LZMADecompressor(memlimit=_MOST_XZ), data, most)
        case 6:
            return _unzstd
        case _:
            raise ValueError(f"its compression (number {number}) is not one that envbuilder reads")


def _unpack(stream: "zlib._Decompress | lzma.LZMADecompressor", data: bytes, most: int) -> bytes:
    try:
        plain = stream.decompress(data, most)
    except (zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"a block that cannot be unpacked: {error}") from error
    if not stream.eof:
        raise ValueError("a block that unpacks to more than it may")
    return plain


def _unzstd(data: bytes, most: int) -> bytes:
    try:
        if zstandard.frame_content_size(data) > most:
            raise ValueError("a block that unpacks to more than it may")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=most)
    except zstandard.ZstdError as error:
        raise ValueError(f"a block that cannot be unpacked: {error}") from error
