"""In-toto statements: made, restated about other files, and refused where the text is something else."""

import json

import pytest

from envbuilder.artifacts.statement import Subject, make_statement, restate, subject_digests
from envbuilder.core.cache import sha256_text

LAYER = Subject(name="os.tar", sha256=sha256_text("os"))
SIF = Subject(name="x.sif", sha256=sha256_text("sif"))


def test_a_restated_statement_keeps_its_predicate():
    text = make_statement((LAYER,), predicate_type="type", predicate={"plan": "key"})
    again = restate(text, (SIF,))
    assert (subject_digests(text), subject_digests(again)) == ({LAYER.sha256}, {SIF.sha256})
    assert json.loads(again)["predicate"] == json.loads(text)["predicate"] == {"plan": "key"}


@pytest.mark.parametrize("text", ["[]", "{}", "x", '{"_type": "other"}'])
def test_a_text_that_is_not_a_statement_is_not_restated(text: str):
    with pytest.raises(ValueError, match=r"in-toto|Expecting"):
        restate(text, (SIF,))
