"""The releases of PyTorch: for which Pythons and GPUs, against which CUDA, and what compiling an extension needs."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from envbuilder.compat.tables.cuda import MAJOR, VERSION, read_architectures
from envbuilder.compat.tables.table import Table, load_table, version_key
from envbuilder.core.decode import DATE, MAJOR_MINOR, Code, Entry, Fields, Kind, Node, Shape

__all__ = ["Build", "GccBound", "Torch", "build_of", "cuda_of", "load_torches", "version_key"]

FILE: Final = Path(__file__).with_name("torch.yaml")
_KEYS: Final = (
    "version", "released", "read", "source", "pythons", "pypi", "architectures", "glibc", "cxx11_abi",
    "std", "std_min", "checks_cuda", "arch_names",
)  # fmt: skip
_OPTIONAL: Final = (
    "others", "nccl", "cudnn", "cuda_toolkit", "gcc_min", "gcc_bounds", "setuptools", "numpy", "note",
)  # fmt: skip
_RELEASE: Final = Shape(pattern=r"\d+\.\d+\.\d+", expected='a version such as "2.6.0"')
_PYTHON: Final = Shape(pattern=r"3\.\d+t?", expected='a Python such as "3.13" or "3.13t"')
_BUILD: Final = Shape(pattern=r"cu\d{2,3}", expected="a build such as cu124")


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What was compiled for one CUDA."""

    name: str  # cu124
    architectures: tuple[str, ...]  # with machine code, ascending: 8.0; empty where not known
    ptx: tuple[str, ...]  # those of them that newer GPUs can compile for themselves at start

    @property
    def cuda(self) -> str:
        return cuda_of(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class GccBound:
    """The compilers that torch's own check of an extension build takes with a CUDA toolkit."""

    cuda: str  # 12.4
    allowed: str  # a PEP 440 specifier: <14

    def allows(self, gcc: str) -> bool:
        return SpecifierSet(self.allowed).contains(gcc)


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """One release for Linux x86-64."""

    version: str
    released: str  # YYYY-MM-DD
    pythons: tuple[str, ...]  # with a wheel; 3.13t is a free-threaded build
    build: Build  # the one on PyPI
    other_builds: tuple[Build, ...]  # those that only PyTorch's own index has
    nccl: str  # "" where it is inside torch's own libraries
    cudnn: str  # "" likewise
    cuda_toolkit: str  # the version of the `cuda-toolkit` package that it asks for; "" for none
    glibc: str  # the oldest that runs it
    cxx11_abi: bool  # -D_GLIBCXX_USE_CXX11_ABI, which an extension must share
    std: int  # the C++ standard that its extensions are compiled with unless they say otherwise: 17
    std_min: int  # the oldest that its headers take
    gcc_min: str  # the oldest that its headers take; "" where only `std` decides
    gcc_bounds: tuple[GccBound, ...]  # a CUDA without a row is not checked by torch
    checks_cuda: bool  # an extension's setup.py fails where nvcc and torch differ in CUDA's major version
    arch_names: tuple[str, ...]  # what TORCH_CUDA_ARCH_LIST may say: 8.0, 9.0a
    setuptools: str  # a PEP 440 specifier that `cpp_extension` needs; "" for any
    numpy: str  # likewise; "" for any
    note: str
    source: tuple[str, ...]
    read: str

    @property
    def pypi(self) -> str:
        """The name of PyPI's build, e.g. cu124."""
        return self.build.name

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(build.name for build in self.other_builds)

    @property
    def builds(self) -> tuple[str, ...]:
        return (self.pypi, *self.others)

    def build_for(self, cuda: str) -> Build | None:
        """The build against exactly this CUDA."""
        return next((one for one in (self.build, *self.other_builds) if one.name == build_of(cuda)), None)

    def gcc_bound(self, cuda: str) -> GccBound | None:
        return next((bound for bound in self.gcc_bounds if bound.cuda == cuda), None)


@functools.cache
def load_torches(path: Path = FILE) -> Table[Torch]:
    """The table, oldest first; raises ValueError when it breaks its own rules."""
    return load_table(
        path, _KEYS, _row, lambda row: version_key(row.version), optional=_OPTIONAL, overridden="torch",
    )  # fmt: skip


def build_of(cuda: str) -> str:
    """12.4 → cu124"""
    return f"cu{cuda.replace('.', '')}"


def cuda_of(build: str) -> str:
    """cu124 → 12.4; every minor version of CUDA so far has one digit."""
    return f"{build[2:-1]}.{build[-1]}"


def _row(fields: Fields) -> Torch:
    architectures, ptx = read_architectures(fields, "architectures")
    row = Torch(
        version=fields.text("version", _RELEASE),
        released=fields.text("released", DATE),
        pythons=fields.texts("pythons", _PYTHON),
        build=Build(name=fields.text("pypi", _BUILD), architectures=architectures, ptx=ptx),
        other_builds=tuple(_other(entry, fields) for entry in fields.entries("others")),
        nccl=fields.text("nccl", VERSION),
        cudnn=fields.text("cudnn", VERSION),
        cuda_toolkit=fields.text("cuda_toolkit", VERSION),
        glibc=fields.text("glibc", MAJOR_MINOR),
        cxx11_abi=fields.flag("cxx11_abi"),
        std=fields.integer("std"),
        std_min=fields.integer("std_min"),
        gcc_min=fields.text("gcc_min", MAJOR),
        gcc_bounds=tuple(
            GccBound(cuda=entry.key, allowed=_specifier(entry.node, fields))
            for entry in fields.entries("gcc_bounds")
        ),
        checks_cuda=fields.flag("checks_cuda"),
        arch_names=read_architectures(fields, "arch_names")[0],
        setuptools=_specifier(fields.node.get("setuptools"), fields),
        numpy=_specifier(fields.node.get("numpy"), fields),
        note=fields.text("note"),
        source=fields.texts("source"),
        read=fields.text("read", DATE),
    )
    if len(set(row.builds)) != len(row.builds) or len(set(row.pythons)) != len(row.pythons):
        fields.mistakes.at(fields.node, Code.VALUE, "each build and each Python stands there once")
    if row.std_min > row.std:
        fields.mistakes.at(fields.node, Code.VALUE, "`std_min` is not above `std`")
    return row


def _other(entry: Entry, fields: Fields) -> Build:
    """A build with its architectures, or with nothing where they are not known."""
    node = Node(path=entry.node.path, where=entry.where, kind=Kind.MAP, entries=(entry,))
    inner = Fields(node, fields.mistakes, required=(entry.key,))
    if not _is_build(entry.key):
        fields.mistakes.at(node, Code.VALUE, f"expected {_BUILD.expected}, found {entry.key}")
    known = entry.node.kind is not Kind.NOTHING
    architectures, ptx = read_architectures(inner, entry.key) if known else ((), ())
    return Build(name=entry.key, architectures=architectures, ptx=ptx)


def _is_build(name: str) -> bool:
    return name.startswith("cu") and name[2:].isdecimal() and len(name) in (4, 5)


def _specifier(node: Node | None, fields: Fields) -> str:
    if node is None:
        return ""
    try:
        SpecifierSet(node.text)
    except InvalidSpecifier:
        fields.mistakes.at(
            node, Code.VALUE, f'expected a PEP 440 specifier such as "<2", found {node.text or node.kind}'
        )
        return ""
    return node.text
