"""What every table has: sources with their dates, and rows that are unique, in order, and say where they come from.

Rows are the file's own, changed by `overrides.yaml` beside it: `tables refresh` writes some files anew and never that one,
so what a person knows better than the artefacts outlives every refresh.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Generic, TypeVar

from envbuilder.core.decode import DATE, LINE, Code, Entry, Fields, Kind, Mistakes, Node, Shape, load

OVERRIDES: Final = "overrides.yaml"  # its name, beside the table
_VERSION: Final = r"\d+(?:\.\d+)*"
_SPAN: Final = Shape(
    pattern=rf"{_VERSION}(?: -(?: {_VERSION})?)?", expected='a version, "2.0.0 - 2.2.2" or "2.0.0 -"'
)

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where facts come from, and when they were read there."""

    name: str  # as a row's `source` says it
    text: str
    read: str  # the day, YYYY-MM-DD

    def __str__(self) -> str:
        return f"{self.text} (read {self.read})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Generic[Row]):
    sources: tuple[Source, ...]
    read: str  # the day on which the newest rows were read, YYYY-MM-DD: the table's age
    rows: tuple[Row, ...]

    def source(self, names: Iterable[str]) -> str:
        """What a finding says about where a row comes from."""
        known = {source.name: str(source) for source in self.sources}
        return "; ".join(known[name] for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Override:
    """Keys that a range of rows gets, by hand."""

    node: Node
    first: tuple[int, ...]
    last: tuple[int, ...] | None  # inclusive; None: no end
    source: tuple[Node, ...]
    change: tuple[Entry, ...]

    def is_for(self, version: tuple[int, ...]) -> bool:
        return self.first <= version and (self.last is None or version <= self.last)


def version_key(version: str) -> tuple[int, ...]:
    """What plain versions such as 2.10.0 are sorted by."""
    return tuple(int(part) for part in version.split("."))


def load_table(
    path: Path,
    keys: Iterable[str],
    make: Callable[[Fields], Row],
    order: Callable[[Row], tuple[object, ...]],
    *,
    optional: Iterable[str] = (),
    overridden: str = "",
) -> Table[Row]:
    """Read a table whose rows have these keys; raises ValueError with every mistake, a line each.

    `order` gives what rows are sorted by, and no two rows may be equal in it. `overridden` is the section of
    `overrides.yaml` that changes rows; the first of `keys` is the version that it names them by.
    """
    mistakes = Mistakes()
    root = load(path, mistakes)
    if root is None:
        raise ValueError(_listing(mistakes))
    fields = Fields(root, mistakes, required=("read", "rows"), optional=("source", "sources"))
    keys = tuple(keys)
    items = fields.items("rows")
    sources = _sources(fields)
    if overridden:
        more, items = _overrule(items, keys[0], path.with_name(OVERRIDES), overridden, mistakes)
        sources |= more
    for item in items:
        _check_source(item, sources, mistakes)
    rows = [make(Fields(item, mistakes, required=keys, optional=optional)) for item in items]
    if not mistakes.findings:
        for item, (before, row) in zip(items[1:], itertools.pairwise(map(order, rows)), strict=True):
            if not before < row:
                mistakes.at(item, Code.VALUE, f"rows are sorted and unique, but {row} follows {before}")
    read = fields.text("read", DATE)
    if mistakes.findings:
        raise ValueError(_listing(mistakes))
    return Table(sources=tuple(sources.values()), read=read, rows=tuple(rows))


def _sources(fields: Fields) -> dict[str, Source]:
    """One text for all rows, or a map of names that rows refer to."""
    if "source" in fields:
        return {"": Source(name="", text=fields.text("source"), read=fields.text("read", DATE))}
    if "sources" not in fields:
        fields.mistakes.at(fields.node, Code.MISSING_KEY, "the key `sources` is missing")
    found = {}
    for entry in fields.entries("sources"):
        inner = Fields(entry.node, fields.mistakes, required=("text", "read"))
        found[entry.key] = Source(name=entry.key, text=inner.text("text"), read=inner.text("read", DATE))
    return found


def _check_source(item: Node, sources: Mapping[str, Source], mistakes: Mistakes) -> None:
    if "" in sources:
        return
    named = item.get("source")
    if named is None or not named.items:
        mistakes.at(item, Code.MISSING_KEY, "a row says in `source` where it comes from")
        return
    for node in named.items:
        if node.text not in sources:
            mistakes.at(node, Code.VALUE, f"`{node.text}` is not among the sources")


def _overrule(
    items: tuple[Node, ...], key: str, path: Path, section: str, mistakes: Mistakes
) -> tuple[dict[str, Source], tuple[Node, ...]]:
    """The rows as the overrides beside them change them, and the sources of those."""
    if not path.exists():
        return {}, items
    root = _load_overrides(path)
    fields = Fields(root, mistakes, required=("read", "sources"), optional=[e.key for e in root.entries])
    overrides = [_override(node, mistakes) for node in fields.items(section)]
    if mistakes.findings:
        return {}, items
    versions = [version_key(node.text) if (node := item.get(key)) else () for item in items]
    for override in overrides:
        if not any(override.is_for(version) for version in versions):
            mistakes.at(override.node, Code.VALUE, f"no row of `{section}` is in this range")
    changed = tuple(
        functools.reduce(_merge, [one for one in overrides if one.is_for(version)], item)
        for item, version in zip(items, versions, strict=True)
    )
    used = {node.text for override in overrides for node in override.source}
    return {name: source for name, source in _sources(fields).items() if name in used}, changed


@functools.cache
def _load_overrides(path: Path) -> Node:
    mistakes = Mistakes()
    root = load(path, mistakes)
    if root is None:
        raise ValueError(_listing(mistakes))
    return root


def _override(node: Node, mistakes: Mistakes) -> _Override:
    fields = Fields(node, mistakes, required=("for", "set", "source"))
    first, _, last = fields.text("for", _SPAN).partition(" -")
    single = fields.text("for", LINE) == first
    return _Override(
        node=node,
        first=version_key(first or "0"),
        last=version_key(first or "0") if single else version_key(last.strip()) if last.strip() else None,
        source=fields.items("source"),
        change=fields.entries("set"),
    )


def _merge(row: Node, override: _Override) -> Node:
    """The row with these keys instead of its own, and the new source beside its own."""
    new = {entry.key for entry in override.change}
    old = row.get("source")
    before = old.items if old else ()
    names = {node.text for node in before}
    items = (*before, *(node for node in override.source if node.text not in names))
    source = Node(path=f"{row.path}.source", where=row.where, kind=Kind.LIST, items=items)
    entries = [entry for entry in row.entries if entry.key not in new and entry.key != "source"]
    entries += [*override.change, Entry(key="source", where=row.where, node=source)]
    return replace(row, entries=tuple(entries))


def _listing(mistakes: Mistakes) -> str:
    return "\n".join(str(finding) for finding in mistakes.findings)
