"""What NVIDIA's Xid numbers mean: the events that the driver writes into the kernel's log."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.core.decode import Fields, Mistakes, Shape, load

FILE: Final = Path(__file__).with_name("xids.yaml")
_NUMBER: Final = Shape(pattern=r"\d{1,3}", expected='a number such as "79"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    number: int
    meaning: str
    action: str


@functools.cache
def load_xids(path: Path = FILE) -> dict[int, Xid]:
    """The table by number; raises ValueError when it breaks its own rules."""
    mistakes = Mistakes()
    root = load(path, mistakes)
    rows: dict[int, Xid] = {}
    if root is not None:
        table = Fields(root, mistakes, required=("source", "read", "rows"))
        for item in table.items("rows"):
            row = Fields(item, mistakes, required=("xid", "meaning", "action"))
            number = int(row.text("xid", _NUMBER) or 0)
            rows[number] = Xid(number=number, meaning=row.text("meaning"), action=row.text("action"))
        if list(rows) != sorted(rows) or len(rows) != len(table.items("rows")):
            raise ValueError(f"{path}: rows are sorted and unique")
    if mistakes.findings:
        raise ValueError("\n".join(str(finding) for finding in mistakes.findings))
    return rows
