"""The rules on base images: what an image really has against what a recipe pins, each with its place and its repair."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuilder.compat.check import CheckReport, examine
from envbuilder.compat.host_file import HostFacts
from envbuilder.compat.rules.base_image import is_refused
from envbuilder.core.findings import Finding, Severity
from envbuilder.recipe.model import Extension
from tests.support import bases
from tests.support.bases import base
from tests.support.locks import RECIPE, TABLES

IMAGE = {"base": "", "image": "site/base:1"}
CPU = {"cuda": "", "gpus": ()}
KEEPS = {**CPU, "pytorch": "", "keeps_torch": True}
EXTENSION = {"extensions": (Extension(name="a", sources=("a.cpp",)),)}


def report(shape: bases.Shape | None, host: HostFacts | None = None, **change: object) -> CheckReport:
    recipe = dataclasses.replace(RECIPE, **(IMAGE | change))
    return examine(recipe, TABLES, host, base(shape) if shape else None)


def findings(
    shape: bases.Shape | None, host: HostFacts | None = None, **change: object
) -> tuple[Finding, ...]:
    return report(shape, host, **change).findings


def host(driver: str, *gpus: str) -> HostFacts:
    return HostFacts(path=Path("host.yaml"), driver=driver, gpus=gpus)


def test_a_base_that_has_what_the_recipe_pins_is_silent():
    assert findings(bases.debian(), **CPU) == ()
    assert findings(bases.debian()) == ()  # CUDA is laid out beside it, as on a suite


def test_a_base_that_nobody_looked_into_is_a_warning():
    (finding,) = findings(None, **CPU)
    assert (finding.code, finding.severity) == ("EB338", Severity.WARNING)
    assert "`envbuilder lock x`" in finding.hint


@pytest.mark.parametrize(
    ("pins", "refused"),
    [
        ({"cuda": "11.3", "pytorch": "1.12.1", "python": "3.9", "gcc": "9"}, "EB311"),  # no source has it
        ({"gcc": "13"}, "EB304"),
        ({"libxcrypt": "5.0"}, "EB305"),
    ],
)
def test_a_base_that_nobody_looked_into_may_have_what_another_lacks(pins: dict[str, object], refused: str):
    assert "11.3" not in TABLES.toolkits
    assert [one.code for one in findings(None, **pins)] == ["EB338"]
    assert refused in [one.code for one in findings(bases.debian(), **pins)]


def foreign() -> bases.Shape:
    return dataclasses.replace(bases.debian(), architecture="arm64")


def foreign_programs() -> bases.Shape:
    return bases.over(bases.debian(), {"usr/lib/x86_64-linux-gnu/libc.so.6": bases.glibc("2.36", 183)})


def musl() -> bases.Shape:
    return bases.Shape(
        [{"etc/os-release": "ID=alpine\nVERSION_ID=3.20\n", "lib/ld-musl-x86_64.so.1": bases.elf()}]
    )


def nothing() -> bases.Shape:
    return bases.Shape([{"hello": "x"}])


def no_os_release() -> bases.Shape:
    return bases.over(bases.debian(), {"usr/lib/.wh.os-release": "", "etc/.wh.os-release": ""})


def unknown(shape: bases.Shape) -> bases.Shape:
    """Of a distribution whose packages envbuilder does not know."""
    return bases.over(shape, {"usr/lib/os-release": "ID=ubuntu\nVERSION_CODENAME=mantic\n"})


def no_gcc() -> bases.Shape:
    return unknown(bases.over(bases.debian(), {"usr/bin/.wh.x86_64-linux-gnu-gcc-12": ""}))


def no_gxx() -> bases.Shape:
    return unknown(bases.over(bases.debian(), {"usr/bin/.wh.x86_64-linux-gnu-g++-12": ""}))


def no_python() -> bases.Shape:
    return unknown(bases.without(bases.debian(), "usr/bin/python", "usr/include/python"))


def two_cudas() -> bases.Shape:
    return bases.over(bases.devel(), bases.cuda("11.8.0"))


def runtime_only() -> bases.Shape:
    return bases.over(bases.debian(), bases.cuda("12.4.1", nvcc=False) | bases.plain_cuda("12.4"))


def own_torch() -> bases.Shape:
    place = "usr/local/lib/python3.11/dist-packages"
    return bases.over(bases.debian(), {f"{place}/torch-2.5.0a0.dist-info/METADATA": "Name: torch\n"})


def test_a_recipe_may_keep_the_torch_of_its_base():
    assert findings(own_torch(), **KEEPS) == ()


@pytest.mark.parametrize(
    ("make", "change", "codes", "words"),
    [
        (foreign, CPU, ["EB339 error"], "the base is for arm64, and envbuilder builds for amd64"),
        (foreign_programs, CPU, ["EB339 error"], "the base is for arm64"),
        (musl, CPU, ["EB340 error"], "the C library of the base is musl, and PyTorch's wheels are for glibc"),
        (nothing, CPU, ["EB340 error"], "the base has no C library"),
        (no_os_release, CPU, ["EB341 warning"], "the base does not say which distribution it is"),
        (no_gcc, CPU, ["EB304 error"], "the base has no gcc, not gcc 12; envbuilder cannot add packages of ubuntu/mantic"),
        (no_gxx, CPU, ["EB304 error"], "the base has gcc 12.2.0 without g++, not gcc 12"),
        (no_python, {**CPU, "python": "3.7", "pytorch": "1.13.1"}, ["EB303 error"], "the base has no Python, not Python 3.7"),
        (two_cudas, {}, ["EB343 warning", "EB344 warning"], "CUDA 11.8.0 (/usr/local/cuda-11.8) and 12.4.1 (/usr/local/cuda-12.4)"),
        (runtime_only, {}, ["EB343 error"], "the base has CUDA 12.4.1 (/usr/local/cuda-12.4) without nvcc or its headers"),
        (bases.devel, CPU, ["EB345 warning"], "the base has CUDA 12.4.1 (/usr/local/cuda-12.4), which the recipe does not use"),
        (bases.devel, {}, ["EB343 warning"], "CUDA's libraries come twice: torch's wheels bring those that it loads"),
        (own_torch, {**KEEPS, "python": "3.10"}, ["EB348 error"], "the base has torch 2.5.0a0 (/usr/local/lib/python3.11/dist-packages/torch), and none for Python 3.10: `pytorch: image` finds nothing"),
        (bases.debian, KEEPS, ["EB348 error"], "the base has no torch, and none for Python 3.11"),
        (own_torch, CPU, ["EB347 warning"], "the base has torch 2.5.0a0 (/usr/local/lib/python3.11/dist-packages/torch)"),
    ],
)  # fmt: skip
def test_a_base_that_is_wrong_in_one_way_has_the_finding_for_it(
    make: Callable[[], bases.Shape], change: dict[str, object], codes: list[str], words: str
):
    found = findings(make(), **change)
    assert [f"{one.code} {one.severity.value}" for one in found] == codes
    assert any(words in one.message for one in found)
    assert all((one.hint and one.where == "x.yaml:1:1") or one.where == "x.yaml:5:7" for one in found)


def test_gcc_9_where_the_base_has_13_says_what_it_has_and_names_the_repair():
    gcc = bases.over(
        bases.without(bases.debian(), "usr/bin/gcc", "usr/bin/g++", "usr/lib/gcc", "usr/bin/x86"),
        bases.gcc("13.2.0"),
    )
    found = report(unknown(gcc), **CPU, gcc="9")
    (finding,) = found.findings
    assert finding.code == "EB304"
    assert finding.message == (
        "$.gcc: the base has gcc 13.2.0 (/usr/bin/gcc-13), not gcc 9; envbuilder cannot add packages of ubuntu/mantic"
    )
    assert finding.hint == 'write `gcc: "13"`; or take a base that has gcc 9'
    assert [repair.data() for repair in found.repairs] == [{"gcc": "13"}]


def test_gcc_that_the_bases_own_suite_packages_is_put_beside_and_said():
    (finding,) = findings(bases.debian(), **CPU, gcc="11")
    assert (finding.code, finding.severity) == ("EB342", Severity.WARNING)
    assert "the base has gcc 12.2.0 (/usr/bin/gcc-12), and the recipe asks for gcc 11" in finding.message
    assert "that of debian/bookworm is put beside, and `gcc` means 11 in the environment" in finding.message
    assert 'write `gcc: "12"`' in finding.hint


def test_gcc_that_the_suite_does_not_package_is_refused_with_those_that_it_has():
    (finding,) = findings(bases.debian(), **CPU, gcc="13")
    assert finding.code == "EB304"
    assert "not gcc 13; debian/bookworm packages gcc 11 or 12" in finding.message


def test_of_two_compilers_side_by_side_the_one_that_is_not_plain_is_said():
    two = bases.over(bases.debian(), bases.gcc("11.3.0"))
    assert findings(two, **CPU) == ()
    (finding,) = findings(two, **CPU, gcc="11")
    assert finding.code == "EB342"
    assert "gcc 11.3.0 (/usr/bin/gcc-11) and 12.2.0 (/usr/bin/gcc-12)" in finding.message
    assert "both are there" in finding.message


def test_python_that_is_not_the_bases_is_the_suites_or_refused_with_a_reason():
    conda = bases.over(bases.without(bases.debian(), "usr/bin/python"), bases.python("3.10.13", "opt/conda"))
    assert findings(conda, **CPU) == ()  # debian/bookworm's 3.11 is added
    assert findings(unknown(conda), **CPU) == ()  # a standalone build is added
    assert findings(bases.debian(), **CPU, python="3.12") == ()
    found = report(unknown(conda), **CPU, pytorch="1.13.1", python="3.7")
    (finding,) = found.findings
    assert finding.code == "EB303"
    assert "the base has Python 3.10.13 (/opt/conda/bin/python3.10), not Python 3.7" in finding.message
    assert "and there is no standalone build of 3.7" in finding.message
    assert 'write `python: "3.8"`' in finding.hint
    assert "or take a base that has Python 3.7" in finding.hint


def test_a_python_without_headers_matters_to_extensions_alone():
    bare = unknown(bases.over(bases.debian(), {"usr/include/python3.11/.wh.Python.h": ""}))
    assert findings(bare, **CPU) == ()
    (finding,) = findings(bare, **CPU, **EXTENSION)
    assert (finding.code, finding.severity) == ("EB348", Severity.ERROR)
    assert (
        findings(bases.over(bases.debian(), {"usr/include/python3.11/.wh.Python.h": ""}), **CPU, **EXTENSION)
        == ()
    )


def test_libxcrypt_of_the_base_is_what_counts():
    (finding,) = findings(bases.debian(), **CPU, libxcrypt="4.5")
    assert finding.code == "EB305"
    assert (
        "the base has libxcrypt 4.4.33 (/usr/lib/x86_64-linux-gnu/libcrypt.so.1), not 4.5" in finding.message
    )
    assert finding.hint == 'write `libxcrypt: "4.4"`'
    bare = unknown(bases.without(bases.debian(), "usr/lib/x86_64-linux-gnu/libcrypt", "var/lib/dpkg"))
    (finding,) = findings(bare, **CPU)
    assert "the base has no libxcrypt, not 4.4" in finding.message
    assert findings(bare, **CPU, libxcrypt="") == ()


def test_an_older_python_without_crypt_h_in_the_base_is_refused():
    old = bases.over(
        bases.without(bases.debian(), "usr/include/crypt.h"), bases.python("3.8.18", "opt/conda")
    )
    change = CPU | {"python": "3.8", "pytorch": "2.0.0"}
    assert [one.code for one in findings(unknown(old), **change)] == ["EB328"]
    assert findings(bases.over(unknown(old), {"usr/include/crypt.h": ""}), **change) == ()


def test_another_cuda_than_the_bases_would_come_twice_and_the_repair_is_the_bases():
    found = report(bases.devel(), cuda="11.2", pytorch="1.13.1")
    codes = {one.code: one for one in found.findings}
    assert (
        "CUDA 12.4.1 (/usr/local/cuda-12.4), and the recipe asks for 11.2: CUDA would come twice"
        in codes["EB343"].message
    )
    found = report(bases.devel(), cuda="12.6")
    codes = {one.code: one for one in found.findings}
    assert 'write `cuda: "12.4"`' in codes["EB343"].hint


def test_a_cuda_that_the_base_brings_need_not_be_one_that_can_be_laid_out():
    other = bases.over(bases.debian(), bases.cuda("12.1.1") | bases.plain_cuda("12.1"))
    assert "EB311" in [one.code for one in findings(bases.debian(), cuda="12.1", pytorch="2.5.0")]
    assert [one.code for one in findings(other, cuda="12.1", pytorch="2.5.0")] == ["EB343"]


def test_a_base_with_two_cudas_of_which_the_plain_one_is_another_is_refused():
    other = bases.over(two_cudas(), {"etc/alternatives/cuda -> /usr/local/cuda-11.8": ""})
    codes = {one.code: one for one in findings(other)}
    assert codes["EB344"].severity is Severity.ERROR
    assert "/usr/local/cuda is 11.8.0, not 12.4" in codes["EB344"].message


def test_the_rules_of_compilers_and_wheels_judge_the_base_as_they_judge_a_suite():
    new = bases.over(bases.debian(), bases.gcc("14.2.0"))
    assert "EB315" in [one.code for one in findings(new, gcc="14")]  # nvcc 12.4 takes gcc 13 at most
    old = bases.over(bases.debian(), {"usr/lib/x86_64-linux-gnu/libc.so.6": bases.glibc("2.12")})
    codes = {one.code: one for one in findings(old, **CPU)}
    assert "and the base image (debian/bookworm) has 2.12" in codes["EB327"].message


@pytest.mark.parametrize(
    ("driver", "gpus", "refused"),
    [
        ("550.54.15", ("A100",), False),
        ("535.183.01", ("A100",), False),  # `brand=tesla,driver>=535,driver<536`
        ("525.60.13", ("A100",), True),
        ("535.183.01", ("RTX 4090",), False),  # it may be of a brand that is named
        ("525.60.13", ("RTX 4090",), True),
    ],
)
def test_a_driver_that_the_base_itself_refuses_is_told(driver: str, gpus: tuple[str, ...], refused: bool):
    found = [one for one in findings(bases.devel(), host(driver, *gpus), gpus=gpus) if one.code == "EB346"]
    assert bool(found) == refused
    for one in found:
        assert f"`host.yaml` says driver {driver}" in one.message
        assert "asks for CUDA 12.4, which driver 550.54.15 was the first to have" in one.message


@pytest.mark.parametrize("text", ["", "cuda>=99.9", "???", "arch>=8"])
def test_what_nobody_can_judge_refuses_nobody(text: str):
    assert not is_refused(text, driver="450.1", brands={"tesla"}, drivers={"12.4": "550.54"})


def test_libraries_for_32_bits_beside_ours_are_not_another_processor():
    both = bases.over(bases.debian(), {"usr/lib32/libc.so.6": bases.glibc("2.36", 3)})
    assert findings(both, **CPU) == ()
    assert (
        findings(bases.over(both, {"usr/lib/x86_64-linux-gnu/.wh.libc.so.6": ""}), **CPU)[0].code == "EB339"
    )


def test_extensions_need_ninja_from_the_suite_or_as_a_wheel():
    bare = bases.without(bases.debian(), "var/lib/dpkg")
    packages = {name: version for name, version in bases.BOOKWORM.items() if name != "ninja-build"}
    without = unknown(bases.over(bare, {"var/lib/dpkg/status": bases.status(packages)}))
    assert findings(without, **CPU) == ()
    (finding,) = findings(without, **CPU, **EXTENSION)
    assert finding.code == "EB348"
    assert "does not have ninja" in finding.message
    assert finding.hint == "write `packages: [ninja]`; its wheel serves as well"
    assert findings(without, **CPU, **EXTENSION, packages=("ninja>=1.11",)) == ()
    assert findings(unknown(bases.debian()), **CPU, **EXTENSION) == ()


def test_packages_that_nothing_can_bring_are_told_one_by_one():
    found = findings(unknown(bases.debian()), **CPU, apt=("git", "make"))
    assert [one.code for one in found] == ["EB348"]
    assert "the base does not have `git`; envbuilder cannot add packages of ubuntu/mantic" in found[0].message
    assert findings(bases.debian(), **CPU, apt=("git", "make")) == ()
