"""What the languages of extensions ask for: `crypt.h` for the Python.h of some versions, a gcc for each C++ standard."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

from envbuilder.compat.tables.table import Sources, reader, version_key
from envbuilder.core.models import Date, Line, MajorMinor, Mistake, ReadAs, Shape
from envbuilder.core.processor import Processor

_BELOW: Final = Shape(pattern=r"\d+\.\d+(\.\d+)?", expected='a version such as "3.9.8"')
_YEAR: Final = Shape(pattern=r"\d\d", expected='a standard such as "17"')
_GCC: Final = Shape(pattern=r"\d+(\.\d+)?", expected='a version such as "10"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """One minor version."""

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


def _check(row: Python) -> Iterator[Mistake]:
    if row.crypt_h_below and not version_key(row.python) < version_key(row.crypt_h_below):
        yield Mistake(message="`crypt_h_below` is above the row's Python")


load_pythons = reader("pythons.yaml", Python, key="python", check=_check)
load_standards = reader("standards.yaml", Standard, key="standard", order=lambda row: (row.standard,))


_VERSION: Final = Shape(pattern=r"\d+\.\d+\.\d+", expected='a version such as "3.10.21"')
_RELEASE: Final = Shape(pattern=r"\d{8}", expected='a day such as "20260814"')
_DIGEST: Final = Shape(pattern=r"[0-9a-f]{64}", expected="64 hexadecimal digits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standalone:
    """The newest build of one minor version."""

    python: MajorMinor  # 3.10
    read: Date
    source: Sources
    version: Annotated[str, _VERSION]  # 3.10.21
    release: Annotated[str, _RELEASE]  # of python-build-standalone: the day of the build
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
