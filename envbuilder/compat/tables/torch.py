"""The releases of PyTorch: for which Pythons and GPUs, against which CUDA, and what compiling an extension needs."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import Field

from envbuilder.compat.tables.cuda import Major, Targets, Version, architectures
from envbuilder.compat.tables.table import Sources, pairs, reader
from envbuilder.core.models import Date, FieldRule, Flag, Line, MajorMinor, Mistake, ReadAs, Shape, Whole
from envbuilder.core.places import shown
from envbuilder.core.processor import X86_64, Processor

_RELEASE: Final = Shape(pattern=r"\d+\.\d+\.\d+", expected='a version such as "2.6.0"')
_PYTHON: Final = Shape(pattern=r"3\.\d+t?", expected='a Python such as "3.13" or "3.13t"')
_BUILD: Final = Shape(pattern=r"cu\d{2,3}", expected="a build such as cu124")
CPU: Final = "cpu"  # the build without CUDA
COMPANIONS: Final = ("torchvision", "torchaudio")  # each release is compiled for one release of torch
_ARM_BUILD: Final = Shape(pattern=r"cu\d{2,3}|cpu", expected="a build such as cu130, or cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    name: str  # cu124
    architectures: tuple[str, ...]  # with machine code, ascending: 8.0; empty where not known
    ptx: tuple[str, ...]  # those of them that newer GPUs can compile for themselves at start

    @property
    def cuda(self) -> str:
        """Return the version of CUDA, 12.4; "" for the build for the CPU alone."""
        return "" if self.name == CPU else cuda_of(self.name)


@functools.cache
def _build(name: str, targets: str) -> Build:
    ptx = architectures(" ".join(name for name in targets.split() if name.endswith("+PTX")))
    return Build(name=name, architectures=architectures(targets), ptx=ptx)


def _builds(others: Mapping[str, str | None]) -> tuple[Build, ...]:
    return tuple(_build(name, targets or "") for name, targets in others.items())


def _check_specifier(text: str) -> Iterator[Mistake]:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        yield Mistake(message=f'expected a PEP 440 specifier such as "<2", found {shown(text)}')


BuildName = Annotated[str, _BUILD]
PythonName = Annotated[str, _PYTHON]
Specifier = Annotated[Line, FieldRule(_check_specifier)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmWheels:
    """What differs in the wheels for 64-bit Arm, which are on PyPI."""

    pythons: tuple[PythonName, ...]
    pypi: Annotated[str, _ARM_BUILD]  # `cpu` for wheels without CUDA
    targets: Annotated[Targets, Field(alias="architectures")] = ""  # "" without CUDA
    glibc: MajorMinor


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """One release for Linux on one processor: x86-64 in the table's rows, `on` returns the one for another."""

    version: Annotated[str, _RELEASE]
    released: Date
    pythons: tuple[PythonName, ...]  # with a wheel; 3.13t is a free-threaded build
    pypi: BuildName  # the build on PyPI, e.g. cu124; `cpu` on a processor for which that one has no CUDA
    targets: Annotated[Targets, Field(alias="architectures")]  # of that build
    # Builds that only PyTorch's own index has; in the file the value is `~` where the architectures are not known.
    other_builds: Annotated[
        tuple[Build, ...], ReadAs(dict[BuildName, Targets | None], _builds), Field(alias="others")
    ] = ()
    nccl: Version = ""  # "" where it is inside torch's own libraries
    cudnn: Version = ""  # "" likewise
    cuda_toolkit: Version = ""  # the version of the `cuda-toolkit` package that it asks for; "" for none
    glibc: MajorMinor  # the oldest that runs it
    cxx11_abi: Flag  # -D_GLIBCXX_USE_CXX11_ABI, which an extension must share
    std: Whole  # the C++ standard that its extensions are compiled with unless they say otherwise: 17
    std_min: Whole  # the oldest that its headers take
    gcc_min: Major = ""  # the oldest that its headers take; "" where only `std` decides
    # The gcc that torch's own check accepts with a CUDA toolkit: 12.4, <14. A CUDA that is not there is not checked.
    gcc_bounds: Annotated[tuple[tuple[str, str], ...], ReadAs(dict[MajorMinor, Specifier], pairs)] = ()
    arch_names: Annotated[
        tuple[str, ...], ReadAs(Targets, architectures)
    ]  # of TORCH_CUDA_ARCH_LIST: 8.0, 9.0a
    setuptools: Specifier = ""  # that `cpp_extension` needs; "" for any
    numpy: Specifier = ""  # likewise; "" for any
    # The releases of torchvision and torchaudio that require exactly this one; a project without one is not checked.
    companions: Annotated[tuple[tuple[str, str], ...], ReadAs(dict[str, Version], pairs)] = ()
    aarch64: ArmWheels | None = None  # None: no wheels for it
    note: Line = ""
    source: Sources
    read: Date

    def on(self, processor: Processor) -> "Torch | None":
        """Return the release as its wheels for a processor are, None if it has none."""
        if processor is X86_64:
            return self
        arm = self.aarch64
        if arm is None:
            return None
        # Of PyTorch's own index, only the builds for x86-64 are known.
        return replace(
            self, pythons=arm.pythons, pypi=arm.pypi, targets=arm.targets, glibc=arm.glibc, other_builds=()
        )

    @property
    def build(self) -> Build:
        """The build on PyPI."""
        return _build(self.pypi, self.targets)

    @property
    def builds(self) -> tuple[Build, ...]:
        """All builds, that on PyPI first."""
        return (self.build, *self.other_builds)

    def build_for(self, cuda: str) -> Build | None:
        """Return the build against exactly this CUDA."""
        return next((build for build in self.builds if build.name == build_of(cuda)), None)


def index_build(torch: Torch | None, cuda: str) -> str:
    """Return the build that PyTorch's own index alone has, such as cu118; "" where the package index's is installed.

    The package index has one build of each release, under its plain version; every other build is `+cpu` or `+cuXYZ`. A
    toolkit of another minor version than any build works with the package index's build (`check` warns of it).
    """
    if not cuda:
        return "" if torch and torch.pypi == CPU else CPU
    others = [build.name for build in torch.other_builds] if torch else []
    return build_of(cuda) if build_of(cuda) in others else ""


def build_of(cuda: str) -> str:
    """12.4 → cu124"""
    return f"cu{cuda.replace('.', '')}"


def cuda_of(build: str) -> str:
    """cu124 → 12.4; every minor version of CUDA so far has one digit."""
    return f"{build[2:-1]}.{build[-1]}"


def _check(row: Torch) -> Iterator[Mistake]:
    builds = [build.name for build in row.builds]
    if len(set(builds)) != len(builds) or len(set(row.pythons)) != len(row.pythons):
        yield Mistake(message="each build and each Python may appear once")
    if row.std_min > row.std:
        yield Mistake(message="`std_min` is not above `std`")


load_torches = reader("torch.yaml", Torch, key="version", check=_check, overridden="torch")  # oldest first
