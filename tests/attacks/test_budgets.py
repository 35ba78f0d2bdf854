"""Files that make a naive reader fill the memory or the disk, or never end. Each is refused, or read in bounded time and memory."""

import bz2
import gzip
import hashlib
import io
import json
import logging
import lzma
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest
import zstandard

from envbuilder.artifacts.oci.layout import read_layout
from envbuilder.artifacts.oci.reader import read_image, read_tree
from envbuilder.artifacts.sif import DataType, read_sif
from envbuilder.core import console
from envbuilder.core.archive import BoundedZip
from envbuilder.core.errors import BuildError, CommandError, VerifyError
from envbuilder.core.process import Command, ProcessRunner
from envbuilder.diagnose import diagnose, recorder
from envbuilder.diagnose.collectives import Ranks
from envbuilder.diagnose.recorder import read_dump
from envbuilder.layers.entry import Entry, Kind
from envbuilder.layers.import_tree import index_tar, scan
from envbuilder.layers.overlay import DAMAGED, Overlay
from envbuilder.lock.resolve.project_metadata import archived_files
from envbuilder.sources.deb import open_members, read_about
from envbuilder.steps.gpu_code import read_gpu_code
from envbuilder.verify.alone import verify_alone
from envbuilder.verify.audit.audited_image import read_elf
from envbuilder.verify.audit.files import finds
from envbuilder.verify.compare import sif_manifest
from tests.support.bounded import bounded
from tests.support.debs import write_package
from tests.support.elves import elf

EPOCH = 1_700_000_000
MIB = 1 << 20


# ---------------------------------------------------------------------------------------------- tars and layers


def pax(records: Iterable[tuple[bytes, bytes]], kind: bytes = tarfile.XHDTYPE) -> bytes:
    """Return an extended header with these records, whatever they are."""
    parts = []
    for key, value in records:
        rest = b" %b=%b\n" % (key, value)
        size = len(rest)
        while len(b"%d" % size) + len(rest) != size:
            size = len(b"%d" % size) + len(rest)
        parts.append(b"%d%b" % (size, rest))
    body = b"".join(parts)
    return block("PaxHeader", kind=kind, size=len(body)) + body + bytes(-len(body) % 512)


