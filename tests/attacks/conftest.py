"""Two hostile servers, which clients ask at once and without a proxy."""

from collections.abc import Iterator

import pytest

from envbuilder.sources.http import session
from tests.support.attacker import Attacker, attacker


@pytest.fixture
def directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PAUSES", (0.01, 0.01, 0.01))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[Attacker]:
    with attacker() as state:
        yield state


@pytest.fixture
def elsewhere() -> Iterator[Attacker]:
    with attacker() as state:
        yield state
