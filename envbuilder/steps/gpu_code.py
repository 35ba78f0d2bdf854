"""Read the GPU architectures of the code in a shared library, without a GPU or NVIDIA's tools.

nvcc writes one or more containers into the sections `.nv_fatbin` and `__nv_relfatbin`: a head of 16
bytes, then images one after the other, each with a head of its own that names kind and
architecture. Only the heads are read, so compressed images need no unpacking. The format is only
partly documented. This reader agrees with cuobjdump on the output of CUDA 11.2 to 13.2.

`extension.py` reads with it what it compiled, and envbuilder what an image holds.
"""

from __future__ import annotations

import os
import struct
from typing import IO, Iterator, NamedTuple

SECTIONS = (b".nv_fatbin\0", b"__nv_relfatbin\0")
# Machine code; text that the driver compiles; what nvlink has to finish.
CUBIN, PTX, LTO = ("sm", "compute", "lto")
_KINDS = {1: PTX, 2: CUBIN, 8: LTO}
# Magic, then of the table of sections: place, entry size, number, that of the names.
_ELF = struct.Struct("<16s24xQ10x3H")
_PLAIN = b"\x7fELF\x02\x01"  # of 64 bits, little-endian, as all hosts of GPUs
_SECTION = struct.Struct("<2I16x2Q24x")  # name, kind, place, size
_NO_BITS = 8
_CONTAINER = struct.Struct("<I2HQ")  # magic, version, bytes of this head, bytes of the images
_MAGIC = 0xBA55ED50
# Kind, version, bytes of this head and of the image, architecture, flags.
_IMAGE = struct.Struct("<2HIQ12xI8xQ")
_ALIGNMENT = 8  # of a container: zeros fill the gap
_GAP = 1 << 20  # bytes of zeros that are passed over at once
_MOST_IMAGES = 1_000_000
_MOST_SECTIONS = 10_000  # a damaged file may claim any number
_EXACT = 1 << 20  # sm_90a: runs on this architecture alone
_FAMILY = 1 << 21  # sm_100f: runs on its family


class GpuCode(NamedTuple):
    """One image of a fat binary."""

    kind: str  # CUBIN, PTX or LTO: how NVIDIA's tools begin the name of the target
    capability: str  # 9.0a, as TORCH_CUDA_ARCH_LIST and the tables say it

    @property
    def target(self) -> str:
        """The compiler's name: sm_90a, compute_90a."""
        return self.kind + "_" + self.capability.replace(".", "")


def read_gpu_code(stream: IO[bytes]) -> tuple[GpuCode, ...]:
    """Return the GPU code of an ELF file, each architecture once, sorted.

    Raises ValueError for another file, or for a fat binary of an unknown format.
    """
    try:
        places = list(_sections(stream))
    except (OSError, ArithmeticError, struct.error) as error:
        raise ValueError(f"it is no ELF file that can be read: {error}") from error
    return tuple(sorted({code for at, end in places for code in _images(stream, at, end)}))


def _sections(stream: IO[bytes]) -> Iterator[tuple[int, int]]:
    """Yield where each section with GPU code begins and ends. A file of 32 bits has none."""
    ident, table, entry, count, names = _ELF.unpack(_exactly(stream, 0, _ELF.size))
    if not ident.startswith(_PLAIN[:4]):
        raise ValueError("it is no ELF file that can be read: another magic number")
    if not ident.startswith(_PLAIN):
        return
    if count > _MOST_SECTIONS:
        raise ValueError(f"{count} sections are no library's")
    if count and (entry < _SECTION.size or names >= count):
        raise ValueError("it is no ELF file that can be read: its table of sections is damaged")
    sections = [
        _SECTION.unpack(_exactly(stream, table + number * entry, _SECTION.size)) for number in range(count)
    ]
    for name, kind, at, size in sections:
        stream.seek(sections[names][2] + name)
        if stream.read(max(map(len, SECTIONS))).startswith(SECTIONS) and kind != _NO_BITS:
            yield at, at + size


def _images(stream: IO[bytes], at: int, end: int) -> Iterator[GpuCode]:
    """Yield the images of the containers in a section."""
    count = 0
    while at < end:
        head = _read(stream, at, _CONTAINER.size, end)
        if not any(head[:_ALIGNMENT]):
            at = _after_zeros(stream, at, end)
            continue
        magic, version, size, content = _CONTAINER.unpack(head)
        if magic != _MAGIC or version != 1 or size < _CONTAINER.size:
            raise ValueError(f"byte {at}: expected a fat binary of version 1")
        at += size
        after = at + content
        if after > end:
            raise ValueError(f"byte {at}: the fat binary is cut off")
        while at < after:
            kind, _, size, content, architecture, flags = _IMAGE.unpack(_read(stream, at, _IMAGE.size, after))
            if kind not in _KINDS or size < _IMAGE.size or at + size + content > after:
                raise ValueError(f"byte {at}: expected the head of an image, found kind {kind}")
            suffix = "a" if flags & _EXACT else "f" if flags & _FAMILY else ""
            yield GpuCode(_KINDS[kind], f"{architecture // 10}.{architecture % 10}{suffix}")
            at += size + content
            count += 1
            if count > _MOST_IMAGES:
                raise ValueError(f"byte {at}: more than {_MOST_IMAGES} images")


def _after_zeros(stream: IO[bytes], at: int, end: int) -> int:
    """Return the first multiple of the alignment from `at` on where something stands, or the end."""
    while at < end:
        gap = _read(stream, at, _GAP, end)
        rest = gap.lstrip(b"\0")
        if rest:
            return at + (len(gap) - len(rest)) // _ALIGNMENT * _ALIGNMENT
        at += _GAP
    return end


def _read(stream: IO[bytes], at: int, size: int, end: int) -> bytes:
    """Read bytes of the file. Bytes after `end` are zeros."""
    return _exactly(stream, at, min(size, end - at)).ljust(size, b"\0")


def _exactly(stream: IO[bytes], at: int, size: int) -> bytes:
    stream.seek(at, os.SEEK_SET)
    data = stream.read(size)
    if len(data) < size:
        raise ValueError(f"byte {at}: it is no ELF file that is whole, but cut off")
    return data
