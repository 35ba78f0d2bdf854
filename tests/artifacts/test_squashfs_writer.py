"""Tests of the file system that is made of the layers' own frames, read back by readers that know nothing of it."""

import itertools
import os
import random
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from envbuilder.artifacts.sif import SifFacts, read_sif
from envbuilder.artifacts.squashfs.reader import Squashfs
from envbuilder.artifacts.squashfs.writer import Packed, layout_squashfs
from envbuilder.core.errors import BuildError
from envbuilder.core.process import Command, ProcessRunner
from envbuilder.layers.entry import Entry, Kind, path_order
from envbuilder.layers.layer import Layer, read_blocks, read_manifest, write_layer, write_layer_from_tar
from envbuilder.layers.writer import BLOCK_SIZE, Blocks, Frame, parse_blocks
from envbuilder.verify.compare import sif_manifest
from tests.support.sifs import write_sif

EPOCH = 1_700_000_000
SIZES = (1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 2 * BLOCK_SIZE, 5 * BLOCK_SIZE + 7)


def noise(size: int, seed: object = 0) -> bytes:
    """What no compressor makes shorter."""
    return random.Random(f"{size} {seed}").randbytes(size)


def text(size: int, seed: object = 0) -> bytes:
    line = f"{seed} is a line that is there many times\n".encode()
    return (line * (size // len(line) + 1))[:size]


def layer_of(folder: Path, files: dict[str, bytes]) -> Layer:
    for name, content in files.items():
        path = folder / "tree" / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return write_layer(name="x", tree=folder / "tree", folder=folder / "layer", epoch=EPOCH, threads=2)


def write(out: Path, layers: Sequence[Layer]) -> SifFacts:
    return write_sif(layers=layers, out=out, epoch=EPOCH, definition="", labels={})


def everything(layers: Sequence[Layer]) -> tuple[Entry, ...]:
    root = Entry(path="", kind=Kind.DIRECTORY, mode=0o755, uid=0, gid=0, mtime=EPOCH)
    found = {entry.path: entry for layer in layers for entry in read_manifest(layer)}
    return tuple(sorted(({"": root} | found).values(), key=path_order))


def unpacked(sif: Path, out: Path) -> dict[str, bytes | str | None]:
    """What `unsquashfs` finds: contents of files, targets of links, None for folders."""
    argv = ("unsquashfs", "-q", "-n", "-d", str(out), "-o", str(read_sif(sif).system.offset), str(sif))
    ProcessRunner(os.environ).run(Command(argv=argv, why="unpack"))
    paths = {str(path.relative_to(out)): path for path in out.rglob("*")}
    return {
        name: str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        for name, path in paths.items()
    }


@pytest.mark.programs
@pytest.mark.parametrize("make", [noise, text])
def test_files_of_every_size_are_what_they_were(tmp_path, make):
    files = {f"a/{size}": make(size) for size in SIZES} | {"a/0": b""}
    layer = layer_of(tmp_path, files)
    write(tmp_path / "a.sif", [layer])
    assert sif_manifest(tmp_path / "a.sif") == everything([layer])
    assert unpacked(tmp_path / "a.sif", tmp_path / "out") == files | {"a": None}


@pytest.mark.programs
def test_a_file_with_blocks_of_both_kinds_is_what_it_was(tmp_path):
    mixed = b"".join(make(BLOCK_SIZE, seed) for seed, make in enumerate((text, noise, noise, text, noise)))
    files = {"before": text(9), "mixed": mixed + noise(100), "tail": mixed + text(100), "after": noise(9)}
    layer = layer_of(tmp_path, files)
    write(tmp_path / "a.sif", [layer])
    assert unpacked(tmp_path / "a.sif", tmp_path / "out") == files


@pytest.mark.programs
def test_folders_of_many_names_are_read_by_others(tmp_path):
    files = {f"many/{number:05}-{'n' * 80}": b"x" for number in range(3000)}  # a list of more than 64 KiB
    files |= {f"deep/{'/'.join('abcdefgh'[: n + 1])}/file": bytes([n]) for n in range(8)}
    files |= {f"wide/{number}/file": text(number) for number in range(300)}
    layer = layer_of(tmp_path, files)
    write(tmp_path / "a.sif", [layer])
    assert sif_manifest(tmp_path / "a.sif") == everything([layer])
    found = unpacked(tmp_path / "a.sif", tmp_path / "out")
    assert {name: content for name, content in found.items() if content is not None} == files


@pytest.mark.programs
def test_owners_links_modes_times_and_attributes_are_kept(tmp_path):
    tar = tmp_path / "os.tar"
    with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as out:
        for number, (name, kind) in enumerate(
            [(".", tarfile.DIRTYPE), ("d", tarfile.DIRTYPE), ("d/file", tarfile.REGTYPE), ("d/link", tarfile.SYMTYPE)]
        ):  # fmt: skip
            item = tarfile.TarInfo(name)
            item.type, item.uid, item.gid, item.mode, item.mtime = kind, number, 70_000, 0o1751, 5
            item.linkname = "t" * 300 if kind == tarfile.SYMTYPE else ""
            item.pax_headers = {
                "SCHILY.xattr.user.note": f"of {name}",
                "SCHILY.xattr.security.capability": "y",
            }
            out.addfile(item)
        hard = tarfile.TarInfo("d/hard")
        hard.type, hard.linkname = tarfile.LNKTYPE, "d/file"
        out.addfile(hard)
    layer = write_layer_from_tar(name="os", tar=tar, folder=tmp_path / "layer", epoch=EPOCH, threads=1)
    write(tmp_path / "a.sif", [layer])
    found = {entry.path: entry for entry in sif_manifest(tmp_path / "a.sif")}
    assert tuple(found.values()) == everything([layer])
    assert found["d/link"].target == "t" * 300
    assert found["d"].xattrs == (("security.capability", b"y"), ("user.note", b"of d"))
    assert (found["d/file"].uid, found["d/file"].gid, found["d/file"].mtime) == (2, 70_000, 5)


def test_the_same_content_has_one_place(tmp_path):
    one = layer_of(tmp_path / "1", {"a": noise(BLOCK_SIZE * 3), "b": noise(9), "c": noise(BLOCK_SIZE * 3)})
    two = layer_of(tmp_path / "2", {"d": noise(BLOCK_SIZE * 3), "e": noise(9)})
    sizes = [write(tmp_path / f"{n}.sif", layers).size for n, layers in enumerate(([one], [one, two]))]
    assert sizes[1] - sizes[0] < BLOCK_SIZE
    assert sif_manifest(tmp_path / "1.sif") == everything([one, two])


def test_every_byte_of_a_layer_that_is_content_is_taken_as_it_is(tmp_path):
    layer = layer_of(tmp_path, {f"{n}": noise(n * 35_000).hex().encode() for n in range(1, 12)})
    packed = Packed(blob=layer.blob, entries=read_manifest(layer), blocks=read_blocks(layer))
    pieces = layout_squashfs([packed], epoch=EPOCH).pieces
    assert all(not piece.plain for piece in pieces)
    assert sum(piece.length for piece in pieces) > layer.size * 0.9


def test_a_file_beyond_four_gigabytes_is_found(tmp_path):
    entries = [
        Entry(path="", kind=Kind.DIRECTORY, mode=0o755, uid=0, gid=0, mtime=0),
        *(
            Entry(path=name, kind=Kind.FILE, mode=0o644, uid=0, gid=0, mtime=0, size=size, sha256=name * 64)
            for name, size in (("a", 5 << 30), ("b", BLOCK_SIZE))
        ),
    ]
    ends = itertools.accumulate(itertools.repeat(BLOCK_SIZE - 1, (5 << 30) // BLOCK_SIZE), initial=0)
    frames: list[Frame] = [(at, BLOCK_SIZE - 1, BLOCK_SIZE) for at in ends]
    large = {"a" * 64: tuple(frames[:-1]), "b" * 64: (frames[-1],)}
    blocks = Blocks(fragments=(), small={}, large=large)
    system = layout_squashfs([Packed(blob=tmp_path / "blob", entries=entries, blocks=blocks)], epoch=0)
    with (tmp_path / "squashfs").open("wb") as stream:
        stream.write(system.head)
        stream.seek(system.size - len(system.tables))
        stream.write(system.tables)
    with (tmp_path / "squashfs").open("rb") as stream:
        contents = Squashfs(stream).contents()
    assert contents["b"].start == contents["a"].start + sum(contents["a"].blocks)
    assert contents["b"].start > 1 << 32


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (Entry(path="p", kind=Kind.SPECIAL, mode=0o600, uid=0, gid=0, mtime=0, target="fifo"), "`p` is a fifo"),
        (
            Entry(path="p", kind=Kind.DIRECTORY, mode=0o700, uid=0, gid=0, mtime=0, xattrs=(("system.acl", b""),)),
            "cannot hold the extended attribute `system.acl`",
        ),
    ],
)  # fmt: skip
def test_what_a_squashfs_cannot_hold_is_named(tmp_path, entry, message):
    none = Blocks(fragments=(), small={}, large={})
    with pytest.raises(BuildError, match=message):
        layout_squashfs([Packed(blob=tmp_path, entries=[entry], blocks=none)], epoch=0)


def test_a_path_below_a_file_is_refused(tmp_path):
    link = Entry(path="a", kind=Kind.LINK, mode=0o777, uid=0, gid=0, mtime=0, target="x")
    below = Entry(path="a/b", kind=Kind.DIRECTORY, mode=0o755, uid=0, gid=0, mtime=0)
    with pytest.raises(BuildError, match="`a` is no folder, and `a/b` would be in it"):
        layout_squashfs(
            [Packed(blob=tmp_path, entries=[link, below], blocks=Blocks(fragments=(), small={}, large={}))],
            epoch=0,
        )


def test_an_index_is_read_as_it_was_written():
    blocks = Blocks(fragments=((0, 5, 9),), small={"a": (0, 3)}, large={"b": ((5, 6, 7), (11, 1, 2))})
    assert parse_blocks(blocks.to_json()) == blocks
    for wrong in ("", "{}", '{"fragments": [[1]], "small": {}, "large": {}}'):
        with pytest.raises((ValueError, KeyError, TypeError)):
            parse_blocks(wrong)
