"""Packages are read as dpkg reads them, whatever packed them, and a damaged one is named."""

import subprocess
from pathlib import Path

import pytest

from envbuilder.core.deb import members, open_tar, read_about, read_control, read_tar
from envbuilder.core.errors import BuildError
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
