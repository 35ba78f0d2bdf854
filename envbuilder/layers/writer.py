"""Write one layer: a tar in frames of zstd that a squashfs can use unchanged.

Every 256 KiB of a large file is one frame, and so is every stretch of headers and small files. A
squashfs calls these a block and a fragment. The SIF is then made of the image's own bytes: nothing
is compressed twice. Frames are compressed in parallel while this thread reads and hashes; only
pending frames are in memory.
"""

import hashlib
import json
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Final, Self, TypeAlias

import zstandard

from envbuilder.core.cache import Sha256, save_text, sha256_text
from envbuilder.core.errors import BuildError
from envbuilder.core.models import adapter
from envbuilder.layers.entry import BLOCK, CHUNK, END, Entry, Kind, Readable, make_header, make_manifest

# Between zstd's levels 2 and 3: level 2's match length, with two larger tables. Layers are 1.1 % smaller than
# at level 2 for 9 % more CPU (16 % for GPU code, which hardly compresses); at level 3, 2.5 to 3.4 % smaller
# for 25 % (66 %). bench/README.md has the table.
PARAMETERS: Final = {
    "window_log": 18, "chain_log": 15, "hash_log": 16, "search_log": 1, "min_match": 5, "target_length": 0,
    "strategy": zstandard.STRATEGY_DFAST,
}  # fmt: skip
# Bytes of a file in one frame, the block of the squashfs: smaller and faster to import from than 128 KiB and 1 MiB.
BLOCK_SIZE: Final = 256 << 10

# Where a frame starts in the blob, its length there, and what it unpacks to.
Frame: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The places of the files' contents in a layer's blob, by sha256. Empty files have none."""

    fragments: tuple[Frame, ...]
    small: dict[str, tuple[int, int]]  # the number of the fragment, and the place within what it unpacks to
    large: dict[str, tuple[Frame, ...]]

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


def parse_blocks(text: str) -> Blocks:
    """Raises ValueError for anything that `to_json` does not write."""
    blocks: Blocks = adapter(Blocks).validate_json(text)
    return blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A finished layer's folder: `layer.tar.zst`, `manifest.txt`, `blocks.json`, `layer.json` (these fields)."""

    name: str  # os | cuda | python | extensions | runtime
    folder: Path
    digest: Sha256  # of layer.tar.zst
    size: int  # of layer.tar.zst, bytes
    diff_id: Sha256  # of the tar
    tar_size: int  # of the tar, bytes
    content_size: int  # sum of the sizes of its regular files, bytes
    tree: Sha256  # of manifest.txt, see `tree_digest`
    blocks: Sha256  # of blocks.json

    def to_json(self) -> str:
        """Return the text of `layer.json`: the fields, and their sha256."""
        facts = {key: value for key, value in asdict(self).items() if key != "folder"}
        digest = sha256_text(json.dumps(facts, sort_keys=True))
        return json.dumps(facts | {"sha256": digest}, indent=1, sort_keys=True) + "\n"

    @property
    def blob(self) -> Path:
        return self.folder / "layer.tar.zst"

    @property
    def manifest(self) -> Path:
        return self.folder / "manifest.txt"

    @property
    def index(self) -> Path:
        """The places of the files' contents in the blob."""
        return self.folder / "blocks.json"


def make_compressor() -> zstandard.ZstdCompressor:
    parameters = zstandard.ZstdCompressionParameters(**PARAMETERS, write_content_size=1)
    return zstandard.ZstdCompressor(compression_params=parameters)


