"""Packages are read as dpkg reads them, whatever packed them, and a damaged one is named."""

import io
import lzma
import subprocess
import tracemalloc
from pathlib import Path

import pytest

from envbuilder.core.errors import BuildError
from envbuilder.sources import deb as deb_module
from envbuilder.sources.deb import members, open_tar, read_about, read_control, read_tar
from tests.support.debs import PACKERS, write_package

FILES = (("./usr/", "", 0o755), ("./usr/a", "alpha", 0o644), ("./usr/big", "x" * 3_000_000, 0o644))


@pytest.mark.parametrize("packed", PACKERS)
def test_a_package_is_read_whatever_packed_it(tmp_path: Path, packed: str):
    deb = write_package(tmp_path / "a.deb", FILES, packed=packed, control={"postinst": "#!/bin/sh\n"})
    tar = read_tar(deb, "data")
    found = {one.name: bytes(tar[one.offset_data :][: one.size]) for one in members(tar, deb)}
    assert found == {"./usr": b"", "./usr/a": b"alpha", "./usr/big": b"x" * 3_000_000}
    assert read_control(deb)["postinst"][0] == b"#!/bin/sh\n"
    assert read_about(deb) == "Package: a\nVersion: 1\nArchitecture: all\n"
    with open_tar(deb, "data") as stream:
        assert stream.read() == tar


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
        list(members(read_tar(deb, "data"), deb))


def test_a_package_that_an_unknown_program_packed_is_refused(tmp_path: Path):
    deb = write_package(tmp_path / "a.deb", FILES)
    deb.write_bytes(deb.read_bytes().replace(b"data.tar.gz", b"data.tar.br"))
    with pytest.raises(BuildError, match="compressed by `br`"):
        read_tar(deb, "data")


def zeros(size: int) -> bytes:
    """Return the bytes that xz makes of that many zeros, without their being in memory at once."""
    packer, packed = lzma.LZMACompressor(preset=0), io.BytesIO()
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
    with pytest.raises(BuildError, match=r"the package `.*bomb\.deb` of \d+ bytes unpacks to more than \d+"):
        read_tar(deb, part)
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()


def test_a_package_that_unpacks_to_more_than_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(deb_module, "usable_memory", lambda: 4_000_000)
    with pytest.raises(BuildError, match="unpacks to more than 2000000") as refused:
        read_tar(write_package(tmp_path / "a.deb", FILES), "data")
    assert "build where more memory is free" in refused.value.hint
