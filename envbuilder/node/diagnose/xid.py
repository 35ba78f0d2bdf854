"""NVIDIA's Xid numbers: events that the driver writes into the kernel's log."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from envbuilder.core.models import STRICT, Date, Line, ReadAs, Shape, read_node
from envbuilder.core.places import Mistakes, load

FILE: Final = Path(__file__).with_name("xids.yaml")
_NUMBER: Final = Shape(pattern=r"\d{1,3}", expected='a number such as "79"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    __pydantic_config__ = STRICT
    number: Annotated[int, ReadAs(Annotated[str, _NUMBER], int), Field(alias="xid")]
    meaning: Line
    action: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    __pydantic_config__ = STRICT
    source: Line
    read: Date
    rows: tuple[Xid, ...]


@functools.cache
def load_xids(path: Path = FILE) -> dict[int, Xid]:
    """The table by number; raises ValueError when it breaks its own rules."""
    mistakes = Mistakes()
    root = load(path, mistakes)
    file = read_node(_File, root, mistakes) if root else None
    if file is None:
        raise ValueError("\n".join(str(finding) for finding in mistakes.findings))
    rows = {row.number: row for row in file.rows}
    if list(rows) != sorted(rows) or len(rows) != len(file.rows):
        raise ValueError(f"{path}: rows are sorted and unique")
    return rows
