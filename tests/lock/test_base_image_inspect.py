"""What is found inside a base image: each fact with its place, whatever tool made the layers."""

import io
import sqlite3
import struct
from pathlib import Path

import pytest

from envbuilder.artifacts.oci.model import parse_configuration
from envbuilder.compat.image_facts import Fact, Name
from envbuilder.compat.inspect_image import is_wanted
from envbuilder.layers.overlay import DAMAGED, Overlay
from envbuilder.sources.installed import RPM, read_dpkg, read_rpm
from tests.support import bases
from tests.support.bases import base, look


def said(fact: Fact | None) -> tuple[str, str, str] | None:
    return (fact.value, fact.path, fact.source) if fact else None


def test_a_debian_with_a_compiler_says_what_it_has_and_where():
    found = base(bases.debian())
    assert found.distribution == "debian/bookworm"
    assert said(found.first(Name.OS)) == ("debian/bookworm", "/etc/os-release", "/etc/os-release")
    libc = "/usr/lib/x86_64-linux-gnu/libc.so.6"
    assert said(found.first(Name.GLIBC)) == ("2.36", libc, libc)
    assert [said(one) for one in found.gccs] == [
        ("12.2.0", "/usr/bin/gcc-12", "/usr/bin/x86_64-linux-gnu-gcc-12")
    ]
    assert said(found.first(Name.GXX)) == ("12.2.0", "/usr/bin/g++-12", "/usr/bin/x86_64-linux-gnu-g++-12")
    assert said(found.first(Name.PLAIN_GCC)) == ("12.2.0", "/usr/bin/gcc", "/usr/bin/x86_64-linux-gnu-gcc-12")
    header = "/usr/include/python3.11/patchlevel.h"
    assert said(found.python("3.11")) == ("3.11.2", "/usr/bin/python3.11", header)
    assert found.has_headers("3.11")
    assert found.python("3.1") is None
    crypt = "/usr/lib/x86_64-linux-gnu/libcrypt.so.1"
    assert said(found.first(Name.LIBXCRYPT)) == ("4.4.33", crypt, "package libcrypt1 1:4.4.33-2")
    assert found.value(Name.LIBCRYPT) == "libcrypt.so.1"
    assert found.first(Name.CRYPT_H)
    assert {one.value for one in found.every(Name.ARCHITECTURE)} == {"amd64"}
    assert found.cuda is None
    assert said(found.first(Name.MANAGER)) == ("dpkg", "/var/lib/dpkg/status", "12 packages")
    assert "gcc-12=12.2.0-14" in found.packages
    assert list(found.packages) == sorted(found.packages)