def block(name: str, *, kind: bytes = tarfile.REGTYPE, size: int = 0, target: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.mtime = kind, size, target, EPOCH
    return info.tobuf(tarfile.GNU_FORMAT)


def sparse_old() -> bytes:
    """Return a sparse file of 1 PB in the old form of GNU tar, which has 512 bytes of content."""
    head = bytearray(block("big", kind=tarfile.GNUTYPE_SPARSE, size=512))
    head[386:410] = b"%011o\0%011o\0" % (0, 512)
    head[483:495] = b"\x80" + (1 << 50).to_bytes(11, "big")
    head[148:156] = b"        "
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + bytes(512)


TARS = {
    "a sparse file of 1 PB": sparse_old,
    "a sparse file of 1 PB, in a PAX header": lambda: (
        pax([(b"GNU.sparse.size", b"%d" % (1 << 50)), (b"GNU.sparse.numblocks", b"0")]) + block("big")
    ),
    "a sparse file with a map in its content": lambda: (
        pax([(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"%d" % (1 << 50))])
        + block("big", size=512) + b"1\n0\n512\n".ljust(512, b"\0")
    ),
    "a PAX header of 11 MB": lambda: pax((b"%07x" % number, b"") for number in range(700_000)) + block("a"),
    "a PAX header that claims 8 GB": lambda: block("PaxHeader", kind=tarfile.XHDTYPE, size=(8 << 30) - 1),
    "a name that claims 8 GB": lambda: block("long", kind=tarfile.GNUTYPE_LONGNAME, size=(8 << 30) - 1),
    "a global header whose records every member gets": lambda: (
        pax(((b"%04x" % number, b"x") for number in range(20_000)), tarfile.XGLTYPE)
        + b"".join(block(f"f{number}") for number in range(2000))
    ),
    "headers before headers": lambda: pax([(b"a", b"b")]) * 3000 + block("a"),
    "a file of a negative size": lambda: pax([(b"size", b"-1024")]) + block("a"),
    "a file of 10^30 bytes": lambda: pax([(b"size", b"1" + b"0" * 30)]) + block("a"),
    "a path of a million folders": lambda: pax([(b"path", b"a/" * 400_000 + b"b")]) + block("a"),
    "a path of 5000 letters": lambda: pax([(b"path", b"a" * 5000)]) + block("a"),
}  # fmt: skip


@pytest.mark.parametrize("case", TARS)
def test_a_hostile_tar_is_no_layer(case, tmp_path):
    (tmp_path / "root.tar").write_bytes(TARS[case]() + bytes(1024))
    with bounded(), pytest.raises(BuildError, match=r"root\.tar"):
        index_tar(tmp_path / "root.tar", epoch=EPOCH)


def lay(tree: Overlay, tar: bytes) -> None:
    """Lay a layer that is compressed as Docker does it, whose digest is right."""
    digest = hashlib.sha256(tar).hexdigest()
    tree.lay_over(io.BytesIO(zstandard.compress(tar)), name="layer", sha256="", diff_id=digest)


@pytest.mark.parametrize("case", TARS)
def test_a_hostile_tar_is_no_layer_of_an_image(case):
    tar = TARS[case]() + bytes(1024)
    with bounded(), pytest.raises(DAMAGED):
        lay(Overlay(lambda _: False), tar)


@pytest.mark.parametrize("case", TARS)
def test_a_hostile_tar_is_no_part_of_a_package(case, tmp_path):
    deb = write_package(tmp_path / "a.deb", [])
    whole = deb.read_bytes()
    data = gzip.compress(TARS[case]() + bytes(1024))
    at = whole.index(b"control.tar.gz")
    size = int(whole[at + 48 : at + 58])
    head = whole[at : at + 48] + b"%-10d" % len(data) + b"`\n"
    deb.write_bytes(whole[:at] + head + data + b"\n" * (len(data) % 2) + whole[at + 60 + size + size % 2 :])
    with bounded(), pytest.raises(BuildError, match=r"a\.deb"):
        read_about(deb)


def test_whiteouts_take_time_in_the_number_of_paths():
    """One opaque folder for each folder: 174 s when each looked at every path."""
    count = 8_000
    lower = b"".join(block(f"d{n}", kind=tarfile.DIRTYPE) + block(f"d{n}/f") for n in range(count))
    upper = b"".join(2 * block(f"d{n}/.wh..wh..opq") + block(f"d{n}/new") for n in range(count))
    tree = Overlay(lambda _: False)
    with bounded(seconds=6):
        lay(tree, lower + bytes(1024))
        lay(tree, upper + bytes(1024))
    assert {name for path in tree if "/" in path for name in [path.partition("/")[2]]} == {"new"}
    assert len(tree) == 2 * count


def test_whiteouts_of_one_folder_take_time_in_the_number_of_its_paths():
    count = 10_000
    tree = Overlay(lambda _: False)
    upper = b"".join(block(f"a/n{n}") + block("a/.wh..wh..opq") for n in range(count))
    with bounded(seconds=6):
        lay(tree, b"".join(block(f"a/f{n}") for n in range(count)) + bytes(1024))
        lay(tree, upper + bytes(1024))
    assert set(tree) == {f"a/n{n}" for n in range(count)}


@pytest.mark.parametrize("is_there", [True, False])
def test_a_chain_of_hard_links_takes_time_in_its_length(is_there, tmp_path):
    count = 20_000
    first = block("f000000") if is_there else b""
    links = (block(f"f{n:06}", kind=tarfile.LNKTYPE, target=f"f{n - 1:06}") for n in range(1, count))
    (tmp_path / "root.tar").write_bytes(first + b"".join(links) + bytes(1024))
    with bounded(seconds=6):
        if is_there:
            members = index_tar(tmp_path / "root.tar", epoch=EPOCH)
            assert {member.hard for member in members if member.hard} == {"f000000"}
        else:
            with pytest.raises(BuildError, match="is not there before it"):
                index_tar(tmp_path / "root.tar", epoch=EPOCH)


def test_a_layer_that_unpacks_to_gigabytes_of_zeros_ends_early():
    """64 KB for each 64 MiB: a file of 8 GB, of which 2 GiB and 100 times the layer's size are read."""
    layer = gzip.compress(block("zeros", size=(8 << 30) - 1)) + gzip.compress(bytes(64 * MIB)) * 128
    with bounded(seconds=60, mebibytes=300), pytest.raises(ValueError, match="bytes that a layer unpacks to"):
        Overlay(lambda _: False).lay_over(io.BytesIO(layer), name="layer", sha256="", diff_id="")


def test_a_folder_that_is_too_deep_is_no_layer(tmp_path):
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    with bounded(), pytest.raises(BuildError, match="folders in the path"):
        list(scan(tmp_path))
    while (tmp_path / "d/d").exists():  # pytest's own removal has a limit as well
        (tmp_path / "d/d").rename(tmp_path / "e")
        (tmp_path / "d").rmdir()
        (tmp_path / "e").rename(tmp_path / "d")


# ------------------------------------------------------------------------------------------------------- images


def make_image(folder: Path, *, config: object = None, layers: tuple[str, ...] = ("layer.tar",)) -> Path:
    """Write what `docker save` writes, unpacked."""
    folder.mkdir(exist_ok=True)
    tar = block("a") + bytes(1024)
    (folder / "layer.tar").write_bytes(tar)
    diff_id = f"sha256:{hashlib.sha256(tar).hexdigest()}"
    text = {
        "os": "linux",
        "architecture": "amd64",
        "rootfs": {"type": "layers", "diff_ids": [diff_id] * len(layers)},
    }
    (folder / "config.json").write_text(json.dumps(config or text))
    saved = [{"Config": "config.json", "RepoTags": [], "Layers": layers}]
    (folder / "manifest.json").write_text(json.dumps(saved))
    return folder


def test_what_docker_save_writes_is_read_with_its_links(tmp_path):
    make_image(tmp_path, layers=("layer.tar", "again/layer.tar"))
    (tmp_path / "again").mkdir()
    (tmp_path / "again/layer.tar").symlink_to("../layer.tar")
    assert [entry.path for entry in read_tree(tmp_path).entries] == ["a"]


@pytest.mark.parametrize("name", ["/dev/zero", "../../../../../../../../dev/zero", "link", "fifo"])
def test_an_image_that_names_a_device_is_refused(name, tmp_path):
    make_image(tmp_path / "image", layers=(name,))
    (tmp_path / "image/link").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "image/fifo")
    with bounded(), pytest.raises(VerifyError, match="not an image that can be read"):
        read_tree(tmp_path / "image")


