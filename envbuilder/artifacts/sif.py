"""Write and read SIFs: a squashfs made of the layers' compressed bytes, behind the header that Apptainer reads.

Apptainer's own builder writes random identities and the time of day into the file, and removes the old file
before it starts. The format is that of its `sif` package, version 01: a header of 128 bytes, 48 descriptors
of 585 bytes, then the data. The file system begins at a multiple of 4096. Before it lies what is known before a build,
behind it are the documents about what was built.
"""

import contextlib
import hashlib
import io
import itertools
import json
import os
import struct
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import IO, Final, Self

import zstandard

from envbuilder.artifacts.outputs import Outputs, read_record
from envbuilder.artifacts.squashfs.reader import Squashfs
from envbuilder.artifacts.squashfs.writer import (
    SUPER_SIZE,
    ZSTD,
    GrowingSquashfs,
    Packed,
    Piece,
    SquashfsLayout,
    layout_squashfs,
    squashfs_epoch,
)
from envbuilder.core.budget import DOCUMENT, SIF, need_within
from envbuilder.core.cache import Sha256, beside, sha256_bytes, sha256_file, space_errors, sync_file
from envbuilder.core.errors import BuildError, DamagedError, ForeignError, UsageError, VerifyError
from envbuilder.core.plain import pasted
from envbuilder.core.processor import PROCESSORS, X86_64, Processor
from envbuilder.layers.entry import CHUNK
from envbuilder.layers.layer import Layer, read_blocks, read_manifest
from envbuilder.layers.writer import BLOCK_SIZE, Blocks, Frame

_LAUNCH: Final = b"#!/usr/bin/env run-singularity\n"  # makes `./name.sif` run
_MAGIC: Final = b"SIF_MAGIC\0"
_VERSION: Final = b"01\0"
_HEADER: Final = struct.Struct("<32s10s3s3s16s8q")
_PROCESSOR: Final = slice(45, 47)  # in the header
_DESCRIPTOR: Final = struct.Struct("<i?III7q128s384s")
_PARTITION: Final = struct.Struct("<ii3s")
_SLOTS: Final = 48
_MOST_SLOTS: Final = 4096  # that a reader accepts
_DESCRIPTORS_AT: Final = 4096
_DATA_AT: Final = _DESCRIPTORS_AT + _SLOTS * _DESCRIPTOR.size
_ALIGNMENT: Final = 4096
_VIEWS_AT: Final = 1 << 40  # of a SIF in the making: behind any end, in a file that is sparse until then
_GROUP: Final = 0xF0000001  # the first group, with the bits that mark a group's number
_SQUASHFS: Final = 1
_PRIMARY_SYSTEM: Final = 2
_SPDX_JSON: Final = 4  # the number of an SBOM's format
LABELS: Final = ".singularity.d/labels.json"  # Apptainer keeps those of an image that it converts
# What lies under the name of a SIF by mistake: where, the bytes there, what it is, and what helps.
_MISTAKEN: Final = (
    (0, b"version https://git-lfs", "is a pointer of Git LFS", "`git lfs pull` fetches the SIF that it stands for"),
    (0, b"<", "is a page of a web server or a proxy", "download the SIF again, past the login or the proxy"),
    (0, b"{", "is a JSON text, such as an error of a registry", "download the SIF again"),
    (257, b"ustar", "is a tar archive, as `docker save` writes", "`apptainer build NEW.sif docker-archive:FILE` converts it"),
)  # fmt: skip
# Our namespace. Identities are UUIDv5 of the content in it.
_SPACE: Final = uuid.UUID("6f1d3a52-6a0c-5b5e-9f0e-0f4f3c1f7a11")


_TYPES: Final = range(0x4001, 0x400C)  # of all objects that a SIF may hold


