"""The facts of a base image, each with the place where it was found.

The facts are plain text because the lock keeps them: `check` judges them without the image, years later too. They make a row
of the distributions' table, so that the same rules judge images and suites.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from envbuilder.compat.tables.distribution import Distribution
from envbuilder.compat.tables.table import version_key
from envbuilder.core.models import Line, LineOrEmpty
from envbuilder.core.processor import X86_64

PLATFORM: Final = X86_64.debian
SUITES: Final = ("debian", "ubuntu")  # whose code names recipes use: debian/bookworm


class Name(StrEnum):
    """The kinds of facts. An image may have several of those with a star."""

    OS = "os"  # debian/bookworm, or rocky/9.3
    ARCHITECTURE = "architecture"  # * of the programs inside, and what the image's config says
    GLIBC = "glibc"
    MUSL = "musl"
    GCC = "gcc"  # * that can compile C, with its driver's path
    GXX = "g++"  # *
    PLAIN_GCC = "plain gcc"  # what `gcc` means on PATH
    PYTHON = "python"  # *
    PYTHON_HEADERS = "python headers"  # *
    LIBXCRYPT = "libxcrypt"
    LIBCRYPT = "libcrypt"  # * libcrypt.so.1, libcrypt.so.2
    CRYPT_H = "crypt.h"
    CUDA = "cuda"  # * a toolkit or a part of one, with its folder
    PLAIN_CUDA = "plain cuda"  # what /usr/local/cuda is
    NVCC = "nvcc"  # *
    CUDART = "cudart"  # *
    CUDA_HEADERS = "cuda headers"  # *
    CUDA_LIBRARIES = "cuda libraries"  # * bytes of shared libraries
    CUDA_STATIC = "cuda static libraries"  # * bytes
    NCCL = "nccl"  # *
    CUDNN = "cudnn"  # *
    TORCH = "torch"  # *
    MANAGER = "packages"  # dpkg or rpm, with how many
    APT = "apt source"  # * beside the distribution's own, as a line of apt's
    ENV = "env"  # * NAME=value
    USER = "user"
    ENTRYPOINT = "entrypoint"
    FOLDER = "working folder"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Fact:
    """One thing that a base has."""

    name: Line  # of `Name`, unless a newer envbuilder wrote it
    value: LineOrEmpty  # a version or another text; "" if only its presence is known
    path: LineOrEmpty  # in the image, "" for what is no file
    source: Line  # a file, a package, or the image's config


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The facts of one image, for rules and for builds."""

    facts: tuple[Fact, ...]
    packages: tuple[str, ...] = ()  # name=version, sorted

    def every(self, name: Name) -> tuple[Fact, ...]:
        return tuple(fact for fact in self.facts if fact.name == name)

    def first(self, name: Name) -> Fact | None:
        return next(iter(self.every(name)), None)

    def value(self, name: Name) -> str:
        found = self.first(name)
        return found.value if found else ""

    @property
    def distribution(self) -> str:
        """Return the distribution as a recipe's `base` spells it: debian/bookworm; "" if unknown."""
        return self.value(Name.OS)

    @property
    def gccs(self) -> tuple[Fact, ...]:
        """Return the gccs that also compile C++, oldest first: an extension needs both."""
        both = {fact.value for fact in self.every(Name.GXX)}
        return tuple(fact for fact in self.every(Name.GCC) if fact.value in both)

    def gcc(self, major: str) -> Fact | None:
        return next((fact for fact in self.gccs if is_version(fact.value, major)), None)

    @property
    def pythons(self) -> tuple[Fact, ...]:
        return self.every(Name.PYTHON)

    def python(self, minor: str) -> Fact | None:
        """Return the Python of this minor version: one in /usr/local comes before the distribution's."""
        found = [fact for fact in self.pythons if is_version(fact.value, minor)]
        return min(found, key=lambda fact: not fact.path.startswith("/usr/local/"), default=None)

    def has_headers(self, minor: str) -> bool:
        return any(is_version(fact.value, minor) for fact in self.every(Name.PYTHON_HEADERS))

    def torch(self, python: str) -> Fact | None:
        """Return the torch that a Python of this minor version imports."""
        folder = f"/python{python}/"
        return next((fact for fact in self.every(Name.TORCH) if folder in fact.path), None)

    @property
    def cudas(self) -> tuple[Fact, ...]:
        return self.every(Name.CUDA)

    @property
    def cuda(self) -> Fact | None:
        """Return the toolkit of /usr/local/cuda, otherwise the only one."""
        plain = self.value(Name.PLAIN_CUDA)
        found = [fact for fact in self.cudas if fact.path == plain] or list(self.cudas)
        return found[0] if found else None

    def part(self, name: Name, cuda: Fact) -> Fact | None:
        inside = (fact for fact in self.every(name) if f"{fact.path}/".startswith(f"{cuda.path}/"))
        return next(inside, None)

    def toolkit(self, minor: str) -> Fact | None:
        """Return the complete toolkit of this CUDA, with compiler and headers."""
        for fact in self.cudas:
            parts = self.part(Name.NVCC, fact), self.part(Name.CUDA_HEADERS, fact)
            if is_version(fact.value, minor) and all(parts):
                return fact
        return None

    @property
    def env(self) -> dict[str, str]:
        pairs = (fact.value.partition("=") for fact in self.every(Name.ENV))
        return {name: value for name, _, value in pairs}


