"""HTTP with patience: `session` sends requests, retries, and resumes downloads; `failure` says what went wrong.

`file_urls` reads `file:` URLs like any other. `reachable` asks whether sources answer.
"""

import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Final, Protocol

PARALLEL: Final = 4  # requests at a time


# Around a wait for an answer: tells the user which addresses have not answered yet, once that takes long.
Waiting = Callable[[Callable[[], Iterable[str]]], AbstractContextManager[None]]


def wait_silently(_pending: Callable[[], Iterable[str]]) -> AbstractContextManager[None]:
    """Tell nobody which addresses have not answered yet."""
    return contextlib.nullcontext()


class Progress(Protocol):
    """Counts transferred bytes, from several threads. A negative count takes back bytes that must be fetched again."""

    def advance(self, count: int, /) -> None: ...
