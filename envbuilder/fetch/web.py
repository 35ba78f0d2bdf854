"""One machine's view of the sources: finds the URLs of an artefact and pulls bytes from them, with patience.

`http`, `https` and `file` URLs are treated alike, so that a mirror on disk serves as well as one on the network.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

import requests
import urllib3
from pypi_simple import (
    NoSuchProjectError,
    PyPISimple,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)
from requests.adapters import HTTPAdapter

from envbuilder.fetch import snapshot
from envbuilder.fetch.download import CHUNK, Download, Progress, Stopped
from envbuilder.fetch.local import FileAdapter
from envbuilder.fetch.reason import reason
from envbuilder.fetch.wanted import PARALLEL, Refusal, Wanted
from envbuilder.sources import Sources, file_path, shown

log = logging.getLogger(__name__)

PAUSES: Final = (
    0.5,
    1.0,
    2.0,
)  # seconds before each new try; bytes that came in between start the count again
LONGEST_PAUSE: Final = 30.0  # of what a server may ask for with Retry-After
WORTHWHILE: Final = 1 << 14  # bytes; a server that sends fewer at a time would be asked for ever
TIMEOUTS: Final = (15.0, 60.0)  # seconds to connect, between two reads
BUSY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})  # statuses that a later try may not see


Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One file of a project in a package index."""

    filename: str
    url: str
    uploaded: str  # YYYY-MM-DD; "" where the index does not tell
    yanked: bool


class _Broken(Exception):  # noqa: N818 - a new try follows
    """The connection or the server failed in a way that may pass."""

    def __init__(self, why: str, *, pause: float = 0.0) -> None:
        super().__init__(why)
        self.pause = pause


