"""Run the command line inside the test process."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from envbuilder import cli
from tests.support.answers import check_answer


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
