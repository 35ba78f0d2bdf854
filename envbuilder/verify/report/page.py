"""The HTML page of a report: its data, and one template that escapes all values."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from envbuilder.verify.report.treemap import Picture

_FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    empty: str = "Nothing."  # shown when there are no rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    tables: tuple[Table, ...]
    text: str = ""
    picture: Picture | None = None

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
    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader(_FOLDER),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.jinja").render(page=page)
