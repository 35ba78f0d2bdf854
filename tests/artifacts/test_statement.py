"""In-toto statements: made, restated about other files, and refused where the text is something else."""

import json
from datetime import UTC, datetime

import pytest

from envbuilder.artifacts.statement import (
    SLSA_PROVENANCE,
    Release,
    Subject,
    make_statement,
    read_release,
    restate,
    subject_digests,
)
from envbuilder.core.cache import sha256_text

LAYER = Subject(name="os.tar", sha256=sha256_text("os"))
SIF = Subject(name="x.sif", sha256=sha256_text("sif"))
RELEASE = Release(name="x", tag="1", time=datetime(2026, 11, 23, tzinfo=UTC))


def test_a_restated_statement_keeps_its_predicate():
    text = make_statement((LAYER,), predicate_type=SLSA_PROVENANCE, predicate={"plan": "key"})
    again = restate(text, (SIF,), RELEASE)
    digests = [subject_digests(statement, SLSA_PROVENANCE) for statement in (text, again)]
    assert digests == [{LAYER.sha256}, {SIF.sha256}]
    assert json.loads(again)["predicate"]["plan"] == json.loads(text)["predicate"]["plan"] == "key"
    assert read_release(again) == RELEASE


def test_a_statement_of_another_type_is_none_of_a_release():
    text = make_statement((LAYER,), predicate_type="type", predicate={})
    for read in (lambda: subject_digests(text, SLSA_PROVENANCE), lambda: restate(text, (SIF,), RELEASE)):
        with pytest.raises(ValueError, match="type"):
            read()
    with pytest.raises(ValueError, match="for which name and tag"):
        read_release(text)


@pytest.mark.parametrize("text", ["[]", "{}", "x", '{"_type": "other"}'])
def test_a_text_that_is_not_a_statement_is_not_restated(text: str):
    with pytest.raises(ValueError, match=r"in-toto|Expecting"):
        restate(text, (SIF,), RELEASE)
