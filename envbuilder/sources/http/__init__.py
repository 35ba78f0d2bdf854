"""HTTP with patience: `session` sends requests, retries, and resumes downloads; `failure` says what went wrong.

`pace` ends answers that come too slowly. `file_urls` reads `file:` URLs like any other. `reachable` asks whether sources
answer, and `proxies` what is wrong with a proxy.
"""

import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

PARALLEL: Final = 4  # requests at a time
FLOOR: Final = 4096  # bytes a second; a gigabyte would take three days
# Bytes of an answer whose size nothing tells: pages of indexes, lists and keys. A page of 20,000 files, each with its
# address and digests, has 15 MB.
PAGE: Final = 32 << 20
ARCHIVE: Final = (
    1 << 30
)  # the same of an archive of sources; package indexes take up to 100 MB unless asked for more


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one answer of a server may take, in seconds and in bytes a second."""

    window: float = (
        60.0  # in which the headers must be complete, and the content must not come more slowly than `floor`
    )
    floor: float = FLOOR
    answer: float = 120.0  # until the content of an answer of up to PAGE bytes is complete
    wait: float = 0.0  # for a connection and for the next byte; 0 for those of `session`


# Around a wait for an answer: tells the user which addresses have not answered yet, once that takes long.
Waiting = Callable[[Callable[[], Iterable[str]]], AbstractContextManager[None]]


def wait_silently(_pending: Callable[[], Iterable[str]]) -> AbstractContextManager[None]:
    """Tell nobody which addresses have not answered yet."""
    return contextlib.nullcontext()


class Progress(Protocol):
    """Counts transferred bytes, from several threads. A negative count takes back bytes that must be fetched again."""

    def advance(self, count: int, /) -> None: ...
