"""What reads answers for a session of requests: HTTP with a pace, and files.

An answer that comes too slowly or brings no content is ended at its socket. `http.client` and urllib3 wait inside one call
until a line or a chunk is complete. A timeout for each read from the socket ends neither a byte a second nor headers, interim
answers or trailers without end.
"""

import contextlib
import functools
import http.client
import io
import os
import re
import socket
import stat
import time
from pathlib import Path
from typing import Any, Final

import requests
from requests.adapters import BaseAdapter, HTTPAdapter

from envbuilder.sources.http import PARALLEL, RequestLimits
from envbuilder.sources.names import file_path

# Bytes that may come without any content: headers, of which http.client takes 100 with 64 KiB each, and the frames of
# chunks. Servers send chunks of kilobytes with ten bytes around each.
FRAMING: Final = 4 << 20
_OPEN: Final = os.O_RDONLY | os.O_NONBLOCK  # a FIFO in place of a file must not block the open


class SlowAnswerError(TimeoutError):
    """The answer comes too slowly."""


class EmptyAnswerError(OSError):
    """Too many bytes came that are no content."""


class Pace:
    """Counts the bytes of one answer and the time that was waited for them."""

    def __init__(self, limits: RequestLimits) -> None:
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

    def __init__(self, sock: socket.socket, *arguments: Any, limits: RequestLimits, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.pace = Pace(limits)
        self.fp = io.BufferedReader(_PacedStream(self.fp.detach(), self.pace))

    def begin(self) -> None:
        super().begin()
        self.pace.is_head = False


@functools.cache
def _paced(connection: type, limits: RequestLimits) -> type:
    answer = functools.partial(_PacedResponse, limits=limits)
    return type(connection.__name__, (connection,), {"response_class": staticmethod(answer)})


class PacedAdapter(HTTPAdapter):
    """Lets a session of requests read answers with a pace."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        super().__init__(pool_maxsize=PARALLEL)

    def get_connection_with_tls_context(self, *arguments: Any, **options: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*arguments, **options)
        pool.ConnectionCls = _paced(type(pool).ConnectionCls, self._limits)
        return pool


def pace_of(response: requests.Response) -> Pace:
    """Return the pace of an answer. A file's has one that nothing counts."""
    answer = getattr(response.raw, "_original_response", None)
    return answer.pace if isinstance(answer, _PacedResponse) else Pace(RequestLimits())


class _File(io.FileIO):
    """A response's body that closes itself at its end, as urllib3's do and requests expects."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size)
        if not data:
            self.close()
        return data


class FileAdapter(BaseAdapter):
    """Lets a requests session read `file:` URLs, so a mirror may be a folder. A folder gives its `index.html`, as in package indexes."""

    def send(
        self, request: requests.PreparedRequest, *_args: object, **_options: object
    ) -> requests.Response:
        response = requests.Response()
        response.request = request
        response.url = request.url or ""
        path = file_path(response.url) or Path()
        path = path / "index.html" if path.is_dir() else path
        response.raw, response.status_code = io.BytesIO(), requests.codes.not_found
        with contextlib.suppress(OSError):
            file = _File(os.open(path, _OPEN))
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                file.close()
                return response
            response.raw, response.status_code = file, requests.codes.ok
            response.headers["Content-Length"] = str(status.st_size)
            kind = "text/html" if path.suffix == ".html" else "application/octet-stream"
            response.headers["Content-Type"] = kind
        part = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        if part and response.ok:
            with response.raw:
                response.raw.seek(int(part[1]))
                response.raw = io.BytesIO(response.raw.read(int(part[2]) - int(part[1]) + 1))
            response.status_code = requests.codes.partial_content
        return response

    def close(self) -> None:
        pass
