"""HTTP with patience: `session` sends requests, retries, and resumes downloads, and here is what went wrong.

`adapters` ends answers that come too slowly, and reads `file:` URLs like any other. `reachable` asks whether sources answer,
and `proxies` what is wrong with a proxy.
"""

import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from envbuilder.sources.names import shown

PARALLEL: Final = 4  # requests at a time
FLOOR: Final = 4096  # bytes a second; a gigabyte would take three days
# Bytes of an answer whose size nothing tells: pages of indexes, lists and keys. A page of 20,000 files, each with its
# address and digests, has 15 MB.
PAGE: Final = 32 << 20
# The same of an archive of sources; package indexes take up to 100 MB unless asked for more.
ARCHIVE: Final = 1 << 30
UNTRUSTED: Final = "the certificate was not accepted"
UNKNOWN_HOST: Final = "the host name is not known"
REFUSED: Final = "the connection was refused"
SLOW: Final = "its answer comes too slowly"
EMPTY: Final = "it sends headers or frames without end"
_REASONS: Final = (
    ("SlowAnswerError", SLOW),
    ("EmptyAnswerError", EMPTY),
    ("ProxyError", "the proxy does not answer"),
    ("NameResolutionError", UNKNOWN_HOST),
    ("gaierror", UNKNOWN_HOST),
    ("SSLCertVerificationError", UNTRUSTED),
    ("SSLError", "TLS failed"),
    ("ConnectTimeoutError", "no answer in time"),
    ("TimeoutError", "no answer in time"),
    ("ReadTimeoutError", "no more data in time"),
    ("ConnectionRefusedError", REFUSED),
    ("IncompleteRead", "the connection was cut"),
    ("ConnectionResetError", "the connection was cut"),
    ("RemoteDisconnected", "the connection was cut"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What one answer of a server may take, in seconds and in bytes a second."""

    window: float = (
        60.0  # until the headers are complete; content must not come more slowly than `floor` in it
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


class SourceError(Exception):
    """One source does not give the file; `kind` is `gone`, `wrong`, `refused`, `unreachable` or `unusable`.

    Unusable is an answer that breaks a rule: too large, too slow, of another form, or with an address that no server may name.
    Not an EnvbuilderError yet: the next source may have the file.
    """

    def __init__(self, url: str, why: str, *, kind: str, status: int = 0) -> None:
        super().__init__(f"{shown(url)}: {why}")
        self.why = why
        self.kind = kind
        self.status = status  # of the server's last answer; 0 where there was none


class TransientError(Exception):
    """The connection or the server failed in a way that may pass; `status` is the server's answer, if there was one."""

    def __init__(self, why: str, *, pause: float = 0.0, status: int = 0) -> None:
        super().__init__(why)
        self.pause = pause
        self.status = status


def reason(error: BaseException) -> str:
    """Say why a request failed. The exception's own text is not used: it can hold URLs with credentials."""
    chain = list[BaseException]()
    inner: object = error
    while isinstance(inner, BaseException) and inner not in chain:
        chain.append(inner)
        inner = inner.__cause__ or inner.__context__ or getattr(inner, "reason", None)
    names = [type(link).__name__ for link in chain]
    known = (words for name, words in _REASONS if name in names)
    return next(known, f"the connection failed ({names[-1]})")