class LayerWriter:
    """A context manager that writes entries, in order, as a compressed tar. `finish` writes the texts beside it."""

    def __init__(self, name: str, folder: Path, *, threads: int) -> None:
        self._name = name
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        blob = folder / "layer.tar.zst"
        blob.unlink(missing_ok=True)
        self._stream: IO[bytes] = blob.open("xb")
        self._pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="pack")
        self._most = 4 * max(1, threads)  # pending pieces, of a MiB at most
        self._local = threading.local()  # a compressor serves one thread at a time
        self._pending: deque[tuple[Future[list[tuple[bytes, int]]], list[Frame]]] = deque()
        self._blob_digest = hashlib.sha256()
        self._tar_digest = hashlib.sha256()
        self._size = 0
        self._tar_size = 0
        self._content_size = 0
        self._entries: list[Entry] = []
        self._stretch = bytearray()  # headers and small files, not yet in a frame
        self._held: dict[str, int] = {}  # of those files, by digest: the place in the stretch
        self._fragments: list[list[Frame]] = []  # one frame each, once it is written
        self._small: dict[str, tuple[int, int]] = {}
        self._large: dict[str, list[Frame]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._stream.close()

    def add(self, entry: Entry) -> None:
        """Add a folder, a link or an empty file."""
        if entry.kind is Kind.FILE:
            entry = replace(entry, sha256=hashlib.sha256().hexdigest())
        self._entries.append(entry)
        self._gather(make_header(entry))

    def add_file(self, entry: Entry, stream: Readable) -> Entry:
        """Add a file whose content begins at the stream's position; return the entry with the digest.

        Raises BuildError if the entry has another one.
        """
        self._gather(make_header(entry))
        digest = self._add_small(entry, stream) if entry.size < BLOCK_SIZE else self._add_large(entry, stream)
        self._gather(bytes(-entry.size % BLOCK))
        self._content_size += entry.size
        if entry.sha256 not in ("", digest):
            raise BuildError(
                f"`{entry.path}` has the sha256 {digest}, and its package says {entry.sha256}",
                hint="the package contradicts itself: take another release of it",
            )
        entry = replace(entry, sha256=digest)
        self._entries.append(entry)
        return entry

    def add_hard_link(self, entry: Entry, first: Entry) -> None:
        """Add another path of a file that was added before."""
        self._gather(make_header(entry, hard=first.path))
        self._entries.append(replace(entry, size=first.size, sha256=first.sha256))

    def finish(self) -> Layer:
        self._gather(END)
        self._flush()
        self._drain()
        self._stream.flush()
        manifest = make_manifest(self._entries)
        large = {digest: tuple(frames) for digest, frames in self._large.items()}
        fragments = tuple(frame for (frame,) in self._fragments)
        blocks = Blocks(fragments=fragments, small=self._small, large=large).to_json()
        layer = Layer(
            name=self._name,
            folder=self._folder,
            digest=Sha256(self._blob_digest.hexdigest()),
            size=self._size,
            diff_id=Sha256(self._tar_digest.hexdigest()),
            tar_size=self._tar_size,
            content_size=self._content_size,
            tree=sha256_text(manifest),
            blocks=sha256_text(blocks),
        )
        layer.blob.chmod(0o444)  # OCI layouts hold hard links to it
        layer.manifest.write_text(manifest, encoding="ascii")
        layer.index.write_text(blocks, encoding="ascii")
        save_text(self._folder / "layer.json", layer.to_json())
        return layer

    def _add_small(self, entry: Entry, stream: Readable) -> str:
        content = _read(stream, entry.size, entry)
        if len(self._stretch) + entry.size > BLOCK_SIZE:
            self._flush()
        digest = hashlib.sha256(content).hexdigest()
        self._held.setdefault(digest, len(self._stretch))
        self._gather(content)
        return digest

    def _add_large(self, entry: Entry, stream: Readable) -> str:
        self._flush()
        digest, left = hashlib.sha256(), entry.size
        frames: list[Frame] = []
        while left:
            piece = _read(stream, min(left, CHUNK), entry)
            left -= len(piece)
            digest.update(piece)
            self._pack(piece, frames)
        self._large.setdefault(digest.hexdigest(), frames)
        return digest.hexdigest()

    def _gather(self, piece: bytes) -> None:
        self._stretch += piece
        while len(self._stretch) > BLOCK_SIZE:  # never within a file, which always fits
            self._flush(BLOCK_SIZE)

    def _flush(self, most: int = BLOCK_SIZE) -> None:
        """Compress the stretch into a frame. With files in it, the frame is a fragment."""
        if not self._stretch:
            return
        piece, self._stretch = bytes(self._stretch[:most]), self._stretch[most:]
        frames: list[Frame] = []
        if self._held:
            for digest, at in self._held.items():
                self._small.setdefault(digest, (len(self._fragments), at))
            self._fragments.append(frames)
            self._held = {}
        self._pack(piece, frames)

    def _pack(self, piece: bytes, frames: list[Frame]) -> None:
        """Compress a piece in another thread. `frames` gets the places of its frames, once they are written."""
        self._tar_digest.update(piece)
        self._tar_size += len(piece)
        self._pending.append((self._pool.submit(self._compress, piece), frames))
        self._drain(self._most)

    def _drain(self, most: int = 0) -> None:
        """Write what is compressed, in its order, until at most `most` pieces are pending."""
        while len(self._pending) > most:
            packed, frames = self._pending.popleft()
            for frame, size in packed.result():
                frames.append((self._size, len(frame), size))
                self._blob_digest.update(frame)
                self._size += len(frame)
                self._stream.write(frame)

    def _compress(self, piece: bytes) -> list[tuple[bytes, int]]:
        """Return each frame and its uncompressed size."""
        if not hasattr(self._local, "compressor"):
            self._local.compressor = make_compressor()
        whole = memoryview(piece)
        blocks = [whole[at : at + BLOCK_SIZE] for at in range(0, len(whole), BLOCK_SIZE)]
        return [(self._local.compressor.compress(block), len(block)) for block in blocks]


def _read(stream: Readable, size: int, entry: Entry) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise BuildError(f"`{entry.path}` changed its size while it was read")
    return content
