"""Send HTTP requests with retries, and resume broken downloads.

Package indexes and image registries are asked through it. Callers judge the status of an answer.
"""

import functools
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol, TypeVar
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter

from envbuilder.core.http import PARALLEL, Progress, Waiting, wait_silently
from envbuilder.core.http.failure import UNTRUSTED, SourceError, TransientError, reason
from envbuilder.core.http.file_urls import FileAdapter
from envbuilder.core.sources import shown

log = logging.getLogger(__name__)

PAUSES: Final = (0.5, 1.0, 2.0)  # seconds before each retry; progress in between restarts the count
LONGEST_PAUSE: Final = 30.0  # seconds; the largest Retry-After that is obeyed
WORTHWHILE: Final = 1 << 14  # bytes; less is no progress, or a slow server would be asked for ever
CONNECT: Final = 15.0  # seconds
READ: Final = 60.0  # seconds between two reads
FIRST: Final = 30.0  # seconds to the first answer of a host; one that never answered is not asked again
CHUNK: Final = 1 << 18  # bytes of a body that are read at once
BUSY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})  # statuses that may pass

Answer = TypeVar("Answer")
Response = requests.Response


class Stopped(Exception):  # noqa: N818 - the failure is another transfer's
    """The transfer ends because another one failed or the user interrupted."""


