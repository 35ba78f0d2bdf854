"""Send HTTP requests with retries, and resume broken downloads.

Package indexes and image registries are asked through it. Callers judge the status of an answer.
"""

import contextlib
import functools
import hashlib
import logging
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urljoin, urlsplit, urlunsplit

import requests
import urllib3

from envbuilder.sources.http import (
    EMPTY,
    FLOOR,
    PAGE,
    SLOW,
    UNTRUSTED,
    Progress,
    RequestLimits,
    SourceError,
    TransientError,
    Waiting,
    reason,
    wait_silently,
)
from envbuilder.sources.http.adapters import FileAdapter, PacedAdapter, pace_of
from envbuilder.sources.names import is_loopback, shown

log = logging.getLogger(__name__)

PAUSES: Final = (0.5, 1.0, 2.0)  # seconds before each retry; progress in between restarts the count
LONGEST_PAUSE: Final = 30.0  # seconds; the largest Retry-After that is obeyed
WORTHWHILE: Final = 1 << 14  # bytes; less is no progress, or a slow server would be asked for ever
CONNECT: Final = 15.0  # seconds
READ: Final = 60.0  # seconds between two reads
FIRST: Final = 30.0  # seconds to the first answer of a host; one that never answered is not asked again
CHUNK: Final = 1 << 18  # bytes of a body that are read at once
_NONE: Final[Any] = dict.fromkeys(("http", "https", "all"))  # proxies: not those of the environment either
SMALL_CHUNK: Final = 1 << 14  # the same of a small body, whose deadline is looked at after each
REDIRECTS: Final = 10  # of one request; browsers follow 20, and mirrors need three
SHORT: Final = 4  # digits of the size of a body that is read although nobody needs it
PORTS: Final = {"http": 80, "https": 443}
GZIP: Final = 31  # zlib's word for the format of gzip
BUSY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})  # statuses that may pass

Answer = TypeVar("Answer")
Response = requests.Response


class Stopped(Exception):  # noqa: N818 - the failure is another transfer's
    """The transfer ends because another one failed or the user interrupted."""


