"""The files of a squashfs as streams that can be sought in: only the blocks that are asked for are unpacked."""

import io
import itertools
from typing import IO, Final

from envbuilder.entry import Entry
from envbuilder.squashfs import Content, Squashfs

STORED: Final = (1 << 24) - 1  # the part of a block's length that counts its bytes on disk
KEPT: Final = 4  # blocks; readers of ELF files go back and forth between head, sections and strings
BUFFER: Final = 1 << 16


class SquashfsTree:
    """An open file system with the entries that were read from it."""

    def __init__(self, system: Squashfs, entries: tuple[Entry, ...]) -> None:
        self.entries = entries
        self._system = system
        self._contents = system.contents()

    def open(self, path: str) -> IO[bytes]:
        return io.BufferedReader(_File(self._system, self._contents[path]), BUFFER)


class _File(io.RawIOBase):
    def __init__(self, system: Squashfs, content: Content) -> None:
        self._system = system
        self._content = content
        self._starts = tuple(
            itertools.accumulate((length & STORED for length in content.blocks), initial=content.start)
        )
        self._at = 0
        self._kept: dict[int, bytes] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._content.size}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def readinto(self, buffer: "memoryview | bytearray", /) -> int:  # type: ignore[override]  # what BufferedReader gives
        if self._at >= self._content.size:
            return 0
        number, offset = divmod(self._at, self._system.block_size)
        part = self._block(number)[offset : offset + len(buffer)]
        if not part:
            raise ValueError("a file whose blocks do not add up to its size")
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _block(self, number: int) -> bytes:
        if number not in self._kept:
            if len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[number] = self._unpacked(number)
        return self._kept[number]

    def _unpacked(self, number: int) -> bytes:
        blocks = self._content.blocks
        if number >= len(blocks):
            return self._system.tail(self._content)
        size = min(self._system.block_size, self._content.size - number * self._system.block_size)
        return self._system.block(self._starts[number], blocks[number], size)
