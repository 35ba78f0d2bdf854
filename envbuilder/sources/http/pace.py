"""End an answer that comes too slowly or brings no content, at its socket.

`http.client` and urllib3 wait inside one call until a line or a chunk is complete. A timeout for each read from the socket
ends neither a byte a second nor headers, interim answers or trailers without end.
"""

import functools
import http.client
import io
import socket
import time
from typing import Any, Final

import requests
from requests.adapters import HTTPAdapter

from envbuilder.sources.http import PARALLEL, Limits

# Bytes that may come without any content: headers, of which http.client takes 100 with 64 KiB each, and the frames of
# chunks. Servers send chunks of kilobytes with ten bytes around each.
FRAMING: Final = 4 << 20


class SlowAnswerError(TimeoutError):
    """The answer comes too slowly."""


class EmptyAnswerError(OSError):
    """Too many bytes came that are no content."""


class Pace:
    """Counts the bytes of one answer and the time that was waited for them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waited = 0.0  # seconds of the current window
        self._came = 0  # bytes of it
        self._framing = 0  # bytes since content came
        self.is_head = True  # its headers are not complete

    def content(self) -> None:
        """Content of the answer came."""
        self._framing = 0

    def add(self, count: int, waited: float) -> None:
        """Count bytes. Raises SlowAnswerError or EmptyAnswerError."""
        self._framing += count
        if self._framing > FRAMING:
            raise EmptyAnswerError
        # The time until the first byte is the server's own, and has a timeout.
        self._waited += waited if self._came or not self.is_head else 0
        self._came += count
        if self._waited > self._limits.window:
            if self.is_head or self._came < self._limits.floor * self._waited:
                raise SlowAnswerError
            self._waited, self._came = 0.0, 0


class _PacedStream(io.RawIOBase):
    """The bytes of a socket, each read counted."""

    def __init__(self, raw: io.RawIOBase, pace: Pace) -> None:
        self._raw = raw
        self._pace = pace

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        began = time.monotonic()
        count: int | None = self._raw.readinto(buffer)
        if count:
            self._pace.add(count, time.monotonic() - began)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _PacedResponse(http.client.HTTPResponse):
    """An answer of a server, read through its pace."""

    def __init__(self, sock: socket.socket, *arguments: Any, limits: Limits, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.pace = Pace(limits)
        self.fp = io.BufferedReader(_PacedStream(self.fp.detach(), self.pace))

    def begin(self) -> None:
        super().begin()
        self.pace.is_head = False


@functools.cache
def _paced(connection: type, limits: Limits) -> type:
    """Return the class of connections whose answers have a pace."""
    answer = functools.partial(_PacedResponse, limits=limits)
    return type(connection.__name__, (connection,), {"response_class": staticmethod(answer)})


class PacedAdapter(HTTPAdapter):
    """Lets a session of requests read answers with a pace."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        super().__init__(pool_maxsize=PARALLEL)

    def get_connection_with_tls_context(self, *arguments: Any, **options: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*arguments, **options)
        pool.ConnectionCls = _paced(type(pool).ConnectionCls, self._limits)
        return pool


def pace_of(response: requests.Response) -> Pace:
    """Return the pace of an answer. A file's has one that nothing counts."""
    answer = getattr(response.raw, "_original_response", None)
    return answer.pace if isinstance(answer, _PacedResponse) else Pace(Limits())
