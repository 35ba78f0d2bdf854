"""Readers of foreign files on real files that something changed: they return or refuse, in bounded time and memory.

For every change each format takes a minute's share of the same examples. `--hypothesis-profile=release` tries others for an hour.
"""

import functools
import gzip
import hashlib
import io
import json
import lzma
import pickle
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuilder.artifacts.oci.model import parse_configuration, parse_manifest
from envbuilder.artifacts.oci.reader import read_tree
from envbuilder.core.archive import BoundedZip
from envbuilder.core.errors import EnvbuilderError
from envbuilder.diagnose import diagnose
from envbuilder.diagnose.collectives import Ranks
from envbuilder.diagnose.recorder import read_dump
from envbuilder.layers.entry import Entry, Kind
from envbuilder.layers.import_tree import index_tar
from envbuilder.layers.layer import write_layer
from envbuilder.layers.overlay import DAMAGED, Overlay
from envbuilder.lock.file import parse_lock
from envbuilder.lock.resolve.project_metadata import archived_files
from envbuilder.sources.deb import open_members, read_about
from envbuilder.steps.gpu_code import read_gpu_code
from envbuilder.verify.alone import verify_alone
from envbuilder.verify.audit.audited_image import read_elf, read_symbols
from envbuilder.verify.compare import sif_manifest
from tests.support.bounded import bounded
from tests.support.debs import make_tar, write_package
from tests.support.elves import library
from tests.support.sifs import write_sif

ROOT = Path(__file__).parents[2]
EPOCH = 1_700_000_000
EXAMPLES = 120 if settings.default and settings.default.derandomize else 15_000
EXTREMES = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)

Edit = tuple[str, int, int]
EDITS = st.lists(
    st.tuples(
        st.sampled_from(("flip", "little", "big", "octal", "digits", "cut", "repeat", "move", "brackets")),
        st.integers(0, 1 << 20),
        st.integers(0, 1 << 16),
    ),
    min_size=1,
    max_size=4,
)


