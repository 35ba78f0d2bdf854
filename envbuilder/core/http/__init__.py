"""HTTP with patience: `session` sends requests, retries, and resumes downloads; `failure` says what went wrong.

`file_urls` reads `file:` URLs like any other. `reachable` asks whether sources answer.
"""

from typing import Final, Protocol

PARALLEL: Final = 4  # requests at a time


class Progress(Protocol):
    """Counts transferred bytes, from several threads. A negative count takes back bytes that must be fetched again."""

    def advance(self, count: int, /) -> None: ...
