"""The tables of `diagnose`: what a new row has to keep."""

import re
from pathlib import Path

import pytest
import yaml

from envbuilder.diagnose.catalogue import (
    FOLDER,
    XIDS,
    compiled,
    load_catalogue,
    load_messages,
    load_xids,
    read_table,
)

CATALOGUE, MESSAGES = load_catalogue(), load_messages()
MARKS = [
    mark for row in (*CATALOGUE, *MESSAGES) for mark in (row.all_lines if row in MESSAGES else row.lines)
]


@pytest.mark.parametrize("path", [*FOLDER.glob("*.yaml"), XIDS], ids=lambda path: path.name)
def test_a_table_reads_as_any_reader_of_yaml_reads_it(path: Path):
    assert read_table(path) == yaml.safe_load(path.read_text())


def test_codes_and_names_are_unique_and_of_their_form():
    codes, names = zip(*((failure.code, failure.name) for failure in CATALOGUE), strict=True)
    assert len(set(codes)) == len(set(names)) == len(codes)
    assert [
        code
        for code in codes
        if not re.fullmatch(r"EB(?:8(?:0[5-9]|3[7-9]|4[02-9]|5[1-9]|6\d|9[5-9])|9\d\d)", code)
    ] == []
    assert [name for name in names if not re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", name)] == []
    referred = {failure.explains for failure in CATALOGUE} | {message.failure for message in MESSAGES}
    assert referred - {""} <= set(codes)


def test_every_text_is_one_line_and_every_literal_long_enough_to_be_rare():
    texts = [text for row in CATALOGUE for text in (row.title, row.cause, row.repair, row.source)]
    assert [text for text in texts if not re.fullmatch(r"(?=.*\S)[^\x00-\x1f\x7f]+", text)] == []
    assert [mark.has for mark in MARKS if not re.fullmatch(rb"(?=.*\S)[^\x00-\x1f\x7f]{4,}", mark.has)] == []


def test_every_pattern_compiles_and_has_the_groups_that_the_advice_names():
    for pattern in {pattern for mark in MARKS for pattern in (mark.like, mark.unless)}:
        compiled(pattern)
    for message in MESSAGES:
        words = f"{message.build.message} {message.build.repair}" if message.build else ""
        assert not message.build or re.fullmatch(r"EB6\d\d", message.build.code)
        for mark in message.all_lines:
            assert set(re.findall(r"\{(\w+)\}", words)) <= set(compiled(mark.like).groupindex), mark


def test_the_table_of_xids_is_sorted():
    assert list(load_xids()) == sorted(load_xids())
    assert len(load_xids()) > 50
