"""Packages are read as dpkg reads them, whatever packed them, and a damaged one is named."""

import io
import lzma
import subprocess
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from envbuilder.core.errors import BuildError
from envbuilder.sources.deb import open_members, open_tar, read_about
from envbuilder.steps import distribution
from envbuilder.steps.distribution import read_control
from tests.support.debs import PACKERS, header, write_package

FILES = (("./usr/", "", 0o755), ("./usr/a", "alpha", 0o644), ("./usr/big", "x" * 3_000_000, 0o644))


def read_whole(deb: Path) -> None:
    with open_members(deb) as tar:
        for _ in tar:
            pass


@pytest.mark.parametrize("packed", PACKERS)
def test_a_package_is_read_whatever_packed_it(tmp_path: Path, packed: str):
    deb = write_package(tmp_path / "a.deb", FILES, packed=packed, control={"postinst": "#!/bin/sh\n"})
    with open_members(deb) as tar:
        contents = {info.name: b"".join(iter(tar.read, b"")) for info in tar}
    assert contents == {"./usr": b"", "./usr/a": b"alpha", "./usr/big": b"x" * 3_000_000}
    assert read_control(deb)["postinst"][0] == b"#!/bin/sh\n"
    assert read_about(deb) == "Package: a\nVersion: 1\nArchitecture: all\n"
    with open_tar(deb, "data") as stream:
        assert b"alpha" in stream.read(4096)


@pytest.mark.programs
def test_dpkg_unpacks_zstd_where_no_module_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    deb = write_package(tmp_path / "a.deb", FILES, packed=".zst")
    monkeypatch.setattr(distribution, "find_zstandard", lambda: None)
    with open_members(deb) as tar:
        assert [info.name for info in tar] == ["./usr", "./usr/a", "./usr/big"]
    assert "control" in read_control(deb)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_SPARSE])
def test_a_header_that_dpkg_does_not_read_is_refused(tmp_path: Path, kind: bytes):
    deb = write_package(tmp_path / "a.deb", [header("./x", kind)])
    with pytest.raises(BuildError, match="is of a kind that dpkg does not read"), open_members(deb) as tar:
        list(tar)


def test_long_paths_are_read_as_gnu_tar_writes_them(tmp_path: Path):
    path, target = f"./{'deep/' * 30}file", f"./{'far/' * 40}target"
    info = header(path, tarfile.SYMTYPE, target=target)
    deb = write_package(tmp_path / "a.deb", [info], tar_format=tarfile.GNU_FORMAT)
    with open_members(deb) as tar:
        assert [(member.name, member.linkname) for member in tar] == [(path, target)]


@pytest.mark.programs
def test_dpkg_reads_the_packages_of_these_tests(tmp_path: Path):
    deb = write_package(tmp_path / "a.deb", FILES)
    said = subprocess.run(["dpkg-deb", "--contents", deb], capture_output=True, text=True, check=True).stdout
    assert [line.split()[-1] for line in said.splitlines()] == ["./usr/", "./usr/a", "./usr/big"]


@pytest.mark.parametrize("packed", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("kept", [0, 7, 40, 200, -60])
def test_a_package_that_is_cut_off_is_named(tmp_path: Path, packed: str, kept: int):
    deb = write_package(tmp_path / "a.deb", FILES, packed=packed)
    deb.write_bytes(deb.read_bytes()[:kept])
    with pytest.raises(BuildError, match=r"the package `.*a\.deb` cannot be read: "):
        read_whole(deb)


def test_a_package_that_an_unknown_program_packed_is_refused(tmp_path: Path):
    deb = write_package(tmp_path / "a.deb", FILES)
    deb.write_bytes(deb.read_bytes().replace(b"data.tar.gz", b"data.tar.br"))
    with pytest.raises(BuildError, match="compressed by `br`"):
        read_whole(deb)


def zeros(size: int) -> bytes:
    """Return what xz makes of a tar with a file of that many zeros, without their being in memory at once."""
    packer, packed, info = lzma.LZMACompressor(preset=0), io.BytesIO(), header("./zeros")
    info.size = size
    packed.write(packer.compress(info.tobuf()))
    for _ in range(size >> 20):
        packed.write(packer.compress(bytes(1 << 20)))
    packed.write(packer.flush())
    return packed.getvalue()


@pytest.mark.parametrize("part", ["control", "data"])
def test_a_package_that_unpacks_to_far_more_than_its_size_is_refused(
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
):
    content = zeros(256 << 20)
    monkeypatch.setitem(PACKERS, ".xz", lambda _: content)
    deb = write_package(tmp_path / "bomb.deb", FILES, packed=".xz")
    tracemalloc.start()
    with pytest.raises(BuildError, match=r"the package `.*bomb\.deb` cannot be read: bytes of './zeros'"):
        read_about(deb) if part == "control" else read_whole(deb)
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()