def is_version(version: str, pin: str) -> bool:
    """Return whether a version matches a pin: 12.2.0 matches 12."""
    return f"{version}.".startswith(f"{pin}.")


def other_machine(base: Base) -> Fact | None:
    """Return the fact that shows another processor, if any. 32-bit libraries beside 64-bit ones do not count."""
    facts = base.every(Name.ARCHITECTURE)
    config, programs = ([fact for fact in facts if bool(fact.path) == inside] for inside in (False, True))
    for named in (config, programs):
        if named and all(fact.value != PLATFORM for fact in named):
            return named[0]
    return None


def is_foreign(base: Base) -> bool:
    """Return whether the image has another processor or C library than PyTorch's wheels need."""
    return other_machine(base) is not None or base.first(Name.GLIBC) is None


def suite_of(base: Base, rows: Mapping[str, Distribution]) -> Distribution | None:
    """Return the suite whose packages can be added to the image, None if there is none."""
    row = rows.get(base.distribution)
    return row if row and base.value(Name.MANAGER) == "dpkg" else None


def as_distribution(base: Base, python: str, rows: Mapping[str, Distribution]) -> Distribution | None:
    """Return the image as a row of the distributions' table, with the packages that its suite can add.

    None for a foreign image. A value is empty if neither has it.
    """
    if is_foreign(base):
        return None
    suite = suite_of(base, rows)
    pythons = [base.python(python), *base.pythons]
    version = next((fact.value for fact in pythons if fact), "")
    if suite and base.python(python) is None and (python == suite.python or not version):
        version = suite.python_version
    gccs = [*(fact.value for fact in base.gccs), *(suite.gcc_versions if suite else ())]
    first = {version.partition(".")[0]: version for version in reversed(gccs)}  # one of each major version
    return Distribution(
        name=f"the base image ({base.distribution or 'of an unknown distribution'})",
        release="",
        glibc=base.value(Name.GLIBC),
        python_version=version,
        default_gcc=base.value(Name.PLAIN_GCC),
        gcc_versions=tuple(sorted(first.values(), key=version_key)),
        libxcrypt=base.value(Name.LIBXCRYPT) or (suite.libxcrypt if suite else ""),
        has_crypt_h=base.first(Name.CRYPT_H) is not None or bool(suite and suite.has_crypt_h),
        components=(),
        pockets=(),
        source=(),
    )