class Body(Protocol):
    """A request's body, in pieces and of known length. It can be sent again."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[bytes]: ...


class _Session(requests.Session):
    """A session that follows no redirect: requests reads the whole body of each, and follows it to any scheme."""

    def get_redirect_target(self, resp: Response) -> str | None:  # noqa: ARG002 - its signature
        return None


class HttpSession:
    """A pool of connections; safe to use from several threads.

    It reaches `http` and `https`, and with `files` also `file`, but nothing that a server names leads there.
    """

    def __init__(
        self, certificates: Path | None, waiting: Waiting = wait_silently, *, limits: RequestLimits | None = None,
        files: bool = False,
    ) -> None:  # fmt: skip
        self.limits = limits or RequestLimits()
        self.session = _Session()
        # Cookies go to every port of a host.
        self.session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self.session.headers["Accept-Encoding"] = "identity"  # bytes as stored, with their true length
        self._certificates = certificates
        self._waiting = waiting
        self._answered: set[str] = set()  # hosts
        for scheme in PORTS:
            self.session.mount(f"{scheme}://", PacedAdapter(self.limits))
        if files:
            self.session.mount("file://", FileAdapter())

    def send(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes | Body | None = None,
        authorization: str | None = None, certificates: Path | None = None,
    ) -> Response:  # fmt: skip
        """Return the answer, whatever its status; raises TransientError, or SourceError when a retry cannot help.

        A host that does not answer at all is such a case.
        An `authorization`, also an empty one, replaces `~/.netrc` and what the address holds. None of these is sent where
        a redirect leads to another scheme, host or port, and no content either.
        """
        place = url
        for _ in range(REDIRECTS + 1):
            response = self._send_once(
                method, place, headers=headers, body=body, authorization=authorization, certificates=certificates
            )  # fmt: skip
            if not response.is_redirect:
                return response
            with response, contextlib.suppress(TransientError):
                length = response.headers.get("Content-Length", "")
                # Read to its end, it leaves the connection for others.
                if length.isdecimal() and len(length) <= SHORT:
                    next(pieces(response), None)
            target = join(place, response.headers["Location"])
            if response.status_code not in (307, 308):  # RFC 9110, 15.4: the others ask to read from there
                method, body = ("HEAD" if method == "HEAD" else "GET"), None
            if not is_same_origin(place, target):
                if body:
                    why = f"it redirects what is sent to `{shown(target)}`"
                    raise SourceError(place, why, kind="unusable")
                authorization = ""
            place = with_user_of(place, target)
        raise SourceError(url, f"it redirects more than {REDIRECTS} times", kind="unusable")

    def read(self, response: Response, most: int = PAGE) -> bytes:
        """Return the whole body, without gzip; raises TransientError when it ends early.

        Raises SourceError for more than `most` bytes, and after a deadline that grows with `most`.
        """
        seconds = self.limits.answer * max(1, most / PAGE)
        end, content = time.monotonic() + seconds, bytearray()
        for piece in pieces(response, SMALL_CHUNK):
            content += piece
            if len(content) > most:
                raise SourceError(response.url, f"it sends more than {most} bytes", kind="unusable")
            if time.monotonic() > end:
                raise SourceError(response.url, f"it was not complete in {seconds:.0f} s", kind="unusable")
        return _decoded(response, bytes(content), most)

    def _send_once(
        self, method: str, url: str, *, headers: Mapping[str, str] | None, body: bytes | Body | None,
        authorization: str | None, certificates: Path | None,
    ) -> Response:  # fmt: skip
        host = urlsplit(url).netloc
        has_answered = host in self._answered
        connect = self.limits.wait or CONNECT
        first = self.limits.wait or FIRST
        try:
            with self._waiting(lambda: (shown(url),)):
                response = self.session.request(
                    method, url, headers=headers, data=body, stream=True, allow_redirects=False,
                    timeout=(connect, (self.limits.wait or READ) if has_answered else first),
                    auth=None if authorization is None else functools.partial(_authorize, authorization),
                    verify=str(certificates or self._certificates or "") or None,
                    proxies=_NONE if is_loopback(host.rpartition("@")[2]) else None,
                )  # fmt: skip
        except ValueError as error:
            # Of requests and of the codecs: an address or a header that cannot be sent.
            raise SourceError(url, f"it cannot be asked ({type(error).__name__})", kind="unusable") from error
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            if isinstance(error, requests.Timeout) and not has_answered and reason(error) != SLOW:
                seconds = connect if isinstance(error, requests.ConnectTimeout) else first
                raise SourceError(url, f"no answer in {seconds:.0f} s", kind="unreachable") from error
            raise _failed(url, error) from error
        self._answered.add(host)
        return response


def _authorize(value: str, request: requests.PreparedRequest) -> requests.PreparedRequest:
    if value:
        request.headers["Authorization"] = value
    return request


def join(url: str, named: str) -> str:
    """Return the address that the server at `url` names in a header, which may be relative to it.

    Raises SourceError unless it is one of HTTP, or when it would leave HTTPS for plain HTTP.
    """
    try:
        joined = urljoin(url, named.encode("latin-1").decode())  # http.client reads headers as Latin-1
        parts = urlsplit(joined)
        is_web = parts.scheme in PORTS and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise SourceError(url, "it names an address that cannot be read", kind="unusable") from error
    if not is_web:
        raise SourceError(url, f"it names `{shown(joined)}`, expected an address of HTTP", kind="unusable")
    if urlsplit(url).scheme == "https" and parts.scheme == "http":
        why = f"it leads from HTTPS to `{shown(joined)}`, without encryption"
        raise SourceError(url, why, kind="unusable")
    return joined


def is_same_origin(url: str, other: str) -> bool:
    """Whether scheme, host and port of two addresses are the same."""
    try:
        here, there = (
            (parts.scheme, parts.hostname, parts.port or PORTS.get(parts.scheme))
            for parts in map(urlsplit, (url, other))
        )
    except ValueError:  # one has no such parts
        return False
    return here == there


def with_user_of(url: str, other: str) -> str:
    """Return the other address with the user and password of the first one, if it is of the same origin and has none."""
    parts = urlsplit(other)
    if "@" in parts.netloc or not is_same_origin(url, other):
        return other
    return urlunsplit(parts._replace(netloc=urlsplit(url).netloc))


def pieces(response: Response, size: int = CHUNK) -> Iterator[bytes]:
    """Yield the body in pieces, as it was sent; raises TransientError when the connection fails.

    Raises SourceError when it comes too slowly.
    """
    raw, pace = response.raw, pace_of(response)
    is_web = isinstance(raw, urllib3.HTTPResponse)
    try:
        for piece in raw.stream(size, decode_content=False) if is_web else iter(lambda: raw.read(size), b""):
            pace.content()
            yield piece
    except (urllib3.exceptions.HTTPError, ValueError) as error:  # urllib3 takes a chunk of -5 bytes for one
        raise _failed(response.url, error) from error


def _failed(url: str, error: Exception) -> SourceError | TransientError:
    """Return the error for a request or an answer that failed: a SourceError where a retry cannot help."""
    why = reason(error)
    if why in (SLOW, EMPTY, UNTRUSTED):
        return SourceError(url, why, kind="unreachable" if why == UNTRUSTED else "unusable")
    return TransientError(why)


def _decoded(response: Response, content: bytes, most: int) -> bytes:
    """Return the content without gzip, which some servers send unasked; raises SourceError for more than `most` bytes."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding in ("identity", ""):
        return content
    if encoding not in ("gzip", "x-gzip"):
        raise SourceError(response.url, "it sends an encoding that was not asked for", kind="unusable")
    decoder = zlib.decompressobj(GZIP)
    try:
        plain = decoder.decompress(content, most + 1)
    except zlib.error as error:
        raise SourceError(response.url, "what it sends is no gzip", kind="unusable") from error
    if len(plain) > most:
        raise SourceError(response.url, f"it sends more than {most} bytes, compressed", kind="unusable")
    return plain


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
    request: Callable[[Mapping[str, str]], Response],
) -> int:  # fmt: skip
    """Download into the file `partial`, from where an earlier attempt ended, and check the digest; raises SourceError.

    Returns how many bytes were resumed. After a failure the file stays for a later attempt, from this source or
    another one, unless its bytes are wrong. An empty `sha256` stands for any, of a file that is new. `request` sends
    the request with these further headers, and raises TransientError or SourceError unless it succeeds.
    """
    download = _Download(url, partial, size, progress, stop)
    try:
        with download.out:
            download.complete(request)
            if download.sha256 != sha256 and download.inherited:
                download.restart()
                download.complete(request)
        download.check(sha256 or download.sha256)
    except BaseException as error:
        is_wrong = isinstance(error, SourceError) and error.kind == "wrong"
        if is_wrong or isinstance(error, OSError) or not download.done:
            partial.unlink(missing_ok=True)
        progress.advance(-download.done)
        raise
    return download.saved


