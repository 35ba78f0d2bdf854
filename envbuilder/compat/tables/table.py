"""Read tables: sources with their dates, and unique, sorted rows that name their sources.

Rows are the file's own, changed by `overrides.yaml` beside it: `scripts/refresh_tables` writes some files anew and never that one,
so what a person knows better than the artifacts outlives every refresh.
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import AfterValidator, Field, ValidationInfo

from envbuilder.core.models import Date, FieldRule, Line, Mistake, ReadAs, Shape, raise_mistakes, read_node
from envbuilder.core.places import FormCode, List, Map, Mistakes, PlacedNode, load

TABLES: Final = Path(__file__).parent  # of the tables that envbuilder brings
OVERRIDES: Final = "overrides.yaml"  # its name, beside the table
_VERSION: Final = r"\d+(?:\.\d+)*"
Span = Annotated[
    str,
    Shape(pattern=rf"{_VERSION}(?: -(?: {_VERSION})?)?", expected='a version, "2.0.0 - 2.2.2" or "2.0.0 -"'),
]

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """A source of facts, and the day it was read."""

    name: str = ""  # as a row's `source` says it; in the file, it is the key
    text: Line
    read: Date


def _look_up(names: tuple[str, ...], info: ValidationInfo) -> tuple[TableSource, ...]:
    known: Mapping[str, TableSource] = info.context or {}
    mistakes = [
        Mistake(message=f"`{name}` is not among the sources", at=(at,))
        for at, name in enumerate(names)
        if name not in known
    ]
    raise_mistakes(mistakes if names else [Mistake(message="a row says in `source` where it comes from")])
    return tuple(dict.fromkeys(known[name] for name in names))


# Names of sources in a row. The context of `read_node` is a map of the table's sources.
Sources = Annotated[tuple[TableSource, ...], ReadAs(Annotated[tuple[Line, ...], AfterValidator(_look_up)])]


def cite(sources: tuple[TableSource, ...], *prefer: str) -> str:
    """Return the first preferred source, otherwise the first one."""
    named = {source.name: source for source in sources}
    found = next((named[name] for name in prefer if name in named), sources[0])
    return f"{found.text}, read {found.read}"


@dataclass(frozen=True, kw_only=True)
class Table(Generic[Row]):
    sources: tuple[TableSource, ...]
    read: str  # the day on which the newest rows were read, YYYY-MM-DD: the table's age
    key: str  # the field that names a row
    rows: tuple[Row, ...]

    @functools.cached_property
    def by_name(self) -> Mapping[str, Row]:
        return {getattr(row, self.key): row for row in self.rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """The file of a table. Its rows are read after the overrides have changed them."""

    read: Date
    sources: dict[str, TableSource]
    rows: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overrides:
    """The file with the overrides of every table; a section is read by the table that it is for."""

    read: Date
    sources: dict[str, TableSource]
    torch: Any = None
    cuda: Any = None
    glibc_clashes: Any = None  # for `refresh`


@dataclass(frozen=True, slots=True, kw_only=True)
class _Override:
    """Keys that a person sets for a range of rows."""

    span: Annotated[Span, Field(alias="for")]
    change: Annotated[dict[str, Any], Field(alias="set")]
    source: tuple[Line, ...]


@functools.cache
def version_key(version: str) -> tuple[int, ...]:
    """Return the sort key of a plain version such as 2.10.0."""
    return tuple(int(part) for part in version.split("."))


def pairs(values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return a map of a file as what can be hashed."""
    return tuple(values.items())


def in_span(version: tuple[int, ...], span: str) -> bool:
    """Return whether a span such as "2.0.0 - 2.2.2" holds this version. Its ends are included."""
    first, dash, last = span.partition(" -")
    if not dash:
        return version == version_key(first)
    return version_key(first) <= version and (not last or version <= version_key(last.strip()))