class Web:
    """Sources with a connection pool; safe to use from several threads."""

    def __init__(self, sources: Sources, *, local_only: bool) -> None:
        self.sources = sources
        self._local_only = local_only
        self._guard = threading.Lock()
        self._pages: dict[tuple[str, str], dict[str, Listed]] = {}
        self._silent: dict[str, Refusal] = {}  # indexes that were unreachable once are not waited for again
        self._session = requests.Session()
        self._session.headers["Accept-Encoding"] = (
            "identity"  # bytes as they are stored, and lengths that mean something
        )
        if sources.certificates is not None:
            self._session.verify = str(sources.certificates)
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=PARALLEL))
        self._session.mount("file://", FileAdapter())

    def places(self, artefact: Wanted, stop: threading.Event) -> Iterator[str | Refusal]:
        """URLs that may give the artefact, local ones first; a source that has no such file is a Refusal instead.

        The archive of all days comes last: it is slow, and asked only for what the mirrors have dropped.
        """
        name = artefact.path.rpartition("/")[2]
        for folder in self.sources.folders:
            path = folder / name
            if path.is_file() and path.stat().st_size == artefact.size:
                yield path.absolute().as_uri()
        bases = sorted(self._bases(artefact.source), key=lambda base: file_path(base) is None)
        for base in filter(self._may_ask, bases):
            if artefact.source == "debian":
                yield base + quote(artefact.path)
                continue
            place = self._look_up(base, artefact, stop)
            if isinstance(place, Refusal) or self._may_ask(place):
                yield place
        if artefact.source == "debian" and self.sources.snapshot and self._may_ask(self.sources.snapshot):
            yield self._look_back(artefact, name, stop)

    def has_local(self, artefact: Wanted, stop: threading.Event) -> bool:
        """Whether a place on this machine has a file of that name."""
        places = (file_path(place) for place in self.places(artefact, stop) if isinstance(place, str))
        return any(path is not None and path.is_file() for path in places)

    def pull(
        self, url: str, artefact: Wanted, partial: Path, progress: Progress, stop: threading.Event
    ) -> None:
        """Complete the artefact's bytes in `partial`; raises Refusal unless they are the right ones.

        What has come stays there for a later attempt, unless it is wrong.
        """
        download = Download(partial, artefact.size, progress, stop)
        try:
            with download.out:
                self._complete(url, download, stop)
                if download.sha256 != artefact.sha256 and download.inherited:
                    download.restart()
                    self._complete(url, download, stop)
            _check_digest(url, download, artefact)
        except BaseException as error:
            is_wrong = isinstance(error, Refusal) and error.kind == "wrong"
            if is_wrong or isinstance(error, OSError) or not download.done:
                partial.unlink(missing_ok=True)
            progress.advance(-download.done)
            raise

    def measure(self, url: str, stop: threading.Event) -> int:
        """The size of the file behind a URL, in bytes."""

        def ask() -> int:
            with self._request(url, method="HEAD") as response:
                return int(response.headers["Content-Length"])

        try:
            return _with_patience(ask, url, stop)
        except (KeyError, ValueError) as error:
            raise Refusal(url, "the server does not say how large the file is", kind="unreachable") from error

    def files(self, project: str, stop: threading.Event) -> dict[str, Listed]:
        """All files of a project in the package indexes, by filename; of two alike, the first index's."""
        pages = [self._page(index, project, stop) for index in self.sources.indexes]
        return {name: listed for page in reversed(pages) for name, listed in page.items()}

    def read(self, url: str, start: int, size: int, stop: threading.Event) -> bytes:
        """A part of a file: exactly `size` bytes from `start` on."""

        def ask() -> bytes:
            with self._request(url, headers={"Range": f"bytes={start}-{start + size - 1}"}) as response:
                if response.status_code != requests.codes.partial_content:
                    raise Refusal(url, "the server does not give parts of a file", kind="unreachable")
                try:
                    data = response.content
                except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                    raise _Broken(reason(error)) from error
            if len(data) != size:
                raise _Broken(f"{len(data)} bytes came instead of {size}")
            return data

        return _with_patience(ask, url, stop)

    def _may_ask(self, url: str) -> bool:
        return not self._local_only or file_path(url) is not None

    def _bases(self, source: str) -> tuple[str, ...]:
        match source:
            case "debian":
                return self.sources.debian
            case "pypi":
                return self.sources.indexes
            case "pytorch":
                return (self.sources.pytorch,)
            case _:
                raise ValueError(f"unknown source `{source}`")

    def _look_up(self, base: str, artefact: Wanted, stop: threading.Event) -> str | Refusal:
        """Find a file in a package index: the path is `project/filename`, for PyTorch's below `cpu/`, `cu126/` …"""
        *above, project, name = artefact.path.split("/")
        index = "".join([base, *(f"{part}/" for part in above)])
        try:
            return self._page(index, project, stop)[name].url
        except KeyError:
            return Refusal(f"{index}{project}/", f"there is no `{name}`", kind="gone")
        except Refusal as refusal:
            return refusal

    def _look_back(self, artefact: Wanted, name: str, stop: threading.Event) -> str | Refusal:
        """Find a package in the archive of all days."""
        base = self.sources.snapshot
        url = snapshot.question(base, artefact.name, artefact.version)

        def ask() -> bytes:
            with self._request(url) as response:
                try:
                    return response.content
                except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                    raise _Broken(reason(error)) from error

        if base in self._silent:
            return self._silent[base]
        try:
            place = snapshot.answer(base, _with_patience(ask, url, stop), name)
        except ValueError as error:
            return Refusal(url, str(error), kind="unreachable")
        except Refusal as refusal:
            if refusal.kind == "unreachable":
                self._silent[base] = refusal
            return refusal
        return place or Refusal(url, f"there never was a `{name}`", kind="gone")

    def _page(self, index: str, project: str, stop: threading.Event) -> dict[str, Listed]:
        """The files of one project in an index, by filename, asked for once."""

        def ask() -> dict[str, Listed]:
            try:
                page = PyPISimple(index, session=self._session).get_project_page(project, timeout=TIMEOUTS[1])
            except NoSuchProjectError:
                return {}
            except requests.HTTPError as error:
                raise _judged(error.response, url) from error
            except (UnsupportedContentTypeError, UnsupportedRepoVersionError) as error:
                raise Refusal(url, "what it sends is no package index", kind="unreachable") from error
            except requests.RequestException as error:
                raise _Broken(reason(error)) from error
            return {
                package.filename: Listed(
                    filename=package.filename,
                    url=_with_user_of(index, package.url),
                    uploaded=str(package.upload_time.date()) if package.upload_time else "",
                    yanked=package.is_yanked,
                )
                for package in page.packages
            }

        url = f"{index}{project}/"
        with self._guard:  # one page at a time: other threads mostly wait for the same one
            if index in self._silent:
                raise self._silent[index]
            if (index, project) not in self._pages:
                try:
                    self._pages[index, project] = _with_patience(ask, url, stop)
                except Refusal as refusal:
                    self._silent[index] = refusal
                    raise
            return self._pages[index, project]

    def _complete(self, url: str, download: Download, stop: threading.Event) -> None:
        """Fetch what is missing, however often the connection breaks, as long as each time something comes."""
        while not download.is_whole:
            before = download.done
            try:
                self._continue(url, download)
            except _Broken as broken:
                gained = download.done - before
                download.failures = 1 if gained >= WORTHWHILE else download.failures + 1
                if download.failures > len(PAUSES):
                    raise Refusal(url, str(broken), kind="unreachable") from broken
                log.info("%s: %s at byte %d, trying again", shown(url), broken, download.done)
                _wait(max(PAUSES[download.failures - 1], broken.pause), stop)

    def _continue(self, url: str, download: Download) -> None:
        """Fetch what is still missing; raises _Broken when the connection ends early."""
        headers = {"Range": f"bytes={download.done}-"} if download.done else {}
        with self._request(url, headers=headers) as response:
            if response.status_code != requests.codes.partial_content:
                download.restart()
            elif not response.headers.get("Content-Range", "").startswith(f"bytes {download.done}-"):
                download.restart()
                raise _Broken("the server resumed at another place")
            try:
                for chunk in response.iter_content(CHUNK):
                    download.add(chunk)
                    if download.done > download.size:
                        raise Refusal(
                            url, f"it is larger than the {download.size} bytes expected", kind="wrong"
                        )
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                raise _Broken(reason(error)) from error
        if download.done < download.size:
            raise _Broken(f"it ended after {download.done} of {download.size} bytes")

    def _request(
        self, url: str, *, method: str = "GET", headers: dict[str, str] | None = None
    ) -> requests.Response:
        try:
            response = self._session.request(
                method, url, headers=headers, stream=True, timeout=TIMEOUTS, allow_redirects=True
            )
        except (
            requests.exceptions.InvalidURL,
            requests.exceptions.InvalidSchema,
            requests.TooManyRedirects,
        ) as error:
            raise Refusal(url, reason(error), kind="unreachable") from error
        except requests.RequestException as error:
            raise _Broken(reason(error)) from error
        if response.ok:
            return response
        response.close()
        raise _judged(response, url)


