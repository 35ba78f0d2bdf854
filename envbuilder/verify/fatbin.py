"""Read the GPU architectures of the code in a shared library, without a GPU or NVIDIA's tools.

nvcc writes one or more containers into the sections `.nv_fatbin` and `__nv_relfatbin`: a head of 16
bytes, then images one after the other, each with a head of its own that names kind and
architecture. Only the heads are read, so compressed images need no unpacking. The format is only
partly documented. This reader agrees with cuobjdump on the output of CUDA 11.2 to 13.2.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Final

from elftools.common.exceptions import ELFError

from envbuilder.core.budget import need_within
from envbuilder.verify.elf import open_elf

SECTIONS: Final = (".nv_fatbin", "__nv_relfatbin")
_CONTAINER: Final = struct.Struct("<I2HQ")  # magic, version, bytes of this head, bytes of the images
_MAGIC: Final = 0xBA55ED50
# Kind, version, bytes of this head and of the image, architecture, flags.
_IMAGE: Final = struct.Struct("<2HIQ12xI8xQ")
_ALIGNMENT: Final = 8  # of a container: zeros fill the gap
_GAP: Final = 1 << 20  # bytes of zeros that are passed over at once
_MOST_IMAGES: Final = 1_000_000
_MOST_SECTIONS: Final = 10_000  # a damaged file may claim any number
_EXACT: Final = 1 << 20  # sm_90a: runs on this architecture alone
_FAMILY: Final = 1 << 21  # sm_100f: runs on its family


class CodeKind(StrEnum):
    """What an image holds; the value is how NVIDIA's tools begin the name of its target."""

    CUBIN = "sm"  # machine code
    PTX = "compute"  # text that the driver compiles for newer GPUs
    LTO = "lto"  # half compiled: no GPU runs it before nvlink or nvJitLink has finished it


_KINDS: Final = {1: CodeKind.PTX, 2: CodeKind.CUBIN, 8: CodeKind.LTO}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class GpuCode:
    """One image of a fat binary."""

    kind: CodeKind
    capability: str  # 9.0a, as TORCH_CUDA_ARCH_LIST and the tables say it

    @property
    def target(self) -> str:
        """The compiler's name: sm_90a, compute_90a."""
        return f"{self.kind}_{self.capability.replace('.', '')}"


def read_gpu_code(stream: IO[bytes]) -> tuple[GpuCode, ...]:
    """Return the GPU code of an ELF file, each architecture once, sorted.

    Raises ValueError for another file, or for a fat binary of an unknown format.
    """
    found: set[GpuCode] = set()
    try:
        elf = open_elf(stream)
        if elf.num_sections() > _MOST_SECTIONS:
            raise ValueError(f"{elf.num_sections()} sections are no library's")
        for section in map(elf.get_section_by_name, SECTIONS):
            if section is not None and section["sh_type"] != "SHT_NOBITS":
                found.update(_images(stream, section["sh_offset"], section["sh_offset"] + section["sh_size"]))
    except (
        ELFError, OSError, LookupError, AttributeError, TypeError, AssertionError, ArithmeticError, RecursionError, struct.error,
    ) as error:  # fmt: skip
        raise ValueError(f"it is no ELF file that can be read: {error}") from error
    return tuple(sorted(found))


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
            yield GpuCode(kind=_KINDS[kind], capability=f"{architecture // 10}.{architecture % 10}{suffix}")
            at += size + content
            count += 1
            need_within("images in a fat binary", count, _MOST_IMAGES)


def _after_zeros(stream: IO[bytes], at: int, end: int) -> int:
    """Return the first multiple of the alignment from `at` on where something stands, or the end."""
    while at < end:
        gap = _read(stream, at, _GAP, end)
        if rest := gap.lstrip(b"\0"):
            return at + (len(gap) - len(rest)) // _ALIGNMENT * _ALIGNMENT
        at += _GAP
    return end


def _read(stream: IO[bytes], at: int, size: int, end: int) -> bytes:
    """Read bytes of the file. Bytes after `end` are zeros."""
    stream.seek(at, os.SEEK_SET)
    data = stream.read(min(size, end - at))
    if len(data) < min(size, end - at):
        raise ValueError(f"byte {at}: the file is cut off")
    return data.ljust(size, b"\0")
