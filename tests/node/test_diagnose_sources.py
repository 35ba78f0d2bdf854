"""The patterns of `diagnose` against the format strings of the programs' own sources."""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import make_diagnose
import pytest
import yaml

from envbuilder.node.diagnose.catalogue import Failure, Mark, load_catalogue
from envbuilder.node.diagnose.line import plain
from envbuilder.node.diagnose.scan import Search
from tests.support.excerpts import EXCERPTS

HERE = Path(__file__).parent / "diagnose"
PAGE = Path(__file__).parents[2] / "docs/evidence/diagnose.md"
DATA: dict[str, Any] = yaml.safe_load((HERE / "sources.yaml").read_text())
PROGRAMS: list[dict[str, Any]] = DATA["programs"]
STRINGS = [(one, row) for one in PROGRAMS for row in one["strings"]]
SEARCH = Search(load_catalogue())
# What stands in for the parts of a format string, by the letter of C and Go.
_PARTS = {
    "s": "x1",
    "v": "x1",
    "m": "No such file or directory",
    "q": '"x1"',
    "p": "0x7f10",
    "x": "1a",
    "X": "1A",
}
_PARTS |= {"c": "c", "t": "true"}
_FORMAT = re.compile(
    r"%(?P<slurm>p[sSJI])|%[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j)?(?P<letter>[diuxXpcsSrRUfgGeEmvqwTt%])"
    r"|%\d|\$?\{[^{}]*\}"
)


def fill(string: str, values: Sequence[str] = ()) -> str:
    """Return a format string of C, C++, Go, Python or a shell with these values in it, or with some of its types."""
    left = list(values)

    def value(found: re.Match[str]) -> str:
        if found["letter"] == "%":
            return "%"
        if values:
            return left.pop(0)
        return "x1" if found["slurm"] else _PARTS.get(found["letter"] or "", "7")

    filled = _FORMAT.sub(value, string)
    assert not left, f"more values than places: {string}"
    return filled


@cache
def shown(line: bytes) -> tuple[tuple[Failure, Mark], ...]:
    return tuple((failure, mark) for failure, mark, _ in SEARCH.failures(plain(line)))


def lines(program: dict[str, Any], row: dict[str, Any]) -> list[bytes]:
    says = fill(row["says"], row.get("with", ()))
    return [(before + says).encode() for before in row.get("before", program["before"])]


@cache
def proven() -> dict[str, list[Mark]]:
    """The patterns of each failure that match a string of a source."""
    every = {line for program, row in STRINGS for line in lines(program, row)}
    return {
        failure.code: [
            mark
            for mark in failure.marks
            if any(mark.has.lower() in line.lower() and mark.groups(line) is not None for line in every)
        ]
        for failure in load_catalogue()
    }


@pytest.mark.parametrize(("program", "row"), STRINGS, ids=lambda one: one.get("code") or one["name"])
def test_a_pattern_matches_the_string_as_the_source_has_it(program: dict[str, Any], row: dict[str, str]):
    assert row["code"] in {failure.code for line in lines(program, row) for failure, _ in shown(line)}


def test_a_pattern_without_a_source_says_why():
    said, found = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for failure in load_catalogue():
        unproven = [mark for mark in failure.marks if mark not in proven()[failure.code]]
        found.update((failure.code, mark.has.decode()) for mark in unproven)
    said.update((row["code"], row["has"]) for row in DATA["without"])
    assert {row["why"] for row in DATA["without"]} == set(DATA["reasons"])
    assert not said - found, "they have a source, or are no pattern"
    # What is not gone through yet may only become less.
    assert Counter(code for code, _ in (found - said).elements()) == DATA["open"]


def test_the_table_says_what_was_gone_through(request: pytest.FixtureRequest):
    excerpts = Counter(one.code for one in EXCERPTS)
    counts = {code: len(marks) for code, marks in proven().items()}
    made = make_diagnose.sources_page(load_catalogue(), DATA, counts, excerpts)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(made)
    assert PAGE.read_text() == made
