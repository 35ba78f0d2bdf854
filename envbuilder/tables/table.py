"""What every table has: a source, the day it was read, and rows that are unique and in order."""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from envbuilder.decode import DATE, Code, Fields, Mistakes, load

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Generic[Row]):
    source: str
    read: str  # the day, YYYY-MM-DD
    rows: tuple[Row, ...]


def load_table(
    path: Path, keys: Iterable[str], make: Callable[[Fields], Row], order: Callable[[Row], tuple[object, ...]]
) -> Table[Row]:
    """Read a table whose rows have exactly these keys; raises ValueError with every mistake, a line each.

    `order` gives what rows are sorted by, and no two rows may be equal in it.
    """
    mistakes = Mistakes()
    root = load(path, mistakes)
    if root is None:
        raise ValueError(_listing(mistakes))
    fields = Fields(root, mistakes, required=("source", "read", "rows"))
    items = fields.items("rows")
    keys = tuple(keys)
    rows = [make(Fields(item, mistakes, required=keys)) for item in items]
    table = Table(source=fields.text("source"), read=fields.text("read", DATE), rows=tuple(rows))
    if not mistakes.findings:
        for item, (before, row) in zip(items[1:], itertools.pairwise(map(order, rows)), strict=True):
            if not before < row:
                mistakes.at(item, Code.VALUE, f"rows are sorted and unique, but {row} follows {before}")
    if mistakes.findings:
        raise ValueError(_listing(mistakes))
    return table


def _listing(mistakes: Mistakes) -> str:
    return "\n".join(str(finding) for finding in mistakes.findings)
