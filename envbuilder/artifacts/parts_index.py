"""The index of a SIF's parts: what `pull` must know to fetch only those that are missing.

The index is made from the files alone, not while a SIF is written: SIFs of any age have one, also
after they were signed, and nothing in them changes. A part that is in a layer of the image has its
place there, because the SIF holds the bytes of the layers: a frame of zstd as it is, or the content
of a frame that did not compress.
"""

import json
import mmap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import zstandard

from envbuilder.artifacts.parts import FRAME, cut, digest
from envbuilder.core.cache import Sha256, sha256_bytes
from envbuilder.core.models import adapter

MOST: Final = 64 << 20  # bytes of an index that a reader accepts, unpacked
GAP: Final = 64 << 10  # bytes between two pieces of a part, which are fetched with them
NOWHERE: Final = -1
_HEADS: Final = {0x20: 6, 0x60: 7, 0xA0: 9}  # bytes of a frame's header by its flags, as the layers have them
_RAW: Final = 0  # the type of a block that is stored as it is
_ONE_BYTE: Final = 1  # the type of a block that repeats one byte
_KEY: Final = 64  # first bytes by which a frame is looked for in a SIF

Pieces: TypeAlias = tuple[tuple[int, int], ...]  # place and size of each, in their order


class Part(NamedTuple):
    size: int
    digest: str
    blob: int = NOWHERE  # the number of the blob that has it, and its pieces there
    pieces: Pieces = ()


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

    def with_rest(self, sif: Path) -> tuple["PartsIndex", bytes]:
        """Return the index with one more blob, and that: the parts of the SIF that no layer has."""
        parts, rest, at = list[Part](), bytearray(), 0
        with sif.open("rb") as stream:
            for part in self.parts:
                if part.blob == NOWHERE:
                    stream.seek(at)
                    parts.append(part._replace(blob=len(self.blobs), pieces=((len(rest), part.size),)))
                    rest += stream.read(part.size)
                else:
                    parts.append(part)
                at += part.size
        content = bytes(rest)
        return PartsIndex(parts=tuple(parts), blobs=(*self.blobs, sha256_bytes(content))), content

    def to_bytes(self) -> bytes:
        text = json.dumps(asdict(self), separators=(",", ":"))
        return zstandard.ZstdCompressor().compress(text.encode())


def make_index(sif: Path, layers: Mapping[Sha256, Path]) -> PartsIndex:
    """Read the SIF and the layers of its image, which may be none."""
    frames = _Frames(layers.values())
    with sif.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        parts, strays = list[Part](), list[tuple[int, Part]]()
        for at, size, name in cut(stream):
            if place := frames.places.get((size, name)):
                parts += _find_pieces(frames, content, strays)
                strays.clear()
                parts.append(Part(size, name, *place))
            else:
                strays.append((at, Part(size, name)))
        parts += _find_pieces(frames, content, strays)
    return PartsIndex(parts=tuple(parts), blobs=tuple(layers))


def parse_index(content: bytes) -> PartsIndex:
    """Raises ValueError for anything that is no index."""
    try:
        text = zstandard.ZstdDecompressor().stream_reader(content).read(MOST)
        index: PartsIndex = adapter(PartsIndex).validate_json(text)
    except (zstandard.ZstdError, ValueError) as error:
        raise ValueError(f"not an index of a SIF's parts: {error}") from error
    for part in index.parts:
        have = part.blob == NOWHERE or _are_whole(part)
        if not (have and 0 < part.size <= MOST and NOWHERE <= part.blob < len(index.blobs)):
            raise ValueError(f"not an index of a SIF's parts: it has the part {part}")
    return index


class _Frames:
    """The frames of layers, each as a SIF has it: unchanged, or its content if that is not longer."""

    def __init__(self, layers: Iterable[Path]) -> None:
        self.places: dict[tuple[int, str], tuple[int, Pieces]] = {}  # by size and digest
        self._first: dict[bytes, set[tuple[int, str]]] = defaultdict(set)  # the same, by the first bytes
        for number, path in enumerate(layers):
            with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as layer:
                for pieces in _cut_layer(layer):
                    data = b"".join(layer[at : at + size] for at, size in pieces)
                    key = len(data), digest(data)
                    self.places.setdefault(key, (number, pieces))
                    self._first[data[:_KEY]].add(key)

    def align(
        self, sif: mmap.mmap, strays: Sequence[tuple[int, Part]]
    ) -> Iterator[tuple[int, int, int, int]]:
        """Yield the place in the SIF, size, blob and place there of each piece of consecutive parts.

        Nothing in a SIF shows where a content begins that did not compress. It follows a known frame.
        """
        at, last = 0, strays[-1]
        for start, _ in strays:
            at = max(at, start)
            while at < last[0] + last[1].size and (found := self._find(sif, at)):
                blob, pieces = found
                for place, size in pieces:
                    yield at, size, blob, place
                    at += size

    def _find(self, sif: mmap.mmap, at: int) -> tuple[int, Pieces] | None:
        for size, name in self._first.get(sif[at : at + _KEY], ()):
            if digest(sif[at : at + size]) == name:
                return self.places[size, name]
        return None


def _cut_layer(layer: mmap.mmap) -> Iterator[Pieces]:
    """Yield the pieces of each frame of a layer of ours that a SIF has (RFC 8878, 3.1.1); of another layer nothing."""
    start = 0
    while layer[start : start + 4] == FRAME and (head := _HEADS.get(layer[start + 4])):
        at, is_last, raw = start + head, False, list[tuple[int, int]]()
        is_raw = True
        while not is_last and at + 3 <= len(layer):
            word = int.from_bytes(layer[at : at + 3], "little")
            is_last, kind, size = bool(word & 1), word >> 1 & 3, word >> 3
            raw.append((at + 3, size))
            is_raw = is_raw and kind == _RAW
            at += 3 + (1 if kind == _ONE_BYTE else size)
        yield tuple(raw) if is_raw else ((start, at - start),)
        start = at


def _find_pieces(frames: _Frames, sif: mmap.mmap, strays: Sequence[tuple[int, Part]]) -> Iterator[Part]:
    """Yield parts that are no whole frame, with their pieces where one layer has all of them."""
    if not (strays and frames.places):
        yield from (part for _, part in strays)
        return
    found, number = list(frames.align(sif, strays)), 0
    for at, part in strays:
        end, blobs, pieces = at + part.size, set[int](), list[tuple[int, int]]()
        while number < len(found) and found[number][0] < end:
            start, size, blob, place = found[number]
            begin, stop = max(start, at), min(start + size, end)
            if begin < stop:
                blobs.add(blob)
                pieces.append((place + begin - start, stop - begin))
            if start + size > end:
                break
            number += 1
        placed = part._replace(blob=min(blobs, default=NOWHERE), pieces=tuple(pieces))
        yield placed if len(blobs) == 1 and _are_whole(placed) else part


def _are_whole(part: Part) -> bool:
    """Whether the pieces are the whole part, and near each other in the blob."""
    end = max(0, part.pieces[0][0]) if part.pieces else 0
    for at, size in part.pieces:
        if not (size > 0 and end <= at <= end + GAP):
            return False
        end = at + size
    return part.size == sum(size for _, size in part.pieces)
