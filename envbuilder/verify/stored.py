"""Find the files whose stored bytes in a SIF are those of a layer's blob.

A SIF is made of the frames of its layers. Where both have the same bytes, a content that was once unpacked from these frames, of a
blob with this digest, need not be unpacked again. The place in the SIF comes from its own tables, as `artifacts/squashfs/reader.py`
reads them, and the place in the blob from the layer's index.
"""

import hashlib
import itertools
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

import zstandard

from envbuilder.artifacts.squashfs.reader import Content, Squashfs, portions
from envbuilder.core.cache import Sha256
from envbuilder.layers.entry import CHUNK, Entry, Kind
from envbuilder.layers.layer import Layer, read_blocks, read_manifest
from envbuilder.layers.writer import BLOCK_SIZE, Frame

_ZSTD: Final = 6  # the compression of a layer's frames, as a squashfs numbers it

Known = Mapping[Sha256, frozenset[str]]
"""The digest of a layer → those of its contents that were not yet unpacked from its frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A content of a layer, at its place in the layer's blob."""

    layer: Layer
    sha256: str
    frames: tuple[Frame, ...]
    offset: int | None  # in the frame that a small file shares


def is_known(stored: Stored, known: Known) -> bool:
    """Whether the content was unpacked from these frames in an earlier verification."""
    return stored.layer.digest in known and stored.sha256 not in known[stored.layer.digest]


def now_known(layers: Sequence[Layer], known: Known, right: Iterable[Stored]) -> Known:
    """Return what is known after a verification in which the SIF had the `right` contents at these places."""
    digests: dict[Sha256, set[str]] = {layer.digest: set() for layer in layers}
    for stored in right:
        digests[stored.layer.digest].add(stored.sha256)
    left = {}
    for layer in layers:
        if known.get(layer.digest) == frozenset():
            left[layer.digest] = frozenset[str]()
            continue
        blocks = read_blocks(layer)
        every = known.get(layer.digest, frozenset((*blocks.small, *blocks.large)))
        left[layer.digest] = every - digests[layer.digest]
    return left


def find_stored(system: Squashfs, layers: Sequence[Layer], *, threads: int) -> dict[Content, Stored]:
    """Return the contents of a file system whose stored bytes are those of the layers' blobs. They are read and compared.

    Raises ValueError for a damaged file system.
    """
    if (system.compressor, system.block_size) != (_ZSTD, BLOCK_SIZE):
        return {}
    stored, files = _places(layers), _files(layers)
    with ExitStack() as stack, ThreadPoolExecutor(max(1, threads), thread_name_prefix="stored") as pool:
        blobs: dict[Sha256, int] = {}
        for layer in layers:
            with suppress(OSError):  # of a blob that cannot be read, all contents are unpacked
                blobs[layer.digest] = stack.enter_context(layer.blob.open("rb")).fileno()
        expected = {
            content: place
            for path, content in system.contents().items()
            if (entry := files.get(path)) and entry.size == content.size
            if (place := stored[entry.sha256]).layer.digest in blobs
        }
        comparison = _Comparison(system, blobs)

        def compare(contents: list[Content]) -> list[Content]:
            return [content for content in contents if comparison.is_same(content, expected[content])]

        same = pool.map(compare, portions(expected))
        return {content: expected[content] for content in itertools.chain.from_iterable(same)}


def unpack_large(layer: Layer, stop: threading.Event) -> frozenset[str]:
    """Unpack the contents of whole frames out of a layer's blob, until `stop` is set. Returns those that are not known after it.

    Contents of shared frames are among these. Raises OSError for a blob that cannot be read.
    """
    blocks, decompressor = read_blocks(layer), zstandard.ZstdDecompressor()
    left = {*blocks.small, *blocks.large}
    with layer.blob.open("rb") as blob:
        for digest, frames in blocks.large.items():
            unpacked = hashlib.sha256()
            for begin, length, plain in frames:
                if stop.is_set():
                    return frozenset(left)
                packed = os.pread(blob.fileno(), length, begin)
                with suppress(zstandard.ZstdError):  # `verify` says what is damaged
                    unpacked.update(decompressor.decompress(packed, max_output_size=plain))
            if unpacked.hexdigest() == digest:
                left.remove(digest)
    return frozenset(left)


def _places(layers: Sequence[Layer]) -> dict[str, Stored]:
    """Return each content by its digest. Of equal contents, a SIF has that of the lowest layer."""
    places: dict[str, Stored] = {}
    for layer in layers:
        blocks = read_blocks(layer)
        for digest, frames in blocks.large.items():
            places.setdefault(digest, Stored(layer=layer, sha256=digest, frames=frames, offset=None))
        for digest, (number, offset) in blocks.small.items():
            frames = (blocks.fragments[number],)
            places.setdefault(digest, Stored(layer=layer, sha256=digest, frames=frames, offset=offset))
    return places


def _files(layers: Sequence[Layer]) -> dict[str, Entry]:
    entries = {entry.path: entry for layer in layers for entry in read_manifest(layer)}
    return {path: entry for path, entry in entries.items() if entry.kind is Kind.FILE and entry.size}


class _Comparison:
    """Compares stored bytes of a file system with those of blobs, which are open under these descriptors."""

    def __init__(self, system: Squashfs, blobs: Mapping[Sha256, int]) -> None:
        self._system, self._blobs = system, blobs
        self._fragments: dict[tuple[int, Frame, Sha256], bool] = {}

    def is_same(self, content: Content, stored: Stored) -> bool:
        digest = stored.layer.digest
        if stored.offset is not None:
            if content.blocks or content.offset != stored.offset:
                return False
            key = content.fragment, stored.frames[0], digest
            if key not in self._fragments:
                block = self._system.fragment(content.fragment)
                self._fragments[key] = self._are_same([block], stored.frames, digest)
            return self._fragments[key]
        blocks = list(self._system.blocks(content))
        return sum(plain for _, _, plain in stored.frames) == content.size and self._are_same(
            blocks, stored.frames, digest
        )

    def _are_same(
        self, blocks: Sequence[tuple[int, int, bool]], frames: Sequence[Frame], digest: Sha256
    ) -> bool:
        """Compare blocks (place, stored size, whether packed) with frames. Those that follow each other are read at once."""
        if len(blocks) != len(frames):
            return False
        runs: list[tuple[int, int, int]] = []  # of packed blocks: place in the SIF, place in the blob, bytes
        for (place, stored, is_packed), (begin, length, plain) in zip(blocks, frames, strict=True):
            if stored != (length if is_packed else plain):
                return False
            if not is_packed:
                packed = os.pread(self._blobs[digest], length, begin)
                expected = zstandard.ZstdDecompressor().decompress(packed, max_output_size=plain)
                if self._system.read(place, stored) != expected:
                    return False
                continue
            start, at, size = runs[-1] if runs else (0, 0, 0)
            if (place, begin) == (start + size, at + size) and size + stored <= CHUNK:
                runs[-1:] = [(start, at, size + stored)]
            else:
                runs.append((place, begin, stored))
        return all(
            self._system.read(start, size) == os.pread(self._blobs[digest], size, at)
            for start, at, size in runs
        )
