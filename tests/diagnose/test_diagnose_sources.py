"""The patterns of `diagnose` against the format strings of the programs' own sources."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from envbuilder.diagnose.catalogue import Failure, Mark, load_catalogue
from envbuilder.diagnose.logs import plain
from envbuilder.diagnose.scan import Search

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]
DATA: dict[str, Any] = yaml.safe_load((HERE / "sources.yaml").read_text())
PROGRAMS: list[dict[str, Any]] = DATA["programs"]
STRINGS = [(program, row) for program in PROGRAMS for row in program["strings"]]
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
    "c": "c",
    "t": "true",
}
_FORMAT = re.compile(
    r"%(?P<text>p[sSJIT]|sq|S)|%[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j)?(?P<letter>[diuxXpcsSrRUfgGeEmvqwTt%])"
    r"|%\d|\$?\{[^{}]*\}|\$(?!PATH\b)[A-Za-z]\w*"
)


def fill(string: str, values: Sequence[str] = ()) -> str:
    """Return a format string of C, C++, Go, Python or a shell with these values in it, or with some of its types."""
    left = list(values)

    def value(found: re.Match[str]) -> str:
        if found["letter"] == "%":
            return "%"
        if values:
            return left.pop(0)
        return "x1" if found["text"] else _PARTS.get(found["letter"] or "", "7")

    filled = _FORMAT.sub(value, string)
    assert not left, f"more values than places: {string}"
    return filled


@cache
def shown(line: bytes) -> tuple[tuple[Failure, Mark], ...]:
    return tuple((failure, mark) for failure, mark, _ in SEARCH.failures(plain(line)))


def lines(program: dict[str, Any], row: dict[str, Any]) -> list[bytes]:
    says = fill(row["says"], row.get("with", ()))
    return [(before + says).encode() for before in row.get("before", program["before"])]


def matches(mark: Mark, line: bytes) -> bool:
    return mark.has.lower() in line.lower() and mark.groups(line) is not None


@cache
def proven() -> dict[str, list[Mark]]:
    """The patterns of each failure that match a string of a source, and not only what stands before it."""
    by_code = {failure.code: set[Mark]() for failure in load_catalogue()}
    for failure in load_catalogue():
        rows = [(program, row) for program, row in STRINGS if row["code"] == failure.code]
        for mark, (program, row) in itertools.product(failure.lines, rows):
            pairs = zip(row.get("before", program["before"]), lines(program, row), strict=True)
            if any(matches(mark, line) and not matches(mark, before.encode()) for before, line in pairs):
                by_code[failure.code].add(mark)
    return {code: list(marks) for code, marks in by_code.items()}


@pytest.mark.parametrize(("program", "row"), STRINGS, ids=lambda one: one.get("code") or one["name"])
def test_a_pattern_matches_the_string_as_the_source_has_it(program: dict[str, Any], row: dict[str, str]):
    assert row["code"] in {failure.code for line in lines(program, row) for failure, _ in shown(line)}


def test_the_strings_of_envbuilder_are_in_its_files():
    ours = [row for program, row in STRINGS if program["repository"] == "this one"]
    assert [row for row in ours if row["says"] not in (ROOT / row["file"]).read_text()] == []


def test_a_pattern_without_a_source_says_why():
    unproven = Counter[tuple[str, str]]()
    for failure in load_catalogue():
        marks = [mark for mark in failure.lines if mark not in proven()[failure.code]]
        unproven.update((failure.code, mark.has.decode()) for mark in marks)
    assert {row["why"] for row in DATA["without"]} == set(DATA["reasons"])
    assert unproven == Counter((row["code"], row["has"]) for row in DATA["without"])