def reader(
    name: str,
    kind: type[Row],
    *,
    key: str,
    order: Callable[[Row], tuple[object, ...]] | None = None,
    check: Callable[[Row], Iterable[Mistake]] = lambda _: (),
    overridden: str = "",
) -> Callable[..., Table[Row]]:
    """Return a function that reads a table whose rows are of this kind: envbuilder's own, or another file.

    It reads a table once, and raises ValueError with every mistake, a line each. `key` names a row. Rows are
    sorted by it as a version, or by `order`, and are unique in that. `check` judges a row. `overridden` is
    the section of `overrides.yaml` that changes rows.
    """
    row_kind: Any = kind  # for mypy a variable is no type

    @functools.cache
    def load(path: Path = TABLES / name) -> Table[Row]:
        mistakes = Mistakes()
        root = _load(path)
        file = read_node(_File, root, mistakes)
        node = root.get("rows")
        if file is None or node is None:
            raise ValueError(_listing(mistakes))
        sources = _sources(file)
        if overridden and path.with_name(OVERRIDES).exists():
            more, node = _override(node, key, path.with_name(OVERRIDES), overridden, mistakes)
            sources |= more
        rows: tuple[Row, ...] = (
            read_node(tuple[Annotated[row_kind, FieldRule(check)], ...], node, mistakes, context=sources)
            or ()
        )
        keys = [order(row) if order else version_key(getattr(row, key)) for row in rows]
        items = tuple(node.inner.values())
        for item, (before, row) in zip(items[1:], itertools.pairwise(keys), strict=False):
            if not before < row:
                mistakes.at(item, FormCode.VALUE, f"rows are sorted and unique, but {row} follows {before}")
        if mistakes.findings:
            raise ValueError(_listing(mistakes))
        return Table(sources=tuple(sources.values()), read=file.read, key=key, rows=rows)

    return load


def _load(path: Path) -> PlacedNode:
    mistakes = Mistakes()
    root = load(path, mistakes)
    if root is None:
        raise ValueError(_listing(mistakes))
    return root


_load_overrides = functools.cache(_load)


def _sources(file: _File | _Overrides) -> dict[str, TableSource]:
    return {name: replace(source, name=name) for name, source in file.sources.items()}


def _override(
    rows: PlacedNode, key: str, path: Path, section: str, mistakes: Mistakes
) -> tuple[dict[str, TableSource], PlacedNode]:
    """Return the sources of the overrides, and the rows as they change them."""
    root = _load_overrides(path)
    file, node = read_node(_Overrides, root, mistakes), root.get(section)
    overrides = read_node(tuple[_Override, ...], node, mistakes) if node else None
    if file is None or overrides is None or node is None:
        return {}, rows
    versions = [_version(row, key) for row in rows.value]
    changed = list(rows.value)
    for override, item in zip(overrides, node.inner.values(), strict=True):
        fitting = [at for at, version in enumerate(versions) if in_span(version, override.span)]
        if not fitting:
            mistakes.at(item, FormCode.VALUE, f"no row of `{section}` is in this range")
        for at in fitting:
            changed[at] = _merge(changed[at], item.value)
    return _sources(file), replace(rows, value=List(changed, rows.value.places))


def _version(row: Any, key: str) -> tuple[int, ...]:
    """Return the version of a row, or () for a row that is refused later."""
    text = str(row.get(key)) if isinstance(row, dict) else ""
    return version_key(text) if re.fullmatch(_VERSION, text) else ()


def _merge(row: Map, override: Map) -> Map:
    """Return the row with the keys of `set`, and with the override's sources added to its own."""
    change, more, named = override["set"], override["source"], row.get("source")
    before = named if isinstance(named, List) else List((), ())
    source = List([*before, *more], [*before.places, *more.places])
    places = row.places | change.places | {"source": override.places["source"]}
    return Map(row | change | {"source": source}, places)


def _listing(mistakes: Mistakes) -> str:
    return "\n".join(str(finding) for finding in mistakes.findings)