@pytest.mark.parametrize("name", ["index.json", "manifest.json"])
def test_an_image_whose_description_is_a_device_is_refused(name, tmp_path):
    make_image(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    for read in (read_image, read_layout):
        with bounded(), pytest.raises(VerifyError):
            read(tmp_path)


def test_an_image_whose_description_is_nested_deeply_is_refused(tmp_path):
    make_image(tmp_path)
    for name in ("config.json", "manifest.json", "index.json"):
        (tmp_path / name).write_text("[" * 1_000_000)
        with bounded(), pytest.raises(VerifyError):
            read_image(tmp_path)


def squashfs(*, size: int = 0, names: int = 1, listed: int | None = None) -> bytes:
    """Return a squashfs whose file has `size` bytes of zeros, none of them stored, and any number of names.

    Its list of blocks has `listed` of them, or as many as the size needs.
    """
    block_size = MIB
    blocks = bytes(4 * (-(-size // block_size) if listed is None else listed))
    none = 0xFFFFFFFF
    file = (
        struct.pack("<4H2I", 9, 0o644, 0, 0, EPOCH, 2)
        + struct.pack("<3Q4I", 96, size, size, names, none, 0, none)
        + blocks
    )
    listing = b""
    for first in range(0, names, 256):
        part = range(first, min(first + 256, names))
        listing += struct.pack("<3I", len(part) - 1, 0, 2)
        listing += b"".join(struct.pack("<HhHH", 0, 0, 2, 5) + b"%06d" % number for number in part)
    inodes, at = pack(file)
    root_at = at[len(file) // 8192], len(file) % 8192
    root = struct.pack("<4H2I4I2HI", 8, 0o755, 0, 0, EPOCH, 1, 2, len(listing) + 3, 0, 2, 0, 0, none)
    inodes, _ = pack(file + root)
    folders, _ = pack(listing)
    ids = struct.pack("<H", 4 | 0x8000) + bytes(4)
    inodes_at = 96
    folders_at = inodes_at + len(inodes)
    ids_at = folders_at + len(folders)
    end = ids_at + len(ids) + 8
    head = struct.pack(
        "<5I6H8Q", 0x73717368, 2, EPOCH, block_size, 0, 1, block_size.bit_length() - 1, 0, 1, 4, 0,
        root_at[0] << 16 | root_at[1], end, ids_at + len(ids), 2**64 - 1, inodes_at, folders_at, 2**64 - 1, 2**64 - 1,
    )  # fmt: skip
    return head + inodes + folders + ids + struct.pack("<Q", ids_at)


def pack(data: bytes) -> tuple[bytes, list[int]]:
    """Return metadata blocks and where each begins."""
    out, places = b"", []
    for at in range(0, len(data), 8192):
        stored = zlib.compress(data[at : at + 8192])
        places.append(len(out))
        out += struct.pack("<H", len(stored)) + stored
    return out, [*places, len(out)]


def write_sif(path: Path, system: bytes, *, document: int = 0) -> Path:
    """Write a SIF with this file system, and an SBOM of `document` bytes that take no space on the disk."""
    at = 4096 + 2 * 585
    extra = struct.pack("<ii3s", 1, 2, b"02\0")
    partition = struct.pack(
        "<i?III7q128s384s", 0x4004, True, 1, 1, 0, at, len(system), len(system), 0, 0, 0, 0, b"root", extra
    )
    sbom = struct.pack(
        "<i?III7q128s384s", 0x4009, True, 2, 1, 0, at, document, document, 0, 0, 0, 0, b"sbom", b""
    )
    head = struct.pack(
        "<32s10s3s3s16s8q", b"#!/usr/bin/env run-singularity\n", b"SIF_MAGIC\0", b"01\0", b"02\0", b"", 0, 0, 0, 2, 4096,
        2 * 585, at, len(system),
    )  # fmt: skip
    with path.open("wb") as stream:
        stream.write(head.ljust(4096, b"\0") + partition + sbom + system)
        stream.truncate(max(stream.tell(), at + document))
    return path


def test_a_small_file_system_is_read(tmp_path):
    sif = write_sif(tmp_path / "a.sif", squashfs(size=3 * MIB, names=2))
    found = [(entry.path, entry.size) for entry in sif_manifest(sif)]
    assert found == [("", 0), ("000000", 3 * MIB), ("000001", 3 * MIB)]


@pytest.mark.parametrize(
    ("size", "names", "words"),
    [
        (2 << 40, 1, "bytes that it unpacks to"),
        (1 << 62, 1, "bytes"),
        (1 << 30, 200_000, ""),  # each name of the file had a list of 1000 blocks of its own
    ],
    ids=["2 TB", "4 EB", "many names"],
)
def test_a_small_sif_with_a_large_file_takes_bounded_time(size, names, words, tmp_path):
    system = squashfs(size=size, names=names, listed=0 if size > 2 << 40 else None)
    sif = write_sif(tmp_path / "a.sif", system)
    assert sif.stat().st_size < 3 * MIB
    with bounded(seconds=30, mebibytes=600):
        if words:
            with pytest.raises(VerifyError, match=words):
                verify_alone(sif)
        else:
            assert len(sif_manifest(sif)) == names + 1


def test_a_sif_with_a_document_of_two_terabytes_is_refused(tmp_path):
    sif = write_sif(tmp_path / "a.sif", squashfs(), document=512 << 30)
    with bounded(), pytest.raises(VerifyError, match="SBOM has"):
        read_sif(sif).read(DataType.SBOM)


# --------------------------------------------------------------------------------- archives, packages and wheels


def test_a_source_archive_of_8_gb_is_refused(tmp_path):
    """8 MB of gzip, as one file."""
    piece = gzip.compress(bytes(64 * MIB))
    archive = tmp_path / "a-1.tar.gz"
    archive.write_bytes(gzip.compress(block("a/zeros", size=(8 << 30) - 1)) + piece * 128)
    with bounded(seconds=30, mebibytes=1500), pytest.raises(BuildError, match=r"a-1\.tar\.gz"):
        for _ in archived_files(archive, strip=True):
            pass


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_source_archive_of_many_files_of_zeros_is_refused(pack, tmp_path):
    archive = tmp_path / "a-1.tar"
    tar = b"".join(block(f"a/{n}", size=MIB) + bytes(MIB) for n in range(290))
    archive.write_bytes(pack(tar + bytes(1024)))
    with bounded(seconds=60, mebibytes=200), pytest.raises(BuildError, match="bytes"):
        for _ in archived_files(archive, strip=True):
            pass


def test_links_to_one_file_count_as_often_as_they_are_read(tmp_path):
    links = b"".join(block(f"a/l{n}", kind=tarfile.SYMTYPE, target="big") for n in range(400))
    archive = tmp_path / "a-1.tar.gz"
    archive.write_bytes(gzip.compress(block("a/big", size=MIB) + bytes(MIB) + links + bytes(1024)))
    with bounded(seconds=20), pytest.raises(BuildError, match="bytes"):
        for _ in archived_files(archive, strip=True):
            pass


def test_a_link_to_itself_in_a_source_archive_is_left_out(tmp_path):
    archive = tmp_path / "a-1.tar"
    archive.write_bytes(block("a/l", kind=tarfile.SYMTYPE, target="l") + bytes(1024))
    with bounded():
        assert list(archived_files(archive, strip=True)) == []


def test_a_zip_of_zeros_is_refused(tmp_path):
    archive = tmp_path / "a-1.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for number in range(6):
            out.writestr(f"a/{number}", bytes(64 * MIB))
    with bounded(seconds=20, mebibytes=200), pytest.raises(BuildError, match="bytes"):
        for _ in archived_files(archive, strip=True):
            pass
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("a/METADATA", bytes(257 * MIB))
    with (
        bounded(seconds=20, mebibytes=600),
        BoundedZip(archive) as wheel,
        pytest.raises(zipfile.BadZipFile, match="bytes of 'a/METADATA'"),
    ):
        wheel.read("a/METADATA")


def test_an_xz_package_that_asks_for_4_gb_is_refused(tmp_path):
    deb = write_package(tmp_path / "a.deb", [("f", "x", 0o644)], packed=".xz")
    whole = deb.read_bytes()
    at = whole.index(b"data.tar.xz")
    packed = bytearray(lzma.compress(bytes(1024), lzma.FORMAT_ALONE))
    packed[1:5] = b"\xff\xff\xff\xff"  # the size of its dictionary
    head = b"data.tar.lzma   " + whole[at + 16 : at + 48] + b"%-10d" % len(packed) + b"`\n"
    deb.write_bytes(whole[:at] + head + packed)
    with bounded(), pytest.raises(BuildError, match="cannot be read"), open_members(deb) as tar:
        list(tar)


@pytest.mark.parametrize("size", [b"-60       ", b"9999999999"])
def test_a_package_whose_member_has_a_wrong_size_is_refused(size, tmp_path):
    deb = write_package(tmp_path / "a.deb", [])
    whole = deb.read_bytes()
    deb.write_bytes(whole[: 8 + 48] + size + whole[8 + 58 :])
    with bounded(), pytest.raises(BuildError, match="bytes of `debian-binary`"), open_members(deb):
        pass


def test_a_package_without_fields_is_no_traceback(tmp_path):
    deb = write_package(tmp_path / "a.deb", [])
    deb.write_bytes(
        deb.read_bytes()
        .replace(b"control.tar.gz", b"data.tar.gz   ")
        .replace(b"data.tar.gz ", b"control.tar.gz", 1)
    )
    with pytest.raises(BuildError):
        read_about(deb)


# ---------------------------------------------------------------------------------------------- logs and dumps


def doubled(depth: int = 30) -> bytes:
    """Return a pickle of a list that holds one list twice, which holds one list twice, and so on."""
    value: list[object] = [1]
    for _ in range(depth):
        value = [value, value]
    entry = {
        "collective_seq_id": 1, "process_group": [value, ""], "profiling_name": value, "input_sizes": value,
        "frames": [{"filename": value}],
    }  # fmt: skip
    return pickle.dumps({"rank": 0, "entries": [entry]}, protocol=2)


def keyed(depth: int = 40) -> bytes:
    """Return a pickle whose key is a tuple of tuples of tuples."""
    value: tuple[object, ...] = (1,)
    for _ in range(depth):
        value = (value, value)
    plain = pickle.dumps(value, protocol=4)[:-1]
    return b"\x80\x04}" + plain[2:] + b"K\x01s."


def copied(count: int = 200_000) -> bytes:
    """Return a pickle that copies one long list many times, by torch's own builder of lists."""
    builder = b"ctorch.jit._pickle\nbuild_intlist\nq\x00"
    items = b"](" + b"K\x01" * count + b"eq\x01"
    return b"\x80\x02}X\x07\x00\x00\x00entries(" + builder + items + b"h\x00h\x01\x85R" * 20_000 + b"ls."


DUMPS = {
    "one list held many times": doubled,
    "a key of tuples": keyed,
    "copies of a list": copied,
    "a number of 600 digits": lambda: pickle.dumps(
        {"rank": 0, "entries": [{"collective_seq_id": 1 << 2000, "time_created_ns": 1 << 2000}]}
    ),
    "a rank of 600 digits": lambda: pickle.dumps({"rank": 1 << 2000, "entries": []}),
    "a world of a million ranks and more": lambda: json.dumps(
        {"rank": 0, "pg_config": {"0": {"desc": "default_pg", "ranks": "1," * 5_000_000}}, "entries": [{"seq_id": 1}]}
    ).encode(),
}  # fmt: skip


@pytest.mark.parametrize("case", DUMPS)
def test_a_hostile_dump_takes_bounded_time_and_memory(case, tmp_path):
    (tmp_path / "nccl_trace_rank_0").write_bytes(DUMPS[case]())
    with bounded(seconds=20, mebibytes=300):
        with (tmp_path / "nccl_trace_rank_0").open("rb") as stream:
            ranks = Ranks()
            read_dump(stream, "nccl_trace_rank_0", ranks)
        ranks.stalls()
        assert len(ranks.missing) <= 1_000_000


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}X\x07\x00\x00\x00entries(" + b"]" * 200_000 + b"ls.",
        b'{"rank":1,"entries":[' + b"[]," * 100_000 + b"[]]}",
    ],
    ids=["pickle", "JSON"],
)
def test_a_dump_has_a_bounded_number_of_values(content, monkeypatch):
    """An empty list is one byte in a pickle, and 64 bytes in memory: 512 MB took 36 GB."""
    monkeypatch.setattr(recorder, "_MOST_VALUES", 100_000)
    assert not read_dump(io.BytesIO(content), "nccl_trace_rank_1", Ranks())


WATCHDOG = b"[rank0]:[E1118 20:32:23.95 ProcessGroupNCCL.cpp:616] [PG 0 Rank 0] Watchdog caught collective operation timeout: "
LOGS = {
    "escapes without an end": lambda: b"\x1b]" * 100_000,
    "escapes without an end, in short lines": lambda: (b"\x1b]" * 8000 + b"\n") * 16,
    "brackets in a watchdog's line": lambda: WATCHDOG + b"WorkNCCL(SeqNum=1" + b"((x)" * 90 + b"\n",
    "a watchdog's time of 300 digits": lambda: WATCHDOG + b"WorkNCCL(SeqNum=1, OpType=ALLREDUCE) ran for " + b"9" * 330 + b" milliseconds\n",
    "a number that no Python reads": lambda: WATCHDOG + "WorkNCCL(SeqNum=²) ran for 1 milliseconds\n".encode(),
    "a rank of 5000 digits": lambda: b"[rank" + b"1" * 5000 + b"]: Traceback (most recent call last):\nValueError: x\n",
    "a traceback of each of many ranks": lambda: b"".join(
        b"[rank%d]: Traceback (most recent call last):\n" % number for number in range(100_000)
    ),
    "marks in one line without an end": lambda: b"world_size nranks \r" * 100_000,
    "a verdict a million times": lambda: b"[0, 1] finished collective #7, but didn't join\n" * 300_000,
    "groups that no job has": lambda: b"".join(
        b"[rank%d]: [PG %d Rank %d] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=%d, OpType=ALLREDUCE, NumelIn=1) "
        b"ran for 600000 milliseconds\n" % (n, n, n, n) for n in range(25_000)
    ),
    "zeros": lambda: bytes(8 * MIB),
    "one line": lambda: b"x" * (64 * MIB),
}  # fmt: skip


@pytest.mark.parametrize("packed", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("case", LOGS)
def test_a_hostile_log_takes_bounded_time_and_memory(case, packed, tmp_path):
    (tmp_path / "job.log").write_bytes(packed(LOGS[case]()))
    with bounded(seconds=30, mebibytes=200):
        diagnose([str(tmp_path / "job.log")], io.BytesIO())


def test_a_file_name_with_a_rank_of_many_digits_is_no_rank(tmp_path):
    (tmp_path / f"rank{'9' * 12}.log").write_bytes(b"[rank1]: x\n")
    with bounded():
        assert len(diagnose([str(tmp_path)], io.BytesIO()).missing) < 10


# ------------------------------------------------------------------------------------------- libraries and texts


def entry(path: str = "a.so", size: int = 0) -> Entry:
    return Entry(path=path, kind=Kind.FILE, mode=0o755, uid=0, gid=0, mtime=0, size=size)


def test_section_names_without_an_end_take_bounded_time():
    sections = {f".s{number}": b"" for number in range(3000)}
    content = bytearray(elf({**sections, ".text": b"x" * (40 * MIB)}))
    # The table of names: from now on all of the code, which has no zero.
    names_at = content.index(b"x" * 64)
    (table,) = struct.unpack_from("<Q", content, 40)
    size, _, index = struct.unpack_from("<3H", content, 58)
    struct.pack_into("<Q", content, table + index * size + 24, names_at)
    struct.pack_into("<Q", content, table + index * size + 32, 40 * MIB)
    with bounded(seconds=30, mebibytes=300), pytest.raises(ValueError, match="tables"):
        read_elf(entry(), io.BytesIO(bytes(content)))


def test_a_fat_binary_of_zeros_takes_bounded_time():
    stream = io.BytesIO(elf({".nv_fatbin": bytes(400 * MIB)}))
    with bounded():
        assert read_gpu_code(stream) == ()


@pytest.mark.parametrize(
    "text",
    [b"\n" * MIB, b" \n\t" * 300_000, b"machine\n" * 130_000, b"-----BEGIN " * 90_000, b"a://b:" * 170_000],
    ids=["line ends", "blanks", "machine", "begin", "urls"],
)
def test_a_text_is_searched_for_secrets_in_bounded_time(text):
    with bounded(seconds=10):
        list(finds(text))


def test_certificates_without_an_end_take_bounded_time():
    from envbuilder.verify.audit.files import _CERTIFICATE  # noqa: PLC0415

    with bounded(seconds=10):
        assert _CERTIFICATE.findall(b"-----BEGIN CERTIFICATE-----\n" * 140_000) == []


# --------------------------------------------------------------------------------------------- programs and logs


def runner() -> ProcessRunner:
    return ProcessRunner({"PATH": "/usr/bin:/bin"})


def sh(script: str, **rest: bool) -> Command:
    return Command(argv=("sh", "-c", script), why="try it", **rest)


@pytest.fixture
def unheard(caplog: pytest.LogCaptureFixture) -> None:
    """Let pytest keep no line of a log, whatever an earlier test set."""
    caplog.set_level(logging.CRITICAL, logger="envbuilder")


@pytest.mark.programs
@pytest.mark.parametrize("how", ["merged", "chatty"])
def test_of_60_mb_of_chatter_the_end_is_kept(how, unheard):
    with bounded(seconds=120, mebibytes=100):
        said = runner().run(
            sh("yes $(printf %0600d 0) | head -c 60000000; echo; echo the end", **{how: True})
        )
    assert said.endswith("\nthe end\n")
    assert len(said) <= 8 * MIB


@pytest.mark.programs
def test_60_mb_on_stderr_are_not_kept(unheard):
    with bounded(seconds=120, mebibytes=100), pytest.raises(CommandError, match="the end"):
        runner().run(sh("yes $(printf %0600d 0) | head -c 60000000 >&2; echo >&2; echo the end >&2; exit 1"))


@pytest.mark.programs
@pytest.mark.parametrize("script", ["yes $(printf %0600d 0)", "cat /dev/zero"], ids=["lines", "one line"])
def test_an_answer_without_an_end_is_an_error(script, unheard):
    with bounded(seconds=120, mebibytes=300), pytest.raises(CommandError, match="printed more than 64 MiB"):
        runner().run(sh(script))


def test_a_log_file_ends_with_programs_that_print_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr(console._LogFile, "left", 1000)
    log = logging.getLogger("envbuilder.test")
    monkeypatch.setattr(logging.getLogger("envbuilder"), "level", logging.DEBUG)
    with console.log_to(tmp_path / "build.log"):
        for number in range(1000):
            log.debug("line %d", number)
        log.info("the build ends")
    text = (tmp_path / "build.log").read_text()
    assert len(text) < 1500
    assert "left out" in text
    assert text.endswith("the build ends\n")