class Body(Protocol):
    """A request's body, in pieces and of known length. It can be sent again."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[bytes]: ...


class HttpSession:
    """A pool of connections; safe to use from several threads."""

    def __init__(self, certificates: Path | None, waiting: Waiting = wait_silently) -> None:
        self.session = requests.Session()
        self.session.headers["Accept-Encoding"] = "identity"  # bytes as stored, with their true length
        self._certificates = certificates
        self._waiting = waiting
        self._answered: set[str] = set()  # hosts
        if certificates is not None:
            self.session.verify = str(certificates)  # for callers that use the session directly
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, HTTPAdapter(pool_maxsize=PARALLEL))
        self.session.mount("file://", FileAdapter())

    def send(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes | Body | None = None,
        authorization: str | None = None, certificates: Path | None = None,
    ) -> Response:  # fmt: skip
        """Return the answer, whatever its status; raises TransientError, or SourceError when a retry cannot help.

        A host that does not answer at all is such a case.
        An `authorization`, also an empty one, replaces `~/.netrc`. It is not sent to other hosts.
        """
        host = urlsplit(url).netloc
        has_answered = host in self._answered
        try:
            with self._waiting(lambda: (shown(url),)):
                response = self.session.request(
                    method, url, headers=headers, data=body, stream=True, allow_redirects=True,
                    timeout=(CONNECT, READ if has_answered else FIRST),
                    auth=None if authorization is None else functools.partial(_authorize, authorization),
                    verify=str(certificates or self._certificates or "") or None,
                )  # fmt: skip
        except (
            requests.exceptions.InvalidURL,
            requests.exceptions.InvalidSchema,
            requests.TooManyRedirects,
        ) as error:
            raise SourceError(url, reason(error), kind="unreachable") from error
        except requests.RequestException as error:
            why = reason(error)
            if why == UNTRUSTED:
                raise SourceError(url, why, kind="unreachable") from error
            if isinstance(error, requests.Timeout) and not has_answered:
                seconds = CONNECT if isinstance(error, requests.ConnectTimeout) else FIRST
                raise SourceError(url, f"no answer in {seconds:.0f} s", kind="unreachable") from error
            raise TransientError(why) from error
        self._answered.add(host)
        return response


def _authorize(value: str, request: requests.PreparedRequest) -> requests.PreparedRequest:
    if value:
        request.headers["Authorization"] = value
    return request


def content(response: Response) -> bytes:
    """Return the whole body; raises TransientError when it ends early."""
    return b"".join(pieces(response))


def pieces(response: Response) -> Iterator[bytes]:
    """Yield the body in pieces; raises TransientError when the connection fails."""
    try:
        yield from response.iter_content(CHUNK)
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise TransientError(reason(error)) from error


def busy(response: Response) -> TransientError | None:
    """Return the error for a status that may pass, or None."""
    status = response.status_code
    if status not in BUSY:
        return None
    asked = response.headers.get("Retry-After", "")
    pause = min(float(asked) if asked.isdecimal() else 0, LONGEST_PAUSE)
    return TransientError(f"the server answered {status}", pause=pause, status=status)


def download(
    url: str, *, sha256: str, size: int, partial: Path, progress: Progress, stop: threading.Event,
    request: Callable[[Mapping[str, str]], Response], start: int | None = None,
) -> int:  # fmt: skip
    """Download into the file `partial`, from where an earlier attempt ended, and check the digest; raises SourceError.

    With `start`, only the `size` bytes from there on are wanted, and the caller checks them: `sha256` is "".

    Returns how many bytes were resumed. After a failure the file stays for a later attempt, from this source or
    another one, unless its bytes are wrong. `request` sends the request with these further headers, and raises
    TransientError or SourceError unless it succeeds.
    """
    download = _Download(url, partial, size, progress, stop, start=start)
    try:
        with download.out:
            download.complete(request)
            if sha256 and download.sha256 != sha256 and download.inherited:
                download.restart()
                download.complete(request)
        if sha256:
            download.check(sha256)
    except BaseException as error:
        is_wrong = isinstance(error, SourceError) and error.kind == "wrong"
        if is_wrong or isinstance(error, OSError) or not download.done:
            partial.unlink(missing_ok=True)
        progress.advance(-download.done)
        raise
    return download.saved


class _Download:
    """A partial file that is open for appending, with its digest and its progress. The caller closes `out`."""

    def __init__(
        self, url: str, path: Path, size: int, progress: Progress, stop: threading.Event, *, start: int | None
    ) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self.out = path.open("r+b" if path.exists() else "x+b")
        self.done = 0
        self.saved = 0  # bytes that were resumed, after breaks and from earlier attempts
        self._url = url
        self._size = size
        self._start = start or 0
        self._last = "" if start is None else str(start + size - 1)  # of a part: its last byte
        self._digest = hashlib.sha256()
        self._progress = progress
        self._stop = stop
        while chunk := self.out.read(CHUNK):
            self._digest.update(chunk)
            self.done += len(chunk)
        self.inherited = self.done  # bytes of earlier attempts
        progress.advance(self.done)
        if self.done > size:
            self.restart()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def check(self, sha256: str) -> None:
        if self.sha256 != sha256:
            raise SourceError(self._url, f"its sha256 is {self.sha256}, expected {sha256}", kind="wrong")

    def restart(self) -> None:
        self._progress.advance(-self.done)
        self.out.seek(0)
        self.out.truncate()
        self._digest = hashlib.sha256()
        self.done = self.inherited = 0

    def complete(self, request: Callable[[Mapping[str, str]], Response]) -> None:
        """Fetch the rest and resume after breaks, as long as there is progress."""
        failures = 0  # in a row
        while self.done != self._size:
            before = self.done
            try:
                self._continue(request)
            except TransientError as broken:
                failures = 1 if self.done - before >= WORTHWHILE else failures + 1
                if failures > len(PAUSES):
                    raise give_up(self._url, broken) from broken
                log.info("%s: %s at byte %d, trying again", shown(self._url), broken, self.done)
                wait(max(PAUSES[failures - 1], broken.pause), self._stop)

    def _continue(self, request: Callable[[Mapping[str, str]], Response]) -> None:
        """Fetch the rest; raises TransientError when the connection ends early."""
        first = self._start + self.done
        with request({"Range": f"bytes={first}-{self._last}"} if first or self._last else {}) as response:
            if response.status_code != requests.codes.partial_content:
                self.restart()
            elif not response.headers.get("Content-Range", "").startswith(f"bytes {first}-"):
                self.restart()
                raise TransientError("the server resumed at another place")
            self.saved += self.done
            for chunk in pieces(response):
                self._add(chunk)
        if self.done < self._size:
            raise TransientError(f"it ended after {self.done} of {self._size} bytes")

    def _add(self, chunk: bytes) -> None:
        if self._stop.is_set():
            raise Stopped
        self.out.write(chunk)
        self._digest.update(chunk)
        self.done += len(chunk)
        self._progress.advance(len(chunk))
        if self.done > self._size:
            raise SourceError(self._url, f"it is larger than the {self._size} bytes expected", kind="wrong")


def retry(ask: Callable[[], Answer], url: str, stop: threading.Event) -> Answer:
    for pause in PAUSES:
        try:
            return ask()
        except TransientError as broken:
            log.info("%s: %s, trying again", shown(url), broken)
            wait(max(pause, broken.pause), stop)
    try:
        return ask()
    except TransientError as broken:
        raise give_up(url, broken) from broken


def give_up(url: str, broken: TransientError) -> SourceError:
    return SourceError(url, str(broken), kind="unreachable", status=broken.status)


def wait(seconds: float, stop: threading.Event) -> None:
    if stop.wait(seconds):
        raise Stopped
