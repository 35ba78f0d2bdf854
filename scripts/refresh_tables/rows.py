"""Tables that `scripts/refresh_tables` writes: rows as plain values, their changes, and the text of the file.

A row is never dropped, and a key that an artifact no longer shows keeps its value. Both are reported
instead, because a source that lists less than before is more often wrong than right
(https://github.com/replicate/cog/pull/725).
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Final

from envbuilder.compat.tables.table import version_key
from envbuilder.core.places import Mistakes, parse_yaml

Value = str | int | bool | list[str] | Mapping[str, str | list[str]]
Row = Mapping[str, Value]
_SET_BY_US: Final = ("read", "source", "released")  # never judged as lost
_ROWS: Final = "\nrows:\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes of a refresh, and notes for a person to check; one line each."""

    done: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __add__(self, other: "Changes") -> "Changes":
        return Changes(done=self.done + other.done, notes=self.notes + other.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFile:
    """One file: the text above its rows, and the rows, oldest first."""

    head: str
    rows: tuple[Row, ...]
    key: str  # names a row: its version

    def values(self, key: str) -> frozenset[str]:
        """Return the values of this key in the rows that have it."""
        return frozenset(str(row[key]) for row in self.rows if key in row)

    def text(self, order: Sequence[str]) -> str:
        """Return the text of the file. Keys of a row come in this order, others after them."""
        lines = [
            f"{'  - ' if number == 0 else '    '}{key}: {_text(row[key])}\n"
            for row in self.rows
            for number, key in enumerate(sorted(row, key=lambda key: ([*order, key].index(key), key)))
        ]
        return f"{self.head}{_ROWS}{''.join(lines)}"


def parse_rows(text: str, file: Path, key: str) -> RowFile:
    """Read a table's text. Raises ValueError if it has another form than `RowFile.text` writes."""
    head, found, _ = text.partition(_ROWS)
    mistakes = Mistakes()
    root = parse_yaml(text, str(file), mistakes)
    rows = root.get("rows") if root else None
    if mistakes.findings or rows is None or not found:
        raise ValueError(f"`{file}` is no table of rows")
    return RowFile(head=head, rows=tuple(rows.value), key=key)


def update(
    path: Path, key: str, new: Iterable[Row], *, sources: Iterable[str], today: date
) -> tuple[RowFile, Changes]:
    """Return a table with the new rows and with today as its date and that of these sources, and the changes."""
    file = parse_rows(path.read_text(encoding="utf-8"), path, key)
    rows = {str(row[key]): row for row in file.rows}
    changes = Changes()
    for row in new:
        version = str(row[key])
        rows[version], change = _update(rows.get(version), row, f"{path.stem} {version}", today)
        changes += change
    ordered = tuple(rows[version] for version in sorted(rows, key=version_key))
    head = re.sub(r'^read: "[0-9-]+"$', f'read: "{today}"', file.head, flags=re.MULTILINE)
    for source in sources:
        head = re.sub(rf'^(  {source}: .*read: )"[0-9-]+"', rf'\g<1>"{today}"', head, flags=re.MULTILINE)
    done = (f"read on {today}",) if head != file.head else ()
    return replace(file, head=head, rows=ordered), changes + Changes(done=done)


def _update(old: Row | None, new: Row, label: str, today: date) -> tuple[Row, Changes]:
    if old is None:
        return {**new, "read": str(today)}, Changes(done=(f"+ {label}",))
    known, found = old.get("source", []), new.get("source", [])
    assert isinstance(known, list)
    assert isinstance(found, list)
    sources = list(dict.fromkeys((*known, *found)))
    changed = {key: value for key, value in new.items() if key != "released" and old.get(key) != value}
    changed.pop("source", None)
    done = tuple(
        f"{label}: {key}: {_text(old[key]) if key in old else 'nothing'} → {_text(value)}"
        for key, value in sorted(changed.items())
    )
    lost = tuple(
        f"{label}: `{key}` was not found now, {_text(old[key])} is kept"
        for key in sorted(old.keys() - new.keys() - set(_SET_BY_US))
    )
    row = {**old, **changed, "source": sources}
    if row != dict(old):
        row["read"] = str(today)
        done = done or (f"{label}: source: {_text(sources)}",)
    return row, Changes(done=done, notes=lost)


def _text(value: Value) -> str:
    """Return a value in YAML's flow style, as JSON."""
    return json.dumps(value, ensure_ascii=False)
