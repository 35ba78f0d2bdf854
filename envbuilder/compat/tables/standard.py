"""The C++ standards, and the first gcc that knows each."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from envbuilder.compat.tables.table import Table, load_table
from envbuilder.core.models import STRICT, ReadAs, Shape

FILE: Final = Path(__file__).with_name("standards.yaml")
_YEAR: Final = Shape(pattern=r"\d\d", expected='a standard such as "17"')
_GCC: Final = Shape(pattern=r"\d+(\.\d+)?", expected='a version such as "10"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    __pydantic_config__ = STRICT
    standard: Annotated[int, ReadAs(Annotated[str, _YEAR], int)]  # 17
    gcc: Annotated[str, _GCC]  # the first that takes -std=c++17


@functools.cache
def load_standards(path: Path = FILE) -> Table[Standard]:
    """Return the table. Raises ValueError if it breaks its own rules."""
    return load_table(path, Standard, lambda row: (row.standard,))
