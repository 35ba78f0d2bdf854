"""The SIF: a squashfs of the layers' tars, and around it the header that Apptainer reads.

We write it ourselves because Apptainer's builder puts random identities and the time of day into the file, and removes
the old file before it starts. The format is that of Apptainer's `sif` package, version 01: a header of 128 bytes, 48
descriptors of 585 bytes, then the data, the file system at a multiple of its block size.
"""

import contextlib
import fcntl
import json
import os
import shutil
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import IO, Final

from envbuilder.command import Command, Runner
from envbuilder.errors import CommandError, SpaceError, ToolError, UsageError, VerifyError
from envbuilder.store import Sha256, beside, sha256_file, space_errors
from envbuilder.tarball import CHUNK, END
from envbuilder.tree import Layer, layer_body

BLOCK_SIZE: Final = (
    256 << 10
)  # bytes of a squashfs block: smaller and faster to import from than 128 KiB and 1 MiB
LEVEL: Final = 2  # of zstd; measured on `a100`: 1 19 % less CPU and 3 % more bytes, 3 57 % more and 4 % fewer

_LAUNCH: Final = b"#!/usr/bin/env run-singularity\n"  # makes `./name.sif` run
_MAGIC: Final = b"SIF_MAGIC\0"
_VERSION: Final = b"01\0"
_HEADER: Final = struct.Struct("<32s10s3s3s16s8q")
_DESCRIPTOR: Final = struct.Struct("<i?III7q128s384s")
_PARTITION: Final = struct.Struct("<ii3s")
_SLOTS: Final = 48
_MOST_SLOTS: Final = 4096  # that a reader believes
_DESCRIPTORS_AT: Final = 4096
_DATA_AT: Final = _DESCRIPTORS_AT + _SLOTS * _DESCRIPTOR.size
_ALIGNMENT: Final = 4096
_GROUP: Final = 0xF0000001  # the first group, with the bits that mark a group's number
_SQUASHFS: Final = 1
_PRIMARY_SYSTEM: Final = 2
_SPDX_JSON: Final = 4  # of the formats that an SBOM can have
_ARCHITECTURES: Final = {"amd64": b"02\0", "arm64": b"04\0", "ppc64le": b"06\0"}
_SPACE: Final = uuid.UUID(
    "6f1d3a52-6a0c-5b5e-9f0e-0f4f3c1f7a11"
)  # ours; identities are UUIDv5 of the content below it


class DataType(IntEnum):
    DEFINITION = 0x4001
    ENVIRONMENT = 0x4002
    LABELS = 0x4003
    PARTITION = 0x4004
    SIGNATURE = 0x4005
    JSON = 0x4006
    RAW = 0x4007
    CRYPTO = 0x4008
    SBOM = 0x4009
    OCI_ROOT_INDEX = 0x400A
    OCI_BLOB = 0x400B


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text of the environment that readers of a SIF find without looking into its file system."""

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
    squashfs_offset: int
    squashfs_size: int
    identity: uuid.UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    data_type: DataType
    number: int
    offset: int
    size: int
    name: str
    is_primary: bool  # the squashfs that containers start from


@dataclass(frozen=True, slots=True, kw_only=True)
class Sif:
    """A SIF as read: where its parts are."""

    path: Path
    identity: uuid.UUID
    created: int  # seconds
    descriptors: tuple[Descriptor, ...]

    @property
    def system(self) -> Descriptor:
        """The partition that containers start from."""
        return next(item for item in self.descriptors if item.is_primary)

    def read(self, data_type: DataType) -> bytes:
        """The first object of that type, or nothing."""
        for item in self.descriptors:
            if item.data_type is data_type:
                with self.path.open("rb") as stream:
                    stream.seek(item.offset)
                    return stream.read(item.size)
        return b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A layer to write: its tar without the end, and itself, asked for last since it may still be being packed."""

    body: Iterable[bytes | memoryview]
    layer: Callable[[], Layer]


def packed(layer: Layer) -> Source:
    return Source(body=layer_body(layer), layer=lambda: layer)