class DataType(IntEnum):
    """The types of objects that envbuilder reads or writes."""

    DEFINITION = 0x4001
    LABELS = 0x4003
    PARTITION = 0x4004
    SIGNATURE = 0x4005
    JSON = 0x4006
    SBOM = 0x4009


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text about the environment that SIF tools read without mounting the file system."""

    data_type: DataType
    name: str
    content: bytes

    @property
    def extra(self) -> bytes:
        return struct.pack("<i", _SPDX_JSON) if self.data_type is DataType.SBOM else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SifFacts:
    sha256: Sha256
    size: int  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SifObject:
    data_type: int
    number: int
    offset: int
    size: int
    name: str
    is_primary: bool  # the squashfs that containers start from


@dataclass(frozen=True, slots=True, kw_only=True)
class Sif:
    """A SIF as read: its descriptors."""

    path: Path
    descriptors: tuple[SifObject, ...]

    @property
    def system(self) -> SifObject:
        """The partition that containers start from."""
        return next(item for item in self.descriptors if item.is_primary)

    @property
    def signatures(self) -> tuple[int, ...]:
        """The numbers of the objects that are signatures."""
        return tuple(item.number for item in self.descriptors if item.data_type == DataType.SIGNATURE)

    def read(self, data_type: DataType) -> bytes:
        """Return the content of the first object of that type, b"" without one."""
        for item in self.descriptors:
            if item.data_type == data_type:
                if item.size > DOCUMENT:
                    raise VerifyError(
                        f"`{self.path}`: its {data_type.name} has {item.size} bytes, expected at most {DOCUMENT}"
                    )
                with self.path.open("rb") as stream:
                    stream.seek(item.offset)
                    return stream.read(item.size)
        return b""


class SifWriter:
    """A SIF in the making, in a file of its own: it takes the layers of a build one after the other, while later ones are made.

    Programs of the build can read each layer that is there, see `view`. The same layers give the same bytes.
    """

    def __init__(
        self, path: Path, *, definition: str = "", labels: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.path = path
        self._first = _first(definition, labels)
        self._at = _system_at(self._first)
        self._stream: IO[bytes] = path.open("wb")
        self._end = self._at + SUPER_SIZE
        self._system = GrowingSquashfs()
        self._layers: list[Layer] = []
        self._views = _VIEWS_AT
        self._is_open = True
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._stream.close()

    def close(self) -> None:
        """Take no more layers: whoever waits for one is refused."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()

    def add(self, layer: Layer) -> None:
        """Append the contents of the plan's next layer. Raises BuildError for a damaged blob, SpaceError."""
        packed = _packed(layer)
        with self._changed:
            pieces = self._system.add(packed)
        first, second = _halves(pieces)
        middle = self._end + sum(piece.size for piece in first)
        with space_errors(self.path), ThreadPoolExecutor(1) as other:  # one core copies 2 GB a second
            copied = other.submit(self._copy, second, middle)
            self._copy(first, self._end)
            self._end = copied.result()
        with self._changed:
            self._layers.append(layer)
            self._changed.notify_all()

    def _copy(self, pieces: Sequence[Piece], at: int) -> int:
        """Write the pieces to a place of the file. Return the place behind them."""
        with self.path.open("r+b") as stream:
            stream.seek(at)
            stream.writelines(_contents(pieces))
            return stream.tell()

    def view(self, layer: Layer) -> int:
        """Wait until the layer is there. Return the place in the file at which a squashfs with its files alone begins.

        Raises BuildError if it does not come, OSError where files cannot have a hole of a terabyte.
        """
        with self._changed:
            self._changed.wait_for(lambda: layer in self._layers or not self._is_open)
            if not self._is_open:
                raise BuildError(f"the build ended before the {layer.name} layer was in its SIF")
            place = self._views
            text = self._system.view(read_manifest(layer), at=place - self._at)
            os.pwrite(self._stream.fileno(), text, place)
            self._views += -(-len(text) // _ALIGNMENT) * _ALIGNMENT
            return place

    def finish(
        self, *, epoch: int, documents: Sequence[Document] = (), processor: Processor = X86_64
    ) -> None:
        """Write all that is not contents, with a descriptor for each of the `documents`. It is not on the disk yet, see `seal`."""
        identity = "\n".join(layer.diff_id for layer in self._layers)
        system = self._system.finish(epoch)
        front = _front(
            self._first, documents, size=system.size, epoch=epoch, identity=identity, processor=processor
        )
        with space_errors(self.path):
            self._stream.seek(self._end)
            self._stream.writelines((system.tables, *(item.content for item in documents)))
            self._stream.truncate()
            self._stream.seek(0)
            self._stream.write(front + system.head)
        self.path.chmod(0o755)


def seal(sif: Path) -> SifFacts:
    """Wait until a new SIF is on the disk, and hash it."""
    sync_file(sif)
    return SifFacts(sha256=sha256_file(sif), size=sif.stat().st_size)


def _first(definition: str, labels: Mapping[str, str]) -> tuple[Document, Document]:
    """Return what lies before the file system."""
    text = json.dumps(dict(labels), sort_keys=True, separators=(",", ":"))
    return (
        Document(data_type=DataType.DEFINITION, name="definition", content=definition.encode()),
        Document(data_type=DataType.LABELS, name="labels.json", content=text.encode()),
    )


def _system_at(first: Sequence[Document]) -> int:
    return -(-(_DATA_AT + sum(len(item.content) for item in first)) // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class SifFrame:
    """All of a SIF but the contents of its files: what is before its file system, the head of that, and what is behind, such as a signature."""

    front: bytes
    head: bytes
    system_size: int
    tail: bytes

    @property
    def content(self) -> bytes:
        """What `parse_frame` reads."""
        return self.front + self.head + self.tail


def read_frame(read: Callable[[int, int], bytes], total: int) -> SifFrame:
    """Read the frame of a SIF of `total` bytes; `read` returns as many bytes from a place on. Raises ValueError and ForeignError."""
    start = read(0, min(_DATA_AT, total))
    try:
        system = _parse(Path("the SIF"), io.BytesIO(start), total).system
    except struct.error as error:
        raise ValueError(f"its descriptors do not begin at byte {_DESCRIPTORS_AT}") from error
    behind = system.offset + system.size
    for what, size in (("before", system.offset - len(start)), ("behind", total - behind)):
        need_within(f"bytes {what} its file system", size, DOCUMENT)
    rest = read(len(start), system.offset + SUPER_SIZE - len(start))
    return SifFrame(
        front=start + rest[:-SUPER_SIZE], head=rest[-SUPER_SIZE:], system_size=system.size,
        tail=read(behind, total - behind) if behind < total else b"",
    )  # fmt: skip


def parse_frame(content: bytes, total: int) -> SifFrame:
    """Return the frame of a SIF of `total` bytes; raises what `read_frame` raises."""
    missing = total - len(content)

    def read(start: int, size: int) -> bytes:
        at = start - missing if start + size == total else start
        return content[at : at + size]

    return read_frame(read, total)


def write_framed_sif(frame: SifFrame, layers: Sequence[Layer], out: Path) -> SifFacts:
    """Write a SIF that was built elsewhere, from its layers and its frame; raises BuildError where they do not belong together."""
    try:
        system = layout_squashfs(list(map(_packed, layers)), epoch=squashfs_epoch(frame.head))
    except (struct.error, LookupError) as error:  # numbers and names that no build lets in
        raise BuildError(f"its layers make no file system: {error}") from error
    if (system.head, system.size) != (frame.head, frame.system_size):
        raise BuildError("its layers do not make its file system")
    return _write(out, frame.front, system, frame.tail)


def extend_sif(sif: Path, layer: Layer, out: Path, *, labels: Mapping[str, str]) -> SifFacts:
    """Write a SIF of ours with one more layer, whose files stand for those of the same paths. What is there is copied as it is.

    Raises what `opened_sif` raises, and ForeignError for a file system that another program wrote.
    """
    there = read_sif(sif)
    with opened_sif(sif) as whole:
        below, epoch = _repacked(whole, sif, there.system.offset), whole.epoch
    if below is None:
        hint = "take the SIF that `build` or `pull` made"
        raise ForeignError(f"another program wrote the file system of `{sif}`", hint=hint)
    system = layout_squashfs([below, _packed(layer)], epoch=epoch)
    identity = f"{there.system.size} {sha256_bytes(there.read(DataType.LABELS))} {layer.diff_id}"
    text = there.read(DataType.DEFINITION).decode(errors="replace")
    first, processor = _first(text, labels), processor_in(sif) or X86_64
    front = _front(first, (), size=system.size, epoch=epoch, identity=identity, processor=processor)
    return _write(out, front, system)


def _repacked(system: Squashfs, sif: Path, start: int) -> Packed | None:
    """Return a file system as a layer whose blob is its SIF, None if our writer has not written it. No content is read."""
    names = {content: repr(content) for content in system.contents().values()}
    is_mixed = any(content.blocks and content.fragment in system.fragments for content in names)
    if is_mixed or (system.compressor, system.block_size) != (ZSTD, BLOCK_SIZE):
        return None

    def frame(block: tuple[int, int, bool], plain: int) -> Frame:
        at, length, is_packed = block
        return start + at, length if is_packed else 0, plain

    large = {
        name: tuple(
            frame(block, min(BLOCK_SIZE, content.size - number * BLOCK_SIZE))
            for number, block in enumerate(system.blocks(content))
        )
        for content, name in names.items() if content.blocks
    }  # fmt: skip
    small = {
        name: (content.fragment, content.offset)
        for content, name in names.items()
        if name not in large and content.size
    }
    shared = map(system.fragment, system.fragments)
    # A packed one unpacks to more than it takes.
    fragments = tuple(frame(block, block[1] + block[2]) for block in shared)
    blocks = Blocks(fragments=fragments, small=small, large=large)
    return Packed(blob=sif, entries=system.entries(threads=1, known=names), blocks=blocks)


def _packed(layer: Layer) -> Packed:
    return Packed(blob=layer.blob, entries=read_manifest(layer), blocks=read_blocks(layer))


def _write(out: Path, front: bytes, system: SquashfsLayout, tail: bytes = b"") -> SifFacts:
    check_place(out)
    digest = hashlib.sha256()
    with beside(out) as work, space_errors(out):
        sif = work / "sif"
        with sif.open("xb") as stream, ThreadPoolExecutor(1) as other:  # hashing takes as long as writing
            pieces = (front, system.head), _contents(system.pieces), (system.tables, tail)
            hashed = other.submit(digest.update, b"")
            for piece in itertools.chain(*pieces):
                hashed.result()  # the piece after this one may lie in the same buffer as the one before
                hashed = other.submit(digest.update, piece)
                stream.write(piece)
            hashed.result()
            stream.flush()
            os.fsync(stream.fileno())
        sif.chmod(0o755)
        sif.replace(out)
    return SifFacts(sha256=Sha256(digest.hexdigest()), size=len(front) + system.size + len(tail))


def _halves(pieces: Sequence[Piece]) -> tuple[list[Piece], list[Piece]]:
    """Split pieces into two parts of about as many bytes."""
    first, second, left = list[Piece](), list[Piece](), sum(piece.size for piece in pieces) // 2
    for piece in pieces:
        if left <= 0:
            second.append(piece)
        elif piece.plain or piece.length <= left:
            first.append(piece)
        else:
            first.append(replace(piece, length=left))
            second.append(replace(piece, at=piece.at + left, length=piece.length - left))
        left -= piece.size
    return first, second


def _contents(pieces: Iterable[Piece]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of the pieces, each to be used before the next but one; raises BuildError for a damaged blob.

    They lie in two buffers, so that one is filled while the other is hashed. A new buffer for each MiB would double the time of the copy.
    """
    buffers = itertools.cycle(memoryview(bytearray(CHUNK)) for _ in range(2))
    for blob, group in itertools.groupby(pieces, key=lambda piece: piece.blob):
        with blob.open("rb", buffering=0) as stream:
            for piece in group:
                stream.seek(piece.at)
                if piece.plain:
                    try:
                        frame = stream.read(piece.length)
                        yield zstandard.ZstdDecompressor().decompress(frame, max_output_size=piece.plain)
                    except zstandard.ZstdError as error:
                        raise _damaged(blob, str(error)) from error
                    continue
                left = piece.length
                while left and (length := stream.readinto((buffer := next(buffers))[:left])):
                    left -= length
                    yield buffer[:length]
                if left:
                    raise _damaged(blob, "it is cut off")


def _damaged(blob: Path, why: str) -> BuildError:
    return BuildError(f"`{blob}` is damaged: {why}", hint=f"remove `{blob.parent}` and build again")


def read_sif(path: Path) -> Sif:
    """Read the header and the descriptors. Raises ForeignError for a file that is no SIF, DamagedError for one that is cut off or
    damaged, VerifyError for one that cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return _parse(path, stream, path.stat().st_size)
    except OSError as error:
        raise VerifyError(f"`{path}` is not readable: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:
        raise DamagedError(f"`{path}` is {error}", hint="build or pull it again") from error


@contextlib.contextmanager
def opened_sif(path: Path) -> Iterator[Squashfs]:
    """Open the file system in a SIF. Raises what `read_sif` raises, and DamagedError when the file system is damaged.

    The block only reads. What it reads is judged after it, because a ValueError in the block counts as damage.
    """
    part = read_sif(path).system
    try:
        with path.open("rb") as stream:
            yield Squashfs(stream, offset=part.offset, size=part.size)
    except (OSError, ValueError, IndexError, ArithmeticError, struct.error) as error:
        raise DamagedError(
            f"the file system in `{path}` is damaged: {error}", hint="build it again"
        ) from error


def read_labels(path: Path) -> dict[str, str]:
    """Return the labels in the file system of a SIF, none if it has no such file. Raises what `opened_sif` raises."""
    text, labels = b"null", None
    with contextlib.suppress(KeyError), opened_sif(path) as system:
        text = system.open(LABELS).read(DOCUMENT)
    with contextlib.suppress(ValueError, RecursionError):
        labels = json.loads(text)
    return {name: str(value) for name, value in labels.items()} if isinstance(labels, dict) else {}


def is_sif(path: Path) -> bool:
    """Whether the file is readable and begins like a SIF."""
    try:
        with path.open("rb") as stream:
            return _MAGIC in stream.read(_HEADER.size)
    except OSError:
        return False


def processor_in(path: Path) -> Processor | None:
    """Return the processor that a SIF is for, None if the file does not say one of ours."""
    if not is_sif(path):
        return None
    with path.open("rb") as stream:
        code = stream.read(_HEADER.size)[_PROCESSOR]
    return next((processor for processor in PROCESSORS if processor.sif.encode() == code), None)


def need_recorded(outputs: Outputs) -> Sha256:
    """Return the sha256 of the SIF; raises VerifyError when the build record has another one.

    Two differences are accepted: the record belongs to another image, or the SIF was signed since the build.
    """
    digest, record = sha256_file(outputs.sif), read_record(outputs)
    if record is None or not record.knows_image(outputs.image):
        return digest
    signed_since = outputs.sif.stat().st_size > record.sif_size and read_sif(outputs.sif).signatures
    if digest == record.sif or signed_since:
        return digest
    raise VerifyError(
        f"`{outputs.sif}` is not what was built: its sha256 is {digest}, that of the build {record.sif}",
        hint=f"remove it; `envbuilder build {pasted(outputs.name)}` makes it again",
    )


def check_place(out: Path) -> None:
    """Raise UsageError unless the place is free or holds an earlier SIF."""
    if not (out.exists() or out.is_symlink()):
        return
    if out.is_symlink() or not out.is_file() or not is_sif(out):
        raise UsageError(f"`{out}` exists and is not a SIF", hint="move it away, or choose another --output")


def _front(
    first: Sequence[Document], behind: Sequence[Document], *, size: int, epoch: int, identity: str, processor: Processor
) -> bytes:  # fmt: skip
    """Return all bytes before the file system, which has `size` bytes. The `first` objects are among them."""
    number = uuid.uuid5(_SPACE, "\n".join([identity, str(epoch), *(item.content.decode() for item in first)]))
    runs_on = f"{processor.sif}\0".encode()
    system_at, objects = _system_at(first), (*first, *behind)
    before = itertools.accumulate((len(item.content) for item in first[:-1]), initial=_DATA_AT)
    *after, end = itertools.accumulate((len(item.content) for item in behind), initial=system_at + size)
    partition = _PARTITION.pack(_SQUASHFS, _PRIMARY_SYSTEM, runs_on)
    rows = (
        *((item.data_type, at, len(item.content), item.name, item.extra) for item, at in zip(objects, (*before, *after), strict=True)),
        (DataType.PARTITION, system_at, size, "rootfs.squashfs", partition),
    )  # fmt: skip
    descriptors = b"".join(
        _DESCRIPTOR.pack(
            kind, True, number, _GROUP, 0, at, length, length, epoch, epoch, 0, 0, name.encode(), extra
        )
        for number, (kind, at, length, name, extra) in enumerate(rows, 1)
    )
    header = _HEADER.pack(
        _LAUNCH, _MAGIC, _VERSION, runs_on, number.bytes, epoch, epoch,
        _SLOTS - len(rows), _SLOTS, _DESCRIPTORS_AT, _SLOTS * _DESCRIPTOR.size, _DATA_AT, end - _DATA_AT,
    )  # fmt: skip
    front = header.ljust(_DESCRIPTORS_AT, b"\0") + descriptors.ljust(_SLOTS * _DESCRIPTOR.size, b"\0")
    return (front + b"".join(item.content for item in first)).ljust(system_at, b"\0")


def _parse(path: Path, stream: IO[bytes], total: int) -> Sif:
    start = stream.read(512)  # more than a header, for what it is otherwise
    head = start[: _HEADER.size]
    _need_start(path, start)
    need_within("not a SIF that can be read: its bytes", total, SIF)
    _, _, version, _, _, _, _, _, slots, at, size, _, _ = _HEADER.unpack(head)
    if version != _VERSION:
        actual, expected = (text.rstrip(b"\0").decode(errors="replace") for text in (version, _VERSION))
        raise ValueError(f"a SIF of version {actual!r}, expected {expected!r}")
    if not 0 < slots <= _MOST_SLOTS or size < slots * _DESCRIPTOR.size or at < _HEADER.size:
        raise ValueError(f"damaged: it claims {slots} descriptors in {size} bytes at byte {at}")
    end = at + slots * _DESCRIPTOR.size
    if end > total:
        raise ValueError(f"cut off: the table of {slots} descriptors ends at byte {end}, the file at {total}")
    stream.seek(at)
    raw = stream.read(end - at)
    parsed = (
        _parse_descriptor(raw[at : at + _DESCRIPTOR.size], total)
        for at in range(0, len(raw), _DESCRIPTOR.size)
    )
    descriptors = tuple(descriptor for descriptor in parsed if descriptor)
    if not any(descriptor.is_primary for descriptor in descriptors):
        raise ValueError("damaged: no object of it is a squashfs to start from")
    return Sif(path=path, descriptors=descriptors)


def _need_start(path: Path, head: bytes) -> None:
    """Raise ForeignError for another file than a SIF, ValueError for one without the whole header."""
    if not head:
        raise ValueError(f"empty, expected a header of {_HEADER.size} bytes")
    magic = head[len(_LAUNCH) + 1 :][: len(_MAGIC)]  # the launch line has a field of 32 bytes
    if not _MAGIC.startswith(magic) or (len(head) <= len(_LAUNCH) and not _LAUNCH.startswith(head)):
        mistakes = (row[2:] for row in _MISTAKEN if head[row[0] :].lstrip().startswith(row[1]))
        begins = f"begins with {head[:11]!r} and has no {_MAGIC[:-1].decode()} at byte {len(_LAUNCH) + 1}"
        what, hint = next(mistakes, (begins, "build or pull it again"))
        raise ForeignError(f"`{path}` is not a SIF: it {what}", hint=hint)
    if len(head) < _HEADER.size:
        raise ValueError(f"cut off: the header has {_HEADER.size} bytes, the file {len(head)}")


def _parse_descriptor(raw: bytes, total: int) -> SifObject | None:
    data_type, used, number, _, _, offset, size, _, _, _, _, _, name, extra = _DESCRIPTOR.unpack(raw)
    if not used:
        return None
    if data_type not in _TYPES:
        raise ValueError(f"damaged: object {number} has the unknown type {data_type}")
    if offset < _HEADER.size or size < 0:
        raise ValueError(f"damaged: object {number} begins at byte {offset} and has {size} bytes")
    if offset + size > total:
        raise ValueError(f"cut off: object {number} ends at byte {offset + size}, the file at {total}")
    file_system, role, _ = _PARTITION.unpack_from(extra)
    return SifObject(
        data_type=data_type,
        number=number,
        offset=offset,
        size=size,
        name=name.rstrip(b"\0").decode(errors="replace"),
        is_primary=data_type == DataType.PARTITION and (file_system, role) == (_SQUASHFS, _PRIMARY_SYSTEM),
    )


def read_documents(path: Path) -> tuple[str, str]:
    """Return the SBOM and the provenance in a SIF."""
    sif = read_sif(path)
    sbom, provenance = (sif.read(kind).decode(errors="replace") for kind in (DataType.SBOM, DataType.JSON))
    if not sbom or not provenance:
        raise VerifyError(
            f"`{path}` holds no SBOM", hint="envbuilder did not make it, or one too old to write an SBOM"
        )
    return sbom, provenance
