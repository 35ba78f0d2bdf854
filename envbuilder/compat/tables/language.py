"""What the languages of extensions ask for: `crypt.h` for the Python.h of some versions, a gcc for each C++ standard."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

from envbuilder.compat.tables.table import Sources, reader, version_key
from envbuilder.core.models import Line, MajorMinor, Mistake, ReadAs, Shape

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
