"""The index of a SIF's parts: what `pull` must know to fetch only those that are missing.

The index is made from the files alone, not while a SIF is written: SIFs of any age have one, also
after they were signed, and nothing in them changes. A part that is in a layer of the image has its
place there, because the SIF holds the bytes of the layers.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

import zstandard

from envbuilder.artifacts.parts import cut
from envbuilder.core.cache import Sha256, sha256_bytes
from envbuilder.core.models import adapter

MOST: Final = 64 << 20  # bytes of an index that a reader accepts, unpacked
LONG: Final = 1 << 18  # bytes of a part that is in no layer because it does not compress
NOWHERE: Final = -1


class Part(NamedTuple):
    size: int
    digest: str
    blob: int = NOWHERE  # the number of the blob that has it, and the place there
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsIndex:
    """The parts of a SIF in their order, and the blobs that hold some of them."""

    parts: tuple[Part, ...]
    blobs: tuple[Sha256, ...] = ()
    version: Literal[1] = 1

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def rest(self) -> int:
        """The bytes that are in no blob."""
        return sum(part.size for part in self.parts if part.blob == NOWHERE)

    def with_rest(self, sif: Path) -> tuple["PartsIndex", list[bytes]]:
        """Return the index with more blobs, and those: the parts of the SIF that no layer has.

        A SIF has blocks that do not compress as they are, and a layer has them as frames. Such long
        parts are blobs of their own, which stay the same when something else is edited.
        """
        parts, short, long = list[Part](), bytearray(), list[bytearray]()
        first, goes_on = len(self.blobs), False  # whether the part before is in the last of `long`
        with sif.open("rb") as stream:
            for part in self.parts:
                is_long = part.blob == NOWHERE and part.size >= LONG
                if part.blob != NOWHERE:
                    parts.append(part)
                    stream.seek(part.size, os.SEEK_CUR)
                else:
                    if is_long and not goes_on:
                        long.append(bytearray())
                    out, number = (long[-1], first + len(long)) if is_long else (short, first)
                    parts.append(part._replace(blob=number, at=len(out)))
                    out += stream.read(part.size)
                goes_on = is_long
        contents = [bytes(one) for one in (short, *long)]
        digests = (sha256_bytes(content) for content in contents)
        return PartsIndex(parts=tuple(parts), blobs=(*self.blobs, *digests)), contents

    def to_bytes(self) -> bytes:
        text = json.dumps(asdict(self), separators=(",", ":"))
        return zstandard.ZstdCompressor().compress(text.encode())


def make_index(sif: Path, layers: Mapping[Sha256, Path]) -> PartsIndex:
    """Read the SIF and the layers of its image, which may be none."""
    places: dict[tuple[int, str], tuple[int, int]] = {}
    for number, path in enumerate(layers.values()):
        with path.open("rb") as stream:
            for at, size, digest in cut(stream):
                places.setdefault((size, digest), (number, at))
    with sif.open("rb") as stream:
        parts = tuple(
            Part(size, digest, *places.get((size, digest), (NOWHERE, 0))) for _, size, digest in cut(stream)
        )
    return PartsIndex(parts=parts, blobs=tuple(layers))


def parse_index(content: bytes) -> PartsIndex:
    """Raises ValueError for anything that is no index."""
    try:
        text = zstandard.ZstdDecompressor().stream_reader(content).read(MOST)
        index: PartsIndex = adapter(PartsIndex).validate_json(text)
    except (zstandard.ZstdError, ValueError) as error:
        raise ValueError(f"not an index of a SIF's parts: {error}") from error
    for part in index.parts:
        if not (0 < part.size <= MOST and part.at >= 0 and NOWHERE <= part.blob < len(index.blobs)):
            raise ValueError(f"not an index of a SIF's parts: it has the part {part}")
    return index
