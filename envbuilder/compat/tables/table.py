"""Read tables: sources with their dates, and unique, sorted rows that name their sources.

Rows are the file's own, changed by `overrides.yaml` beside it: `tables refresh` writes some files anew and never that one,
so what a person knows better than the artefacts outlives every refresh.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import Field

from envbuilder.core.models import STRICT, Date, Line, Mistake, RawRule, Shape, read_node
from envbuilder.core.places import Code, Entry, Kind, Mistakes, Node, load

OVERRIDES: Final = "overrides.yaml"  # its name, beside the table
_VERSION: Final = r"\d+(?:\.\d+)*"
_SPAN: Final = Shape(
    pattern=rf"{_VERSION}(?: -(?: {_VERSION})?)?", expected='a version, "2.0.0 - 2.2.2" or "2.0.0 -"'
)

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source of facts, and the day it was read."""

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
        """Return the sources of a row as a finding names them."""
        known = {source.name: str(source) for source in self.sources}
        return "; ".join(known[name] for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceText:
    __pydantic_config__ = STRICT
    text: Line
    read: Date


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """The file of a table. Its rows are read after the overrides have changed them."""

    __pydantic_config__ = STRICT
    read: Date
    source: Line = ""  # one for all rows, or a map of names that rows refer to
    sources: dict[str, _SourceText] = field(default_factory=dict)
    rows: tuple[Any, ...]


def _check_head(head: object, _context: object) -> Iterator[Mistake]:
    if isinstance(head, dict) and "source" not in head and "sources" not in head:
        yield Mistake(message="the key `sources` is missing", code=Code.MISSING_KEY)


_FILE: Final[Any] = Annotated[_File, RawRule(_check_head)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overrides:
    """The file with the overrides of every table; a section is read by the table that it is for."""

    read: Date
    sources: dict[str, _SourceText]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Override:
    """Keys that a person sets for a range of rows."""

    __pydantic_config__ = STRICT
    span: Annotated[str, _SPAN, Field(alias="for")]
    change: Annotated[dict[str, Any], Field(alias="set")]
    source: tuple[Line, ...]

    def is_for(self, version: tuple[int, ...]) -> bool:
        """Return whether the span holds this version. Its ends are included."""
        first, dash, last = self.span.partition(" -")
        if not dash:
            return version == version_key(first)
        return version_key(first) <= version and (not last or version <= version_key(last.strip()))


def version_key(version: str) -> tuple[int, ...]:
    """Return the sort key of a plain version such as 2.10.0."""
    return tuple(int(part) for part in version.split("."))


def load_table(
    path: Path,
    kind: Any,
    order: Callable[[Row], tuple[object, ...]],
    *,
    key: str = "",
    overridden: str = "",
) -> Table[Row]:
    """Read a table whose rows are of this kind; raises ValueError with every mistake, a line each.

    `order` gives what rows are sorted by, and no two rows may be equal in it. `overridden` is the section of
    `overrides.yaml` that changes rows; `key` holds the version that it names them by.
    """
    mistakes = Mistakes()
    root = _load(path)
    file: _File | None = read_node(_FILE, root, mistakes)
    sources = {}
    rows: tuple[Row, ...] | None = None
    if file is not None:
        sources = _sources(file)
        if file.source:
            sources[""] = Source(name="", text=file.source, read=file.read)
        node = root.get("rows")
        assert node is not None
        if overridden:
            more, node = _override(node, key, path.with_name(OVERRIDES), overridden, mistakes)
            sources |= more
        for item in node.items:
            _check_source(item, sources, mistakes)
        rows = read_node(tuple[kind, ...], node, mistakes)
        for item, (before, row) in zip(
            node.items[1:], itertools.pairwise(map(order, rows or ())), strict=False
        ):
            if not before < row:
                mistakes.at(item, Code.VALUE, f"rows are sorted and unique, but {row} follows {before}")
    if mistakes.findings or file is None or rows is None:
        raise ValueError(_listing(mistakes))
    return Table(sources=tuple(sources.values()), read=file.read, rows=rows)


@functools.cache
def _load_overrides(path: Path) -> Node:
    return _load(path)


def _load(path: Path) -> Node:
    mistakes = Mistakes()
    root = load(path, mistakes)
    if root is None:
        raise ValueError(_listing(mistakes))
    return root


def _sources(file: _File | _Overrides) -> dict[str, Source]:
    return {name: Source(name=name, text=one.text, read=one.read) for name, one in file.sources.items()}


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


def _override(
    rows: Node, key: str, path: Path, section: str, mistakes: Mistakes
) -> tuple[dict[str, Source], Node]:
    """Return the sources of the overrides, and the rows as they change them."""
    if not path.exists():
        return {}, rows
    root = _load_overrides(path)
    file = read_node(_Overrides, root, mistakes)
    node = root.get(section)
    overrides = read_node(tuple[_Override, ...], node, mistakes) if node else ()
    if file is None or overrides is None or node is None:
        return {}, rows
    versions = [version_key(found.text) if (found := row.get(key)) else () for row in rows.items]
    items = list(rows.items)
    for override, item in zip(overrides, node.items, strict=True):
        fitting = [at for at, version in enumerate(versions) if override.is_for(version)]
        if not fitting:
            mistakes.at(item, Code.VALUE, f"no row of `{section}` is in this range")
        for at in fitting:
            items[at] = _merge(items[at], item)
    used = {name for override in overrides for name in override.source}
    sources = {name: source for name, source in _sources(file).items() if name in used}
    return sources, replace(rows, items=tuple(items))


def _merge(row: Node, override: Node) -> Node:
    """Return the row with the keys of `set`, and with the override's sources added to its own."""
    change, more, old = override.get("set"), override.get("source"), row.get("source")
    assert change is not None
    assert more is not None
    new = {entry.key for entry in change.entries}
    before = old.items if old else ()
    names = {node.text for node in before}
    items = (*before, *(node for node in more.items if node.text not in names))
    source = Node(path=f"{row.path}.source", where=row.where, kind=Kind.LIST, items=items)
    entries = [entry for entry in row.entries if entry.key not in new and entry.key != "source"]
    entries += [*change.entries, Entry(key="source", where=row.where, node=source)]
    return replace(row, entries=tuple(entries))


def _listing(mistakes: Mistakes) -> str:
    return "\n".join(str(finding) for finding in mistakes.findings)
