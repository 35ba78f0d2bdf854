"""The suites that an environment can be built on, the Pythons beside their own, and what C++ and Python.h ask of them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from envbuilder.compat.tables.table import Sources, reader, version_key
from envbuilder.core.models import Date, Flag, Line, MajorMinor, Mistake, ReadAs, Shape
from envbuilder.core.processor import Processor

_RELEASE: Final = Shape(
    pattern=r"\d+(\.\d+)?|testing|unstable", expected='a release such as "12", testing or unstable'
)
_MOVING: Final = ("testing", "unstable")  # releases whose versions change
_PYTHON: Final = Shape(pattern=r"3\.\d+(\.\d+)?", expected='a version such as "3.11.2"')
_PATCH: Final = Shape(pattern=r"\d+\.\d+\.\d+", expected='a version such as "4.4.33"')
_BELOW: Final = Shape(pattern=r"\d+\.\d+(\.\d+)?", expected='a version such as "3.9.8"')
_YEAR: Final = Shape(pattern=r"\d\d", expected='a standard such as "17"')
_GCC: Final = Shape(pattern=r"\d+(\.\d+)?", expected='a version such as "10"')
_VERSION: Final = Shape(pattern=r"\d+\.\d+\.\d+", expected='a version such as "3.10.21"')
_DAY: Final = Shape(pattern=r"\d{8}", expected='a day such as "20260814"')
_DIGEST: Final = Shape(pattern=r"[0-9a-f]{64}", expected="64 hexadecimal digits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    name: Line  # debian/bookworm, as a recipe's `base` says it
    release: Annotated[str, _RELEASE]  # 12
    glibc: MajorMinor
    python_version: Annotated[str, _PYTHON, Field(alias="python")]  # 3.11.2; the patch number may be unknown
    default_gcc: Annotated[str, _PATCH, Field(alias="gcc")]  # 12.2.0: a member of gcc_versions
    # Ascending, one of a major.
    gcc_versions: Annotated[tuple[Annotated[str, _PATCH], ...], Field(alias="gccs")]
    libxcrypt: Annotated[str, _PATCH]  # 4.4.33
    has_crypt_h: Annotated[Flag, Field(alias="crypt_h")]  # libc6-dev brings libcrypt-dev, and with it crypt.h
    components: tuple[Line, ...]  # those whose packages `lock` chooses from
    pockets: tuple[Line, ...]  # updates, security; none for a suite without a release
    note: Line = ""
    source: Sources

    @property
    def family(self) -> str:
        """Return the distribution, such as debian."""
        return self.name.partition("/")[0]

    @property
    def suite(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def is_released(self) -> bool:
        """Whether its versions stay, so that `init` and hints may choose it."""
        return self.release not in _MOVING

    @property
    def python(self) -> str:
        """3.11"""
        return ".".join(self.python_version.split(".")[:2])

    @property
    def short_libxcrypt(self) -> str:
        """4.4, as recipes pin it."""
        return ".".join(self.libxcrypt.split(".")[:2])

    @property
    def gcc(self) -> str:
        """The default compiler's major version, as recipes say it."""
        return _major(self.default_gcc)

    @property
    def gccs(self) -> tuple[str, ...]:
        """The major versions, ascending."""
        return tuple(_major(version) for version in self.gcc_versions)

    def gcc_version(self, major: str) -> str:
        """Return 12.2.0 for 12. Raises KeyError if it is not packaged."""
        return {_major(version): version for version in self.gcc_versions}[major]


def _order(row: Distribution) -> tuple[object, ...]:
    release = version_key(row.release) if row.is_released else (math.inf, _MOVING.index(row.release))
    return row.family, release


def _major(version: str) -> str:
    return version.partition(".")[0]


def _check(row: Distribution) -> Iterator[Mistake]:
    majors = [version_key(major) for major in row.gccs]
    if row.default_gcc not in row.gcc_versions or majors != sorted(set(majors)):
        yield Mistake(
            message="`gccs` is ascending, has one of each major version and holds the default, "
            f"found {row.gcc_versions} and {row.default_gcc}"
        )


load_distributions = reader("distributions.yaml", Distribution, key="name", order=_order, check=_check)


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    python: MajorMinor  # 3.9
    # The first release whose Python.h does not include crypt.h: 3.9.8. 3.9 in row 3.8: all do. "": none does.
    crypt_h_below: Annotated[str, _BELOW] = ""
    note: Line = ""
    source: Sources

    def needs_crypt_h(self, version: str = "") -> bool:
        """Return whether this patch release includes it; without a patch number, whether every one does."""
        if not self.crypt_h_below:
            return False
        below = version_key(self.crypt_h_below)
        return version_key(version) < below if version.count(".") > 1 else len(below) == 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    standard: Annotated[int, ReadAs(Annotated[str, _YEAR], int)]  # 17
    gcc: Annotated[str, _GCC]  # the first that takes -std=c++17


@dataclass(frozen=True, slots=True, kw_only=True)
class LibStdCxx:
    gcc: Annotated[str, _GCC]  # the first release with these
    glibcxx: Annotated[str, _PATCH, Field(alias="GLIBCXX")]
    cxxabi: Annotated[str, _PATCH, Field(alias="CXXABI")]

    @property
    def newest(self) -> dict[str, str]:
        return {"GLIBCXX": self.glibcxx, "CXXABI": self.cxxabi}


def libstdcxx_of(gcc: str) -> LibStdCxx | None:
    """Return the row for the library of a gcc release such as 12.2.0, None for one after the last known major version."""
    rows, release = load_libstdcxx().rows, version_key(gcc)
    fitting = [row for row in rows if version_key(row.gcc) <= release]
    is_known = fitting and release[0] <= version_key(rows[-1].gcc)[0]
    return fitting[-1] if is_known else None


def _check_crypt_h(row: Python) -> Iterator[Mistake]:
    if row.crypt_h_below and not version_key(row.python) < version_key(row.crypt_h_below):
        yield Mistake(message="`crypt_h_below` is above the row's Python")


load_pythons = reader("pythons.yaml", Python, key="python", check=_check_crypt_h)
load_standards = reader("standards.yaml", Standard, key="standard", order=lambda row: (row.standard,))
load_libstdcxx = reader("libstdcxx.yaml", LibStdCxx, key="gcc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standalone:
    """The newest build of one minor version by python-build-standalone, as uv installs it: for any Linux with glibc 2.17."""

    python: MajorMinor  # 3.10
    read: Date
    source: Sources
    version: Annotated[str, _VERSION]  # 3.10.21
    release: Annotated[str, _DAY]  # of python-build-standalone: the day of the build
    x86_64: Annotated[str, _DIGEST]  # sha256 of the archive
    aarch64: Annotated[str, _DIGEST]
    note: Line = ""

    def digest(self, processor: Processor) -> str:
        """Return the sha256 of the archive for a processor."""
        return str(getattr(self, processor.machine))

    def path(self, processor: Processor) -> str:
        """Return the place of the archive below the releases of python-build-standalone, or below a mirror of them."""
        return f"{self.release}/{archive_name(self.version, self.release, processor.machine)}"


def archive_name(version: str, release: str, machine: str) -> str:
    """Return the file name of a build without debug symbols and tests."""
    return f"cpython-{version}+{release}-{machine}-unknown-linux-gnu-install_only_stripped.tar.gz"


load_standalones = reader("standalone.yaml", Standalone, key="python")
