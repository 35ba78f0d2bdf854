"""The patterns of `diagnose` against the format strings of the programs' own sources."""

import re
from collections import Counter
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
PROGRAMS: list[dict[str, Any]] = yaml.safe_load((HERE / "sources.yaml").read_text())["programs"]
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
_PARTS |= {"%": "%", "c": "c", "t": "true"}
_FORMAT = re.compile(r"%[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j)?([diuxXpcsfgGemvqwTtd%])")


def fill(string: str) -> str:
    """Return a format string of C, Go, Python or a shell with values in it."""
    filled = _FORMAT.sub(lambda found: _PARTS.get(found[1], "7"), string)
    return re.sub(r"\$?\{[^{}]*\}", "7", re.sub(r"%p?[sSJI]", "x1", filled))


@cache
def shown(line: bytes) -> tuple[tuple[Failure, Mark], ...]:
    return tuple((failure, mark) for failure, mark, _ in SEARCH.failures(plain(line)))


def lines(program: dict[str, Any], row: dict[str, str]) -> list[bytes]:
    return [(before + fill(row["says"])).encode() for before in program["before"]]


@pytest.mark.parametrize(("program", "row"), STRINGS, ids=lambda one: one.get("code") or one["name"])
def test_a_pattern_matches_the_string_as_the_source_has_it(program: dict[str, Any], row: dict[str, str]):
    assert row["code"] in {failure.code for line in lines(program, row) for failure, _ in shown(line)}


def test_the_table_says_what_was_gone_through(request: pytest.FixtureRequest):
    every = {line for program, row in STRINGS for line in lines(program, row)}
    proven = Counter[str]()
    for failure in load_catalogue():
        for mark in failure.marks:
            known = mark.has.lower()
            proven[failure.code] += any(
                known in line.lower() and mark.groups(line) is not None for line in every
            )
    excerpts = Counter(one.code for one in EXCERPTS)
    made = make_diagnose.sources_page(load_catalogue(), PROGRAMS, proven, excerpts)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(made)
    assert PAGE.read_text() == made