def test_an_image_in_the_shape_of_nvidias_says_what_its_toolkit_is_made_of():
    found = base(bases.devel())
    assert found.cuda
    assert said(found.cuda) == ("12.4.1", "/usr/local/cuda-12.4", "/usr/local/cuda-12.4/version.json")
    parts = {name: said(found.part(name, found.cuda)) for name in Name if found.part(name, found.cuda)}
    place = "/usr/local/cuda-12.4"
    runtime = f"{place}/targets/x86_64-linux/lib/libcudart.so.12.4.127"
    header = f"{place}/targets/x86_64-linux/include/cuda_runtime.h"
    assert parts == {
        Name.CUDA: ("12.4.1", place, f"{place}/version.json"),
        Name.NVCC: ("12.4.131", f"{place}/bin/nvcc", f"{place}/version.json"),
        Name.CUDART: ("12.4.127", runtime, runtime),
        Name.CUDA_HEADERS: ("12.4.1", header, header),
        Name.CUDA_LIBRARIES: (str(2000 + 64), place, f"{place}: bytes"),
        Name.CUDA_STATIC: ("3000", place, f"{place}: bytes"),
    }
    assert found.value(Name.NCCL) == "2.21.5"
    assert found.value(Name.CUDNN) == "9.1.0"
    assert found.env["NVIDIA_REQUIRE_CUDA"] == bases.REQUIRE
    assert found.env["PATH"].startswith("/usr/local/nvidia/bin:")
    assert found.env["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
    assert found.value(Name.USER) == "1000"
    assert found.value(Name.ENTRYPOINT) == '["/opt/nvidia/nvidia_entrypoint.sh"]'
    assert found.value(Name.FOLDER) == "/work"


def test_every_fact_says_where_it_came_from_and_is_of_a_known_kind():
    for shape in (bases.debian(), bases.devel()):
        facts = look(shape).facts
        assert all(fact.source for fact in facts)
        assert {fact.name for fact in facts} <= set(Name)
        assert list(facts) == sorted(set(facts))


def test_what_an_upper_layer_deletes_is_not_there():
    gone = bases.over(bases.debian(), {"usr/bin/.wh.x86_64-linux-gnu-gcc-12": ""})
    assert base(gone).gccs == ()
    assert base(gone).first(Name.GXX)
    opaque = bases.over(bases.debian(), {"usr/include/python3.11/.wh..wh..opq": ""})
    assert not base(opaque).has_headers("3.11")
    assert said(base(opaque).python("3.11")) == (
        "3.11.2",
        "/usr/bin/python3.11",
        "package python3.11-minimal 3.11.2-6",
    )


def test_a_file_that_an_upper_layer_replaces_says_what_the_upper_one_says():
    newer = bases.over(bases.debian(), {"usr/lib/os-release": "ID=debian\nVERSION_CODENAME=trixie\n"})
    assert base(newer).distribution == "debian/trixie"
    folder = bases.over(bases.debian(), {"usr/lib/os-release/": ""})
    assert base(folder).distribution == ""


def test_a_driver_without_the_compiler_that_it_calls_is_none():
    assert base(bases.without(bases.debian(), "usr/lib/gcc")).gccs == ()
    only_c = base(bases.without(bases.debian(), "usr/lib/gcc/x86_64-linux-gnu/12/cc1plus"))
    assert only_c.every(Name.GCC)
    assert only_c.gccs == ()


def test_of_two_compilers_both_are_told_and_which_one_is_plain():
    two = base(bases.over(bases.debian(), bases.gcc("11.3.0")))
    assert [one.value for one in two.gccs] == ["11.3.0", "12.2.0"]
    assert two.value(Name.PLAIN_GCC) == "12.2.0"
    assert two.gcc("11") == Fact(
        name="gcc", value="11.3.0", path="/usr/bin/gcc-11", source="/usr/bin/x86_64-linux-gnu-gcc-11"
    )


def test_a_compiler_outside_the_package_manager_is_found_in_its_prefix():
    own = {
        "usr/local/bin/gcc": bases.elf(content=b"\x0013.2.0\0"),
        "usr/local/bin/g++": bases.elf(content=b"\x0013.2.0\0"),
        "usr/local/libexec/gcc/x86_64-pc-linux-gnu/13.2.0/cc1": bases.elf(),
        "usr/local/libexec/gcc/x86_64-pc-linux-gnu/13.2.0/cc1plus": bases.elf(),
    }
    found = base(bases.over(bases.debian(), own))
    assert [(one.value, one.path) for one in found.gccs] == [
        ("12.2.0", "/usr/bin/gcc-12"),
        ("13.2.0", "/usr/local/bin/gcc"),
    ]
    assert found.value(Name.PLAIN_GCC) == "13.2.0"


def test_a_python_beside_the_distributions_is_the_one_to_use():
    found = base(
        bases.over(bases.debian(), bases.python("3.11.9", "usr/local") | bases.python("3.10.13", "opt/conda"))
    )
    assert [(one.value, one.path) for one in found.pythons] == [
        ("3.10.13", "/opt/conda/bin/python3.10"),
        ("3.11.2", "/usr/bin/python3.11"),
        ("3.11.9", "/usr/local/bin/python3.11"),
    ]
    python = found.python("3.11")
    assert python
    assert python.path == "/usr/local/bin/python3.11"


def test_two_toolkits_are_both_told_with_the_one_that_is_plain():
    found = base(bases.over(bases.devel(), bases.cuda("11.8.0")))
    assert [one.value for one in found.cudas] == ["11.8.0", "12.4.1"]
    assert found.cuda
    assert found.cuda.value == "12.4.1"


@pytest.mark.parametrize(
    ("file", "text", "version"),
    [
        ("version.txt", "CUDA Version 10.2.89\n", "10.2.89"),
        ("include/cuda.h", "#define CUDA_VERSION 11080\n", "11.8"),
        ("version.json", "{", "9.9"),
    ],
)
def test_a_toolkit_without_version_json_says_its_version_otherwise(file: str, text: str, version: str):
    root = "usr/local/cuda-9.9"
    found = base(bases.over(bases.debian(), {f"{root}/bin/nvcc": bases.elf(), f"{root}/{file}": text}))
    assert found.cuda
    assert found.cuda.value == version


def test_musl_and_a_foreign_processor_are_told():
    alpine = bases.Shape(
        [{"etc/os-release": "ID=alpine\nVERSION_ID=3.20.1\n", "lib/ld-musl-aarch64.so.1": bases.elf(183)}]
    )
    found = base(alpine)
    assert found.distribution == "alpine/3.20.1"
    assert found.first(Name.MUSL)
    assert found.first(Name.GLIBC) is None
    assert {(one.value, one.path) for one in found.every(Name.ARCHITECTURE)} == {
        ("amd64", ""),
        ("arm64", "/lib/ld-musl-aarch64.so.1"),
    }


def test_an_image_without_anything_has_hardly_a_fact():
    found = base(bases.Shape([{"hello": "x"}]))
    assert {one.name for one in found.facts} == {Name.ARCHITECTURE, Name.ENV}
    assert found.distribution == ""


def test_images_without_a_shell_note_each_package_in_a_file():
    parts = {
        f"var/lib/dpkg/status.d/{name}": f"Package: {name}\nVersion: {version}\n"
        for name, version in bases.BOOKWORM.items()
    }
    found = base(bases.over(bases.without(bases.debian(), "var/lib/dpkg/status"), parts))
    assert "libc6=2.36-9+deb12u10" in found.packages


def test_what_is_removed_but_configured_is_not_installed():
    text = bases.stanza("a", "1") + "\n" + bases.stanza("b", "2", "deinstall ok config-files")
    assert read_dpkg({"var/lib/dpkg/status": text.encode()}) == {"a": "1"}


def rpm_header(name: str, version: str, release: str) -> bytes:
    tags, values = b"", b""
    for tag, text in ((1000, name), (1001, version), (1002, release)):
        tags += struct.pack(">4I", tag, 6, len(values), 1)
        values += text.encode() + b"\0"
    return struct.pack(">2I", 3, len(values)) + tags + values


def rpm_database(path: Path, *headers: bytes) -> bytes:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE Packages (hnum INTEGER PRIMARY KEY, blob BLOB NOT NULL)")
        connection.executemany("INSERT INTO Packages (blob) VALUES (?)", [(one,) for one in headers])
    connection.close()
    return path.read_bytes()


def test_the_packages_of_rpm_are_read_without_rpm(tmp_path: Path):
    database = rpm_database(
        tmp_path / "rpmdb.sqlite",
        rpm_header("glibc", "2.34", "100.el9"),
        rpm_header("libxcrypt", "4.4.18", "3.el9"),
    )
    found = base(
        bases.Shape(
            [
                {
                    "etc/os-release": 'ID="rocky"\nVERSION_ID="9.3"\n',
                    RPM[1]: database,
                    "usr/lib64/libc.so.6": bases.glibc("2.34"),
                    "usr/lib64/libcrypt.so.2": bases.elf(),
                }
            ]
        )
    )
    assert found.distribution == "rocky/9.3"
    assert found.packages == ("glibc=2.34-100.el9", "libxcrypt=4.4.18-3.el9")
    assert found.value(Name.LIBXCRYPT) == "4.4.18"
    assert said(found.first(Name.MANAGER)) == ("rpm", f"/{RPM[1]}", "2 packages")


@pytest.mark.parametrize("damaged", [b"", b"SQLite format 3\0" + bytes(90), b"x" * 5000])
def test_a_damaged_database_of_rpm_gives_no_package_and_says_so(damaged: bytes):
    with pytest.raises(ValueError, match="rpm"):
        read_rpm(damaged)
    found = base(bases.Shape([{RPM[0]: damaged or b"x"}]))
    assert found.packages == ()
    fact = found.first(Name.MANAGER)
    assert fact
    assert "no database" in fact.source


def test_a_layer_that_ends_too_early_or_is_another_is_refused():
    packed = bases.pack(bases.debian())
    (first, *_), (diff_id, *_) = packed.blobs, parse_configuration(packed.config).diff_ids
    digest = bases.sha256(first).removeprefix("sha256:")
    for data, sha256, diff in (
        (first[:-40], "", diff_id),
        (first, "0" * 64, diff_id),
        (first, digest, "1" * 64),
    ):
        with pytest.raises(DAMAGED):
            Overlay(is_wanted).lay_over(io.BytesIO(data), name="layer", sha256=sha256, diff_id=diff)


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"rootfs": {"diff_ids": ["md5:1"]}}'])
def test_a_config_that_is_none_is_refused(text: bytes):
    with pytest.raises(ValueError, match="config"):
        parse_configuration(text)
