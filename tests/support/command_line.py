"""Run the command line inside the test process."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from envbuilder import cli


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Call = Callable[..., Answer]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run one command line as a process of its own would: with a new session and no log handler left."""

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        return Answer(code, *capsys.readouterr())

    return run
