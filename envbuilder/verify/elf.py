"""Open ELF files with pyelftools, which is imported for the first one: a command that reads no library does without."""

import io
from typing import IO, TYPE_CHECKING, Final, cast

from envbuilder.core.budget import need_within

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

# What the tables of one file may take. Those of torch's largest library have 2 MB and 60,000 reads.
_MOST_BYTES: Final = 64 << 20
_MOST_READS: Final = 1_000_000
_MACHINE: Final = 18  # where e_machine begins, elf(5)


def open_elf(stream: IO[bytes]) -> "ELFFile":
    """Return the file; raises ELFError (`elftools.common.exceptions`) for one that is damaged, or no ELF file.

    Reading its tables raises ValueError where a name has no end, or tables lead to each other without end.
    """
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415 - it takes 0.05 s, and `report --help` reads no library

    return ELFFile(cast("IO[bytes]", _Metered(stream)))


class _Metered(io.RawIOBase):
    """A file whose readers may read a bounded amount."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._bytes = self._reads = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def read(self, size: int = -1, /) -> bytes:
        if size < 0 or size > _MOST_BYTES:
            raise ValueError(f"a table of {size} bytes")
        data = self._stream.read(size)
        self._bytes += len(data)
        self._reads += 1
        if self._bytes > _MOST_BYTES or self._reads > _MOST_READS:
            need_within("bytes of its tables", self._bytes, _MOST_BYTES)
            need_within("reads of its tables", self._reads, _MOST_READS)
        return data


def machine_of(elf: "ELFFile") -> int:
    """Return the number of the file's processor, e_machine, also where pyelftools has a name for it."""
    elf.stream.seek(_MACHINE)
    return int.from_bytes(elf.stream.read(2), "little" if elf.little_endian else "big")