class _Download:
    """A partial file that is open for appending, with its digest and its progress. The caller closes `out`."""

    def __init__(self, url: str, path: Path, size: int, progress: Progress, stop: threading.Event) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self.out = path.open("r+b" if path.exists() else "x+b")
        self.done = 0
        self.saved = 0  # bytes that were resumed, after breaks and from earlier attempts
        self._url = url
        self._size = size
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
            before, began = self.done, time.monotonic()
            try:
                self._continue(request)
            except TransientError as broken:
                worthwhile = max(WORTHWHILE, FLOOR * (time.monotonic() - began))
                failures = 1 if self.done - before >= worthwhile else failures + 1
                if failures > len(PAUSES):
                    raise give_up(self._url, broken) from broken
                log.info("%s: %s at byte %d, trying again", shown(self._url), broken, self.done)
                wait(max(PAUSES[failures - 1], broken.pause), self._stop)

    def _continue(self, request: Callable[[Mapping[str, str]], Response]) -> None:
        """Fetch the rest; raises TransientError when the connection ends early."""
        with request({"Range": f"bytes={self.done}-"} if self.done else {}) as response:
            if response.status_code != requests.codes.partial_content:
                self.restart()
            elif not response.headers.get("Content-Range", "").startswith(f"bytes {self.done}-"):
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
        if self.done + len(chunk) > self._size:
            raise SourceError(self._url, f"it is larger than the {self._size} bytes expected", kind="wrong")
        self.out.write(chunk)
        self._digest.update(chunk)
        self.done += len(chunk)
        self._progress.advance(len(chunk))


def retry(ask: Callable[[], Answer], url: str, stop: threading.Event) -> Answer:
    """Ask again after failures that may pass.

    `urllib3.Retry` sees the status and the headers of an answer, not a body that breaks off, and nothing ends its pauses.
    """
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
