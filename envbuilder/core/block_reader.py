"""A file object over numbered blocks that are loaded on demand."""

import io
from collections.abc import Callable
from typing import Final

KEPT: Final = 8  # blocks; readers of zip and ELF files go back and forth between tables and contents


class BlockReader(io.RawIOBase):
    """Reads and seeks in `size` bytes; `load` gives block `number`, whose length is `block_size` but for the last.

    Raises ValueError where a block is shorter than it must be, and whatever `load` raises.
    """

    def __init__(self, load: Callable[[int], bytes], *, size: int, block_size: int) -> None:
        self._load = load
        self._size = size
        self._block_size = block_size
        self._at = 0
        self._kept: dict[int, bytes] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def readinto(self, buffer: "memoryview | bytearray", /) -> int:  # type: ignore[override]  # what BufferedReader gives
        if self._at >= self._size:
            return 0
        number, offset = divmod(self._at, self._block_size)
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
            self._kept[number] = self._load(number)
        return self._kept[number]