def edited(content: bytes, edits: list[Edit]) -> bytes:
    """Return the content with bits flipped, numbers replaced by extreme ones, and parts removed, repeated or moved."""
    for how, place, value in edits:
        # Heads decide most: half of all places are in the first 4 KiB.
        at = place // 2 % max(1, len(content) if place % 2 else min(len(content), 4096))
        number, width = EXTREMES[value % len(EXTREMES)], (1, 2, 4, 8)[value // 16 % 4]
        kept = number & ((1 << 8 * width) - 1)
        match how:
            case "flip":
                new = bytes([content[at] ^ (1 << value % 8)]) if content else b""
            case "little" | "big":
                new = kept.to_bytes(width, "little" if how == "little" else "big")
            case "octal":
                new = b"%011o" % (number & 0o77777777777)
            case "digits":
                new = b"%d" % number
            case "brackets":
                new = b"[" * (value % 5000)
            case "cut":
                content = content[:at] + content[at + value % 600 :]
                continue
            case "repeat":
                content = content[:at] + content[at : at + 512] * (value % 40) + content[at:]
                continue
            case _:
                new = content[value % max(1, len(content)) :][:512]
        content = content[:at] + new + content[at + len(new) :]
    return content


def summed(tar: bytes) -> bytes:
    """Correct the checksums of a tar's headers, without which a reader looks no further."""
    out = bytearray(tar)
    for at in range(0, len(tar) - 511, 512):
        if tar[at + 257 : at + 262] == b"ustar":
            out[at + 148 : at + 156] = b"        "
            out[at + 148 : at + 156] = b"%06o\0 " % sum(out[at : at + 512])
    return bytes(out)


@functools.cache
def tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, target in (
            ("a", tarfile.DIRTYPE, ""), ("a/file", tarfile.REGTYPE, ""), ("a/link", tarfile.SYMTYPE, "file"),
            ("a/hard", tarfile.LNKTYPE, "a/file"), ("a/.wh.gone", tarfile.REGTYPE, ""), ("long/" * 40, tarfile.DIRTYPE, ""),
            ("é" * 60, tarfile.REGTYPE, ""), ("dev/null", tarfile.CHRTYPE, ""),
        ):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mtime = kind, target, EPOCH
            info.size = 700 if kind == tarfile.REGTYPE and "wh" not in name else 0
            info.pax_headers = {"SCHILY.xattr.user.a": "b"} if name == "a/file" else {}
            archive.addfile(info, io.BytesIO(b"x" * 700))
    return out.getvalue()


@functools.cache
def image() -> bytes:
    """Return what `docker save` writes."""
    layer = tar()
    diff_id = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    config = {
        "os": "linux",
        "architecture": "amd64",
        "config": {"Env": ["A=b"]},
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
    }
    saved = [{"Config": "config.json", "RepoTags": ["a:b"], "Layers": ["layer.tar"]}]
    files = {"manifest.json": json.dumps(saved), "config.json": json.dumps(config), "layer.tar": layer}
    return make_tar((name, content, 0o644) for name, content in files.items())


@functools.cache
def sif() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tree/bin").mkdir(parents=True)
        (folder / "tree/bin/program").write_bytes(b"program" * 40_000)
        (folder / "tree/small").write_text("small")
        (folder / "tree/link").symlink_to("small")
        layer = write_layer(name="os", tree=folder / "tree", folder=folder / "layer", epoch=EPOCH, threads=1)
        write_sif(layers=[layer], out=folder / "a.sif", epoch=EPOCH, definition="# by a test\n", labels={})
        return (folder / "a.sif").read_bytes()


@functools.cache
def deb(packed: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        members = [("usr/", "", 0o755), ("usr/file", "text" * 100, 0o644)]
        return write_package(Path(folder, "a.deb"), members, packed=packed).read_bytes()


@functools.cache
def wheel() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a/__init__.py", "a-1.dist-info/METADATA", "a-1.dist-info/RECORD"):
            archive.writestr(name, f"Name: {name}\n" * 30)
    return out.getvalue()


DUMP = {
    "version": "2.9", "rank": 1, "pg_config": {"0": {"desc": "default_pg", "ranks": "[0, 1]"}},
    "entries": [
        {
            "collective_seq_id": number, "process_group": ("0", "default_pg"), "profiling_name": "nccl:all_reduce", "state": "started",
            "input_sizes": ((4, 4),), "time_created_ns": 10**18 + number, "frames": [{"filename": "/train.py", "line": 7}],
        }
        for number in range(3)
    ],
}  # fmt: skip
CONFIG = {
    "os": "linux",
    "architecture": "amd64",
    "config": {"Env": ["A=b"]},
    "rootfs": {"diff_ids": ["sha256:" + "a" * 64]},
}
MANIFEST = {
    "schemaVersion": 2, "config": {"digest": "sha256:" + "a" * 64, "size": 3, "mediaType": "a"},
    "layers": [{"digest": "sha256:" + "b" * 64, "size": 3, "mediaType": "b"}],
}  # fmt: skip
LOG = b"".join(
    path.read_bytes()[:3000]
    for path in sorted((ROOT / "tests/diagnose/excerpts").rglob("*"))
    if path.is_file()
)[: 24 << 10]


def read_layer(path: Path) -> None:
    content = path.read_bytes()
    packed = zstandard.compress(content) if len(content) % 2 else gzip.compress(content, 1)
    lower = Overlay(lambda _: True)
    lower.lay_over(io.BytesIO(packed), name="layer", sha256="", diff_id=hashlib.sha256(content).hexdigest())


def read_package(path: Path) -> None:
    read_about(path)
    with open_members(path) as tar:
        for _ in tar:
            list(iter(tar.read, b""))


def read_wheel(path: Path) -> None:
    with BoundedZip(path) as archive:
        for name in archive.namelist():
            archive.read(name)


def read_recorder(path: Path) -> None:
    ranks = Ranks()
    with path.open("rb") as stream:
        read_dump(stream, path.name, ranks)
    ranks.stalls()


def read_library(path: Path) -> None:
    with path.open("rb") as stream:
        read_gpu_code(stream)
        read_elf(Entry(path="a.so", kind=Kind.FILE, mode=0o755, uid=0, gid=0, mtime=0, size=1), stream)
        read_symbols(stream)


def archive(pack: Callable[[bytes], bytes]) -> Callable[[], bytes]:
    """Return a maker of a source archive whose tar is changed before it is compressed."""
    return lambda: pack(tar())


Reader = Callable[[Path], object]
# Of each format: the file, what reads it, and what may be raised beside our own errors.
FORMATS: Mapping[str, tuple[Callable[[], bytes], Reader, tuple[type[Exception], ...]]] = {
    "tar": (tar, lambda path: index_tar(path, epoch=EPOCH), ()),
    "layer": (tar, read_layer, DAMAGED),
    "image": (image, read_tree, ()),
    "sif": (sif, sif_manifest, ()),
    "sif-alone": (sif, verify_alone, ()),
    "deb": (functools.partial(deb, ".gz"), read_package, ()),
    "deb-xz": (functools.partial(deb, ".xz"), read_package, ()),
    "deb-zst": (functools.partial(deb, ".zst"), read_package, ()),
    "deb-plain": (functools.partial(deb, ""), read_package, ()),
    "sdist": (tar, lambda path: list(archived_files(path, strip=True)), ()),
    "sdist-gz": (archive(gzip.compress), lambda path: list(archived_files(path, strip=True)), ()),
    "sdist-xz": (archive(lzma.compress), lambda path: list(archived_files(path, strip=True)), ()),
    "sdist-zip": (wheel, lambda path: list(archived_files(path, strip=True)), ()),
    "wheel": (wheel, read_wheel, (zipfile.BadZipFile, KeyError)),
    "nccl_trace_rank_1": (lambda: pickle.dumps(DUMP, protocol=2), read_recorder, ()),
    "nccl_trace_rank_2": (lambda: pickle.dumps(DUMP, protocol=4), read_recorder, ()),
    "nccl_trace_rank_3": (lambda: json.dumps(DUMP).encode(), read_recorder, ()),
    "job.log": (lambda: LOG, lambda path: diagnose([str(path)], io.BytesIO()), ()),
    "job.log.gz": (lambda: gzip.compress(LOG), lambda path: diagnose([str(path)], io.BytesIO()), ()),
    "library": (
        lambda: library(soname="a.so", needed=["c.so"], needs={"c.so": ["C_1"]}, gives=["A_1"], undefined=["u"], defined=["d"]), read_library, (ValueError,),
    ),
    "fatbin": (
        lambda: library(soname="a.so", sections={".nv_fatbin": (ROOT / "tests/verify/fatbins/cuda-11.2.fatbin").read_bytes()}),
        read_library,
        (ValueError,),
    ),
    "config": (lambda: json.dumps(CONFIG).encode(), lambda path: parse_configuration(path.read_bytes()), (ValueError,)),
    "manifest": (lambda: json.dumps(MANIFEST).encode(), lambda path: parse_manifest(path.read_bytes()), (ValueError,)),
    "lock": (
        lambda: (ROOT / "recipes/cpu.lock").read_bytes()[: 20 << 10],
        lambda path: parse_lock(path.read_text("utf-8", "replace"), "a.lock"),
        (),
    ),
}  # fmt: skip
TARS = ("tar", "layer", "image", "sdist")


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(edits=EDITS)
def test_a_changed_file_is_read_or_refused(name, edits, tmp_path_factory):
    make, read, refusals = FORMATS[name]
    content = edited(make(), edits)
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(summed(content) if name in TARS else content)
    with bounded(seconds=10, mebibytes=400):
        try:
            read(path)
        except (EnvbuilderError, *refusals) as error:
            assert str(error)  # noqa: PT017 - every refusal says something