def write_sif(
    *,
    sources: Iterable[Source],
    out: Path,
    epoch: int,
    definition: str,
    labels: Mapping[str, str],
    runner: Runner,
    threads: int,
    architecture: str = "amd64",
    documents: Callable[[Layer], Sequence[Document]] = lambda _: (),
) -> SifFacts:
    """Write the SIF of the layers in order; `sources` may yield each one when it is ready.

    `documents` is asked, when all layers are there, for what the last one holds that is to have a descriptor.

    The file appears under its name when it is whole, in place of an earlier SIF; anything else there is left alone and
    is a UsageError. Same layers, same writer, same bytes.
    """
    _check_target(out)
    with beside(out) as work:
        squashfs = work / "squashfs"
        written = _write_squashfs(sources, squashfs, epoch=epoch, runner=runner, threads=threads)
        diff_ids = [layer.diff_id for layer in written]
        identity = uuid.uuid5(_SPACE, "\n".join([*diff_ids, str(epoch), definition, _json(labels)]))
        objects = (
            Document(data_type=DataType.DEFINITION, name="definition", content=definition.encode()),
            Document(data_type=DataType.LABELS, name="labels.json", content=_json(labels).encode()),
            *documents(written[-1]),
        )
        offset = -(-(_DATA_AT + sum(len(one.content) for one in objects)) // _ALIGNMENT) * _ALIGNMENT
        size = squashfs.stat().st_size
        with space_errors(out):
            sif = _make_room(squashfs, offset, runner)
            with sif.open("r+b") as stream:
                stream.write(
                    _front(
                        objects,
                        offset=offset,
                        size=size,
                        epoch=epoch,
                        identity=identity,
                        architecture=architecture,
                    )
                )
                stream.flush()
                os.fsync(stream.fileno())
        sif.chmod(0o755)
        facts = SifFacts(
            sha256=sha256_file(sif),
            size=offset + size,
            squashfs_offset=offset,
            squashfs_size=size,
            identity=identity,
        )
        sif.rename(out)
    return facts


def read_sif(path: Path) -> Sif:
    """Read the header and the descriptors; raises VerifyError when they are damaged or name no squashfs to start from."""
    try:
        with path.open("rb") as stream:
            return _parse(path, stream, path.stat().st_size)
    except (OSError, ValueError, struct.error) as error:
        raise VerifyError(f"`{path}` is not a whole SIF: {error}", hint="build it again") from error


def squashfs_command(out: Path, *, epoch: int, threads: int) -> Command:
    """Turn a tar on stdin into the file system; its bytes do not depend on the number of jobs."""
    argv = (
        "tar2sqfs", "--quiet", "--force", "--no-skip",
        "--compressor", "zstd", "--comp-extra", f"level={LEVEL}",
        "--block-size", str(BLOCK_SIZE),
        "--defaults", f"uid=0,gid=0,mode=0755,mtime={epoch}",
        "--num-jobs", str(max(1, threads)),
        str(out),
    )  # fmt: skip
    return Command(argv=argv, env=(("SOURCE_DATE_EPOCH", str(epoch)),), why="write the SIF's file system")


def _check_target(out: Path) -> None:
    if not (out.exists() or out.is_symlink()):
        return
    head = b""
    if out.is_file() and not out.is_symlink():
        with out.open("rb") as stream:
            head = stream.read(_HEADER.size)
    if _MAGIC not in head:
        raise UsageError(
            f"`{out}` is there already and is not a SIF", hint="move it away, or choose another --output"
        )


def _write_squashfs(
    sources: Iterable[Source], squashfs: Path, *, epoch: int, runner: Runner, threads: int
) -> list[Layer]:
    written: list[Source] = []
    try:
        with runner.feed(squashfs_command(squashfs, epoch=epoch, threads=threads)) as sink:
            _widen(sink)
            for source in sources:
                written.append(source)
                for piece in source.body:
                    sink.write(piece)
            sink.write(END)
    except CommandError as error:
        if "I/O error" in error.message:  # all that tar2sqfs says of a full disk; its file is removed by then
            raise SpaceError(
                f"{error.message}\nmost likely there was no space left on the file system of `{squashfs.parent.parent}`",
                hint="free space there, or point --output at a larger disk; then run it again",
            ) from error
        raise
    return [source.layer() for source in written]


def _widen(pipe: IO[bytes]) -> None:
    """Fewer and larger reads for the program; only a matter of speed, and not every kernel or user may."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, CHUNK)


def _make_room(squashfs: Path, offset: int, runner: Runner) -> Path:
    """A file that holds the file system at `offset`: its extents moved where ext4 or XFS can, else a copy."""
    argv = ("fallocate", "--insert-range", "--offset", "0", "--length", str(offset), str(squashfs))
    with contextlib.suppress(CommandError, ToolError):
        runner.run(Command(argv=argv, why="make room for the SIF's header without a copy"))
        return squashfs
    copy = squashfs.with_name("sif")
    with squashfs.open("rb") as source, copy.open("xb") as target:
        target.seek(offset)
        shutil.copyfileobj(source, target, CHUNK)
    squashfs.unlink()
    return copy


def _front(
    objects: Sequence[Document],
    *,
    offset: int,
    size: int,
    epoch: int,
    identity: uuid.UUID,
    architecture: str,
) -> bytes:
    """All bytes before the file system."""
    arch = _ARCHITECTURES[architecture]
    parts: list[bytes] = []
    at = _DATA_AT
    for number, one in enumerate(objects, 1):
        length = len(one.content)
        parts.append(_descriptor(one.data_type, number, at, length, epoch, name=one.name, extra=one.extra))
        at += length
    parts.append(
        _descriptor(
            DataType.PARTITION, len(parts) + 1, offset, size, epoch,
            name="rootfs.squashfs", extra=_PARTITION.pack(_SQUASHFS, _PRIMARY_SYSTEM, arch),
        )
    )  # fmt: skip
    free = _SLOTS - len(parts)
    header = _HEADER.pack(
        _LAUNCH, _MAGIC, _VERSION, arch, identity.bytes, epoch, epoch,
        free, _SLOTS, _DESCRIPTORS_AT, _SLOTS * _DESCRIPTOR.size, _DATA_AT, offset + size - _DATA_AT,
    )  # fmt: skip
    front = header.ljust(_DESCRIPTORS_AT, b"\0") + b"".join(parts).ljust(_SLOTS * _DESCRIPTOR.size, b"\0")
    return (front + b"".join(one.content for one in objects)).ljust(offset, b"\0")


def _descriptor(
    data_type: DataType, number: int, offset: int, size: int, epoch: int, *, name: str, extra: bytes = b""
) -> bytes:
    return _DESCRIPTOR.pack(
        data_type, True, number, _GROUP, 0, offset, size, size, epoch, epoch, 0, 0, name.encode(), extra
    )


def _parse(path: Path, stream: IO[bytes], total: int) -> Sif:
    head = stream.read(_HEADER.size)
    _, magic, version, _, identity, created, _, _, slots, at, size, _, _ = _HEADER.unpack(head)
    if magic != _MAGIC or version != _VERSION:
        raise ValueError("it does not start as one")
    if not 0 < slots <= _MOST_SLOTS or size < slots * _DESCRIPTOR.size:
        raise ValueError(f"it claims {slots} descriptors in {size} bytes")
    stream.seek(at)
    raw = stream.read(slots * _DESCRIPTOR.size)
    if len(raw) != slots * _DESCRIPTOR.size:
        raise ValueError("its descriptors are cut off")
    parsed = (
        _parse_descriptor(raw[at : at + _DESCRIPTOR.size], total)
        for at in range(0, len(raw), _DESCRIPTOR.size)
    )
    descriptors = tuple(descriptor for descriptor in parsed if descriptor)
    if not any(descriptor.is_primary for descriptor in descriptors):
        raise ValueError("no part of it is a squashfs to start from")
    return Sif(path=path, identity=uuid.UUID(bytes=identity), created=created, descriptors=descriptors)


def _parse_descriptor(raw: bytes, total: int) -> Descriptor | None:
    data_type, used, number, _, _, offset, size, _, _, _, _, _, name, extra = _DESCRIPTOR.unpack(raw)
    if not used:
        return None
    if offset < _HEADER.size or size < 0 or offset + size > total:
        raise ValueError(f"part {number} would reach from byte {offset} to {offset + size} of {total}")
    file_system, role, _ = _PARTITION.unpack_from(extra)
    return Descriptor(
        data_type=DataType(data_type),
        number=number,
        offset=offset,
        size=size,
        name=name.rstrip(b"\0").decode(errors="replace"),
        is_primary=data_type == DataType.PARTITION and (file_system, role) == (_SQUASHFS, _PRIMARY_SYSTEM),
    )


def _json(labels: Mapping[str, str]) -> str:
    return json.dumps(dict(labels), sort_keys=True, separators=(",", ":"))
