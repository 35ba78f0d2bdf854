"""Two hostile servers, which clients ask at once and without a proxy."""

from collections.abc import Iterator

import pytest

from tests.support.attacker import Attacker, attacker
from tests.support.serving import ask_directly


@pytest.fixture
def directly(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_directly(monkeypatch)


@pytest.fixture
def server() -> Iterator[Attacker]:
    with attacker() as state:
        yield state


@pytest.fixture
def elsewhere() -> Iterator[Attacker]:
    with attacker() as state:
        yield state
