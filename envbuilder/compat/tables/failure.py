"""Why an extension does not compile: what compilers say, and what it means."""

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from envbuilder.compat.tables.table import Table, load_table
from envbuilder.core.decode import Shape
from envbuilder.core.models import STRICT, Line, Pattern

FILE: Final = Path(__file__).with_name("failures.yaml")
_CODE: Final = Shape(pattern=r"EB6\d\d", expected="a code such as EB610")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    __pydantic_config__ = STRICT
    code: Annotated[str, _CODE]
    pattern: Pattern  # of one line
    message: Line
    repair: Line
    source: tuple[Line, ...]

    def message_for(self, match: re.Match[str]) -> str:
        return self.message.format(**match.groupdict())

    def repair_for(self, match: re.Match[str]) -> str:
        return self.repair.format(**match.groupdict())


@functools.cache
def load_failures(path: Path = FILE) -> Table[Failure]:
    """The table, most telling row first; raises ValueError when it breaks its own rules."""
    return load_table(path, Failure, lambda row: (row.code,))
