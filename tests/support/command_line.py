"""Run the command line inside the test process."""

import functools
import json
from collections.abc import Callable
from typing import NamedTuple

import jsonschema
import pytest

from docs import make_reference
from envbuilder import cli


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Call = Callable[..., Answer]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run one command line as a process of its own would: with a new session and no log handler left.

    A JSON answer is compared with the published schema.
    """

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        answer = Answer(code, *capsys.readouterr())
        if "--json" in arguments:
            check_answer(answer.out)
        return answer

    return run


@functools.cache
def validator() -> jsonschema.Draft202012Validator:
    schema = make_reference.answers_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def check_answer(text: str) -> None:
    """Raise ValidationError where the answer does not fit the schema."""
    validator().validate(json.loads(text))
