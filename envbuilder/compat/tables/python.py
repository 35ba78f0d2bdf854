"""The versions of Python, and whether Python.h includes `crypt.h`, which extensions then need."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from envbuilder.compat.tables.table import Table, load_table, version_key
from envbuilder.core.models import STRICT, Line, MajorMinor, Mistake, Rule, Shape

FILE: Final = Path(__file__).with_name("pythons.yaml")
_BELOW: Final = Shape(pattern=r"\d+\.\d+(\.\d+)?", expected='a version such as "3.9.8"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """One minor version."""

    __pydantic_config__ = STRICT
    python: MajorMinor  # 3.9
    crypt_h_below: Annotated[str, _BELOW] = (
        ""  # 3.9.8: the first without it; 3.9 for a row of 3.8: none; "" where none ever had it
    )
    note: Line = ""
    source: tuple[Line, ...]

    def needs_crypt_h(self, version: str = "") -> bool:
        """Return whether this patch release includes it; without a patch number, whether every one does."""
        if not self.crypt_h_below:
            return False
        below = version_key(self.crypt_h_below)
        exact = version_key(version) if version.count(".") > 1 else ()
        return exact < below if exact else len(below) == 2


@functools.cache
def load_pythons(path: Path = FILE) -> Table[Python]:
    """Return the table. Raises ValueError if it breaks its own rules."""
    return load_table(path, Annotated[Python, Rule(_check)], lambda row: version_key(row.python))


def _check(row: Python) -> Iterator[Mistake]:
    if row.crypt_h_below and not version_key(row.python) < version_key(row.crypt_h_below):
        yield Mistake(message="`crypt_h_below` is above the row's Python")
