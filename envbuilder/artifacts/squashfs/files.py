"""Read files of a squashfs as seekable streams. Only the blocks that are read are decompressed."""

import io
import itertools
from typing import IO, Final

from envbuilder.artifacts.squashfs.reader import Squashfs
from envbuilder.core.block_reader import BlockReader
from envbuilder.layers.entry import Entry

STORED: Final = (1 << 24) - 1  # the part of a block's length that counts its bytes on disk
BUFFER: Final = 1 << 16


class SquashfsTree:
    """An open file system with its entries."""

    def __init__(self, system: Squashfs, entries: tuple[Entry, ...]) -> None:
        self.entries = entries
        self._system = system
        self._contents = system.contents()

    def open(self, path: str) -> IO[bytes]:
        content = self._contents[path]
        starts = tuple(
            itertools.accumulate((length & STORED for length in content.blocks), initial=content.start)
        )
        whole = self._system.block_size

        def load(number: int) -> bytes:
            if number >= len(content.blocks):
                return self._system.tail(content)
            size = min(whole, content.size - number * whole)
            return self._system.block(starts[number], content.blocks[number], size)

        return io.BufferedReader(BlockReader(load, size=content.size, block_size=whole), BUFFER)
