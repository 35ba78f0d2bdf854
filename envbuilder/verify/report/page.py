"""The HTML page of a report: its data, and one template that escapes all values."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.core.text.redact import plain

_FOLDER: Final = Path(__file__).parent
_NUMBER: Final = re.compile(r"-|[<>]?\d[\d.]*( (B|[kMGT]B|s|%))?")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d\W?")  # which a browser would break
_CODE: Final = 32  # characters of the longest code that is never broken; what is longer may be a path
_STACKED: Final = 4  # columns from which a row stands as a block on a narrow screen


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    empty: str = "Nothing."  # shown when there are no rows

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the style of each column: numbers stand right; columns of single words are codes, and never broken."""
        return tuple(map(_kind, zip(*self.rows, strict=True)))

    @property
    def is_stacked(self) -> bool:
        return len(self.head) >= _STACKED


def _kind(cells: tuple[str, ...]) -> str:
    if all(_NUMBER.fullmatch(cell) for cell in cells) and set(cells) != {"-"}:
        return "number"
    return "text" if any(" " in cell or len(cell) > _CODE for cell in cells) else "code"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line to copy: a command or a digest."""

    label: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    tables: tuple[Table, ...] = ()
    text: str = ""
    lines: tuple[Line, ...] = ()
    is_folded: bool = False  # its tables open with a click

    @property
    def anchor(self) -> str:
        return self.title.lower().replace(" ", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    title: str
    summary: str
    figures: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    version: str


def render(page: Page) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - `report --help` does without

    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader(_FOLDER),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: plain(value) if type(value) is str else value,  # not what is escaped already
    )
    environment.tests["date"] = _DATE.fullmatch
    return environment.get_template("page.html.jinja").render(page=page)