def _check_digest(url: str, download: Download, artefact: Wanted) -> None:
    if download.sha256 != artefact.sha256:
        raise Refusal(url, f"its sha256 is {download.sha256}, expected {artefact.sha256}", kind="wrong")


def _judged(response: requests.Response, url: str) -> Refusal | _Broken:
    status = response.status_code
    if status in BUSY:
        asked = response.headers.get("Retry-After", "")
        return _Broken(
            f"the server answered {status}",
            pause=min(float(asked) if asked.isdecimal() else 0, LONGEST_PAUSE),
        )
    if status == requests.codes.range_not_satisfiable:
        return Refusal(url, "it is shorter than expected", kind="wrong")
    if status in {requests.codes.not_found, requests.codes.gone}:
        return Refusal(url, f"not found ({status})", kind="gone")
    if status in {requests.codes.unauthorized, requests.codes.forbidden}:
        return Refusal(
            url, f"access refused ({status}); credentials belong in `~/.netrc`", kind="unreachable"
        )
    return Refusal(url, f"the server answered {status}", kind="unreachable")


def _with_patience(ask: Callable[[], Answer], url: str, stop: threading.Event) -> Answer:
    for pause in PAUSES:
        try:
            return ask()
        except _Broken as broken:
            log.info("%s: %s, trying again", shown(url), broken)
            _wait(max(pause, broken.pause), stop)
    try:
        return ask()
    except _Broken as broken:
        raise Refusal(url, str(broken), kind="unreachable") from broken


def _wait(seconds: float, stop: threading.Event) -> None:
    if stop.wait(seconds):
        raise Stopped


def _with_user_of(index: str, url: str) -> str:
    """Pass on an index's credentials to files on the same host, as pip and uv do."""
    here, there = urlsplit(index), urlsplit(url)
    same = (here.scheme, here.hostname, here.port) == (there.scheme, there.hostname, there.port)
    return urlunsplit(there._replace(netloc=here.netloc)) if same and "@" not in there.netloc else url
