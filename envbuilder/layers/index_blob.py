"""Write the texts of a layer from its blob alone, for a layer that came from a registry.

The blob shows where its frames begin, and the tar in it which contents they hold. Nothing else decides
the texts that `envbuilder/layers/writer.py` wrote beside it, so these are the same, and so is the SIF.
"""

import hashlib
import mmap
import tarfile
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import IO, Final, cast

import zstandard

from envbuilder.core.archive import DAMAGED_TAR, BoundedTar
from envbuilder.core.budget import most_unpacked, need_within
from envbuilder.core.cache import Sha256, save_text, sha256_text
from envbuilder.core.errors import BuildError
from envbuilder.layers.entry import Entry, Kind, make_manifest
from envbuilder.layers.tar import CHUNK, is_normal, read_member
from envbuilder.layers.writer import BLOCK_SIZE, Blocks, Frame, Layer

_HEADER: Final = 18  # bytes of a frame's header at most (RFC 8878, 3.1.1)
_ONE_BYTE: Final = 1  # the type of a block that repeats one byte


def index_blob(folder: Path, *, name: str, digest: Sha256, diff_id: Sha256) -> Layer:
    """Write the texts beside `layer.tar.zst`, whose digests the caller has checked.

    Raises BuildError for a blob that another program wrote.
    """
    blob = folder / "layer.tar.zst"
    try:
        with blob.open("rb") as stream:
            frames = tuple(_frames(stream))
            tar_size = sum(plain for _, _, plain in frames)
            need_within("bytes that it unpacks to", tar_size, most_unpacked(blob.stat().st_size))
            entries, blocks, content_size = _read(stream, frames)
    except (*DAMAGED_TAR, LookupError, zstandard.ZstdError) as error:
        raise BuildError(f"the layer {digest} is not one that envbuilder wrote: {error}") from error
    manifest, index = make_manifest(entries), blocks.to_json()
    layer = Layer(
        name=name, folder=folder, digest=digest, size=blob.stat().st_size, diff_id=diff_id, tar_size=tar_size,
        content_size=content_size, tree=sha256_text(manifest), blocks=sha256_text(index),
    )  # fmt: skip
    save_text(layer.manifest, manifest)
    save_text(layer.index, index)
    save_text(folder / "layer.json", layer.to_json())
    return layer


def _frames(stream: IO[bytes]) -> Iterator[Frame]:
    """Yield the place of each frame, from the headers of its blocks. Nothing is decompressed."""
    with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as blob:
        start = 0
        while start < len(blob):
            head = blob[start : start + _HEADER]
            plain = zstandard.frame_content_size(head)
            if not 0 < plain <= BLOCK_SIZE:
                raise ValueError(f"a frame at byte {start} has {plain} bytes")
            at, is_last = start + zstandard.frame_header_size(head), False
            while not is_last:
                word = int.from_bytes(blob[at : at + 3], "little")
                is_last = bool(word & 1) or at + 3 > len(blob)
                at += 3 + (1 if word >> 1 & 3 == _ONE_BYTE else word >> 3)
            yield start, at - start, plain
            start = at


def _read(stream: IO[bytes], frames: tuple[Frame, ...]) -> tuple[list[Entry], Blocks, int]:
    """Read the tar in the frames, and hash each file. Return the bytes of all files too, without those of hard links."""
    begins = [0, *accumulate(plain for _, _, plain in frames)]  # of each frame, in the tar
    entries, files, fragments = list[Entry](), dict[str, Entry](), dict[int, int]()
    small, large = dict[str, tuple[int, int]](), dict[str, tuple[Frame, ...]]()
    unpacked = zstandard.ZstdDecompressor().stream_reader(stream, read_size=CHUNK, read_across_frames=True)
    with BoundedTar.open(fileobj=cast("IO[bytes]", unpacked), mode="r|", bufsize=CHUNK // 16) as archive:
        for item in archive:
            archive.members.clear()  # type: ignore[attr-defined]  # it keeps every member, and each is needed once
            member = read_member(item)
            entry = member.entry
            if entry.kind is Kind.SPECIAL or not is_normal(entry.path):
                raise ValueError(f"it holds `{entry.path}`")
            if member.hard:
                first = files[member.hard]
                entry = replace(entry, size=first.size, sha256=first.sha256)
            elif entry.kind is Kind.FILE:
                entry = replace(entry, sha256=_digest(archive, item))
                files[entry.path] = entry
                number = bisect_right(begins, member.offset) - 1
                offset = member.offset - begins[number]
                if entry.size >= BLOCK_SIZE:
                    end = number + -(-entry.size // BLOCK_SIZE)
                    if offset or begins[end] - begins[number] != entry.size:
                        raise ValueError(f"`{entry.path}` has no frames of its own")
                    large.setdefault(entry.sha256, frames[number:end])
                elif entry.size:
                    if member.offset + entry.size > begins[number + 1]:
                        raise ValueError(f"`{entry.path}` is in two frames")
                    fragment = fragments.setdefault(number, len(fragments))
                    small.setdefault(entry.sha256, (fragment, offset))
            entries.append(entry)
    blocks = Blocks(fragments=tuple(frames[number] for number in fragments), small=small, large=large)
    return entries, blocks, sum(file.size for file in files.values())


def _digest(archive: tarfile.TarFile, file: tarfile.TarInfo) -> str:
    digest, content = hashlib.sha256(), archive.extractfile(file)
    while content and (chunk := content.read(CHUNK)):
        digest.update(chunk)
    return digest.hexdigest()
