"""Tables for people: aligned, and no wider than the terminal."""

import re

import pytest

from envbuilder.core.plain import columns


def test_columns_are_aligned_and_whole_where_no_terminal_is():
    assert columns([("a", "bb", "c"), ("aaa", "b", "")], 0) == "a    bb  c\naaa  b"
    assert columns([("a", "word " * 60)], 0) == f"a  {'word ' * 60}".rstrip()
    assert columns([], 80) == ""


@pytest.mark.parametrize("width", [40, 80, 200])
def test_at_a_terminal_no_line_is_wider_and_nothing_is_lost(width):
    rows = [("name", "torch 2.6.0", "words " * 30), ("a[b]", ":fire:", "x" * 70)]
    table = columns(rows, width)
    assert max(map(len, table.splitlines())) <= width
    said = re.sub(r"\s", "", table)
    assert (said.count("words"), said.count("x"), said.count(":fire:"), said.count("a[b]")) == (30, 70, 1, 1)
