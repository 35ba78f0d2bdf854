"""Read what lies near the start and the end of a large file in a remote wheel, and little between them.

The tables that the loader reads lie there: a linker writes them at the start, `patchelf` moves some to the end, where the list of
sections is. A file in a zip is one deflate stream. Its start can be inflated. So can its end, from a block that begins there
(RFC 1951): nothing says where, so each bit is tried. Such a block may repeat the 32 KiB before it, which are not known. It
is inflated after two different ones, and what differs is never returned.
"""

import contextlib
import io
import itertools
import struct
import zipfile
import zlib
from typing import IO, Final, cast

_PIECE: Final = 256 << 10  # compressed bytes by which the start grows
_HEAD: Final = 4 << 20  # compressed bytes of the longest start; torch's need 1.4 MB
_TAILS: Final = (3 << 19, 3 << 20, 6 << 20, 12 << 20)  # the same of an end, until it has what is read
_SEARCHED: Final = 1 << 20  # bytes in which a block must begin; most have 50 kB
_MOST: Final = 256 << 20  # bytes of a start or an end; those of torch have 80 MB
_TRIED: Final = 256  # bytes after which nearly every wrong place for a block is refused
_ATTEMPTS: Final = 50  # places for a block that may be inflated to the end; the first one mostly is
_RAW: Final = -15  # deflate without a header
_DYNAMIC: Final = 0b100  # the first three bits of a block with its own codes, which is not the last
_WINDOWS: Final = (bytes(1 << 15), b"\xff" * (1 << 15))


def open_ends(wheel: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
    """Open a file of a wheel. Reading raises ValueError for what is too far from both ends; a small file is there as a whole."""
    raw = wheel.fp
    if raw is None or info.compress_size <= _TAILS[1]:
        return io.BytesIO(wheel.read(info))
    if info.compress_type != zipfile.ZIP_DEFLATED:
        raise ValueError(f"`{info.filename}` is not packed by deflate")
    raw.seek(info.header_offset + 26)
    start = info.header_offset + 30 + sum(struct.unpack("<2H", raw.read(4)))
    return cast("IO[bytes]", _Ends(raw, start, start + info.compress_size, info.file_size))


class _Ends(io.RawIOBase):
    """A file whose first half is known as far as its start was inflated, and the other one as far as its end was."""

    def __init__(self, raw: IO[bytes], start: int, stop: int, size: int) -> None:
        self._raw, self._start, self._stop, self._size = raw, start, stop, size
        self._at = self._fed = 0
        self._head, self._inflater = b"", zlib.decompressobj(_RAW)
        self._ends: tuple[bytes, ...] = ()
        self._tails = iter(_TAILS)

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        start, stop = self._at, self._size if size < 0 else min(self._at + size, self._size)
        self._at = max(start, stop)
        if start < self._size // 2:
            while len(self._head) < stop <= _MOST and self._fed < _HEAD:
                self._raw.seek(self._start + self._fed)
                self._head += self._inflater.decompress(self._raw.read(_PIECE), _MOST)
                self._fed += _PIECE
            if len(self._head) >= stop:
                return self._head[start:stop]
        for tail in itertools.chain((0,), self._tails if start >= self._size // 2 else ()):
            if tail:
                self._raw.seek(max(self._stop - tail, self._start))
                self._ends = _inflate_end(self._raw.read(min(tail, self._stop - self._start)))
                if not self._ends:
                    break
            befores = {self._size - len(end) for end in self._ends}  # the bytes before an end are not known
            parts = {end[start - before : stop - before] for before in befores for end in self._ends}
            if len(parts) == 1 and start >= max(befores):
                return parts.pop()
        raise ValueError(f"bytes {start} to {stop} of {self._size} are too far from both ends")


def _inflate_end(data: bytes) -> tuple[bytes, ...]:
    """Inflate the end of a deflate stream from the first block that begins in it, after each window. Nothing if none is seen."""
    number = int.from_bytes(data, "little")
    shifted = tuple((number >> bits).to_bytes(len(data), "little") for bits in range(8))
    left = _ATTEMPTS
    for at, stream in itertools.product(range(min(len(data), _SEARCHED)), shifted):
        if stream[at] & 0b111 != _DYNAMIC:
            continue
        with contextlib.suppress(zlib.error):
            zlib.decompressobj(_RAW, zdict=_WINDOWS[0]).decompress(stream[at : at + _TRIED], _TRIED)
            left -= 1
            inflaters = [zlib.decompressobj(_RAW, zdict=window) for window in _WINDOWS]
            ends = tuple(inflater.decompress(stream[at:], _MOST) for inflater in inflaters)
            if all(
                inflater.eof and len(inflater.unused_data) <= 1 for inflater in inflaters
            ):  # bits were cut
                return ends
        if left == 0:
            break
    return ()
