"""Send HTTP requests with retries, and resume broken downloads.

Package indexes and image registries are asked through it. Callers judge the status of an answer.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol, TypeVar

import requests
import urllib3
from requests.adapters import HTTPAdapter

from envbuilder.core.http.failure import UNTRUSTED, SourceError, TransientError, reason
from envbuilder.core.http.file_urls import FileAdapter
from envbuilder.core.http.transfer import CHUNK, Download, Progress, Stopped
from envbuilder.core.sources import shown

log = logging.getLogger(__name__)

PARALLEL: Final = 4  # requests at a time
PAUSES: Final = (
    0.5,
    1.0,
    2.0,
)  # seconds before each retry; progress in between restarts the count
LONGEST_PAUSE: Final = 30.0  # seconds; the largest Retry-After that is obeyed
WORTHWHILE: Final = 1 << 14  # bytes; less is no progress, or a slow server would be asked for ever
TIMEOUTS: Final = (15.0, 60.0)  # seconds to connect, between two reads
BUSY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})  # statuses that may pass

Answer = TypeVar("Answer")
Response = requests.Response


class Body(Protocol):
    """A request's body, in pieces and of known length. It can be sent again."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[bytes]: ...


class HttpSession:
    """A pool of connections; safe to use from several threads."""

    def __init__(self, certificates: Path | None) -> None:
        self.session = requests.Session()
        self.session.headers["Accept-Encoding"] = "identity"  # bytes as stored, with their true length
        self._certificates = certificates
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

        An `authorization`, also an empty one, replaces `~/.netrc`. It is not sent to other hosts.
        """
        try:
            return self.session.request(
                method, url, headers=headers, data=body, stream=True, timeout=TIMEOUTS, allow_redirects=True,
                auth=None if authorization is None else _Authorization(authorization),
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
            raise TransientError(why) from error


class _Authorization(requests.auth.AuthBase):
    def __init__(self, value: str) -> None:
        self._value = value

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._value:
            request.headers["Authorization"] = self._value
        return request


def content(response: Response) -> bytes:
    """Return the whole body; raises TransientError when it ends early."""
    try:
        return bytes(response.content)
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise TransientError(reason(error)) from error


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
    request: Callable[[Mapping[str, str]], Response],
) -> int:  # fmt: skip
    """Download into the file `partial`, from where an earlier attempt ended, and check the digest; raises SourceError.

    Returns how many bytes were resumed. After a failure the file stays for a later attempt, unless
    its bytes are wrong. `request` sends the request with these further headers, and raises
    TransientError or SourceError unless it succeeds.
    """
    download = Download(partial, size, progress, stop)
    try:
        with download.out:
            _complete(url, download, stop, request)
            if download.sha256 != sha256 and download.inherited:
                download.restart()
                _complete(url, download, stop, request)
        _check_digest(url, download, sha256)
    except BaseException as error:
        is_wrong = isinstance(error, SourceError) and error.kind == "wrong"
        if is_wrong or isinstance(error, OSError) or not download.done:
            partial.unlink(missing_ok=True)
        progress.advance(-download.done)
        raise
    return download.saved


def _complete(
    url: str, download: Download, stop: threading.Event, request: Callable[[Mapping[str, str]], Response]
) -> None:
    """Fetch the rest and resume after breaks, as long as there is progress."""
    while not download.is_whole:
        before = download.done
        try:
            _go_on(url, download, request)
        except TransientError as broken:
            gained = download.done - before
            download.failures = 1 if gained >= WORTHWHILE else download.failures + 1
            if download.failures > len(PAUSES):
                raise give_up(url, broken) from broken
            log.info("%s: %s at byte %d, trying again", shown(url), broken, download.done)
            wait(max(PAUSES[download.failures - 1], broken.pause), stop)


def _check_digest(url: str, download: Download, sha256: str) -> None:
    if download.sha256 != sha256:
        raise SourceError(url, f"its sha256 is {download.sha256}, expected {sha256}", kind="wrong")


def _go_on(url: str, download: Download, request: Callable[[Mapping[str, str]], Response]) -> None:
    """Fetch the rest; raises TransientError when the connection ends early."""
    with request({"Range": f"bytes={download.done}-"} if download.done else {}) as response:
        if response.status_code != requests.codes.partial_content:
            download.restart()
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {download.done}-"):
            download.restart()
            raise TransientError("the server resumed at another place")
        download.saved += download.done
        for chunk in pieces(response):
            download.add(chunk)
            if download.done > download.size:
                raise SourceError(url, f"it is larger than the {download.size} bytes expected", kind="wrong")
    if download.done < download.size:
        raise TransientError(f"it ended after {download.done} of {download.size} bytes")


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
