"""Ask the sources of this machine: find the URLs of an artifact and download it, or read single members of a wheel.

`http`, `https` and `file` URLs are treated alike, so a mirror may be a folder.
"""

import contextlib
import io
import logging
import re
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import pypi_simple
import requests
from packaging.utils import canonicalize_name

from envbuilder.core.archive import BlockReader, BoundedZip
from envbuilder.core.budget import BudgetError, parse_json
from envbuilder.core.errors import FetchError
from envbuilder.sources.http import (
    ARCHIVE,
    PAGE,
    Progress,
    RequestLimits,
    SourceError,
    TransientError,
    Waiting,
    session,
    wait_silently,
)
from envbuilder.sources.names import (
    BLOBS,
    DEBIAN,
    DEBIAN_SECURITY,
    INDEX,
    LINKS,
    UBUNTU,
    Sources,
    Wanted,
    file_path,
    shown,
)

log = logging.getLogger(__name__)

# Marks that begin an element of HTML or a value of JSON in one page. Its parsers take 2 kB for each. A page of 20,000 files
# has 100,000.
MOST_MARKS: Final = 500_000
MOST_DIGITS: Final = 15  # of a size in bytes
BLOCK: Final = 1 << 20  # bytes of one request
BUFFER: Final = 1 << 16
MOST: Final = 512 << 20  # bytes that are read of one wheel: a compiler has 60 MB
# Not `DAMAGED_ZIP`: callers read members and judge them in the same block, and raise ValueError themselves.
_BROKEN: Final = (
    SourceError, zipfile.BadZipFile, BudgetError, KeyError, EOFError, OverflowError, RuntimeError, struct.error, zlib.error
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One file of a project in a package index."""

    filename: str
    url: str
    uploaded: str = ""  # YYYY-MM-DD; "" where the index does not tell
    yanked: bool = False
    sha256: str = ""  # "" where the index does not tell


class SourceClient:
    """The sources, with a pool of connections; safe to use from several threads."""

    def __init__(
        self, sources: Sources, *, local_only: bool, repositories: Mapping[str, str] = MappingProxyType({}),
        waiting: Waiting = wait_silently, limits: RequestLimits | None = None,
    ) -> None:  # fmt: skip
        """`repositories` are the addresses of sources that no setting names; it may grow."""
        self.sources = sources
        self._repositories = repositories
        self._local_only = local_only
        self._guard = threading.Lock()
        self._pages: dict[tuple[str, str], dict[str, Listed]] = {}
        self._silent: dict[str, SourceError] = {}  # unreachable indexes, which are not asked again
        self._session = session.HttpSession(sources.certificates, waiting, limits=limits, files=True)

    @property
    def certificates(self) -> Path:
        return self.sources.certificates or Path(requests.utils.DEFAULT_CA_BUNDLE_PATH)

    def places(self, artifact: Wanted, stop: threading.Event) -> Iterator[str | SourceError]:
        """Yield URLs of the artifact, local ones first; for a source without the file, its SourceError.

        The services that keep what the mirrors dropped come last, because they are slow.
        """
        name = artifact.path.rpartition("/")[2]
        for folder in self.sources.folders:
            for path in (folder / name, folder / BLOBS / artifact.sha256):
                if path.is_file() and path.stat().st_size == artifact.size:
                    yield path.absolute().as_uri()
        # "git" and "registry" are fetched by their own clients.
        repository = self._repositories.get(artifact.source, "")
        indexes = {"pypi": self.sources.indexes, "pytorch": (self.sources.pytorch,)}
        if artifact.source.startswith((INDEX, LINKS)):
            indexes, repository = {artifact.source: (repository,)}, ""
        for base in self._local_first((*self.sources.mirrors(artifact.source), repository)):
            yield base + quote(artifact.path)
        for base in self._local_first(indexes.get(artifact.source, ())):
            place = self._look_up(base, artifact, stop)
            if isinstance(place, SourceError) or self._may_ask(place):
                yield place
        if artifact.source in (DEBIAN, DEBIAN_SECURITY):
            for base in self._local_first((self.sources.snapshot,)):
                yield self._look_back(base, artifact, name, stop)
        if artifact.source == UBUNTU:
            for base in self._local_first((self.sources.ubuntu_files,)):
                yield base + quote(name)

    def has_local(self, artifact: Wanted, stop: threading.Event) -> bool:
        """Return whether a place on this machine has a file of that name."""
        places = (file_path(place) for place in self.places(artifact, stop) if isinstance(place, str))
        return any(path is not None and path.is_file() for path in places)

    def download(
        self, url: str, artifact: Wanted, partial: Path, progress: Progress, stop: threading.Event
    ) -> None:
        """Download the artifact into `partial`; raises SourceError unless its digest is right. An empty one stands for any.

        After a failure the file stays for a later attempt, unless its bytes are wrong.
        """
        session.download(
            url, sha256=artifact.sha256, size=artifact.size, partial=partial, progress=progress, stop=stop,
            request=lambda headers: self._request(url, headers=headers),
        )  # fmt: skip

    def measure(self, url: str, stop: threading.Event) -> int:
        """Return the size of the file behind a URL, in bytes."""

        def ask() -> int:
            with self._request(url, method="HEAD") as response:
                size = response.headers.get("Content-Length", "")
            if not size.isdecimal() or len(size) > MOST_DIGITS:
                raise SourceError(url, "the server does not say how large the file is", kind="unusable")
            return int(size)

        return session.retry(ask, url, stop)

    def page(self, url: str, stop: threading.Event, *, most: int = PAGE) -> bytes:
        """Return a file of up to `most` bytes as a whole. Raises SourceError."""
        if not self._may_ask(url):
            raise SourceError(url, "this run is offline", kind="unreachable")
        return session.retry(lambda: self._get(url, most), url, stop)

    def touch(self, url: str, stop: threading.Event) -> None:
        """Request a page without reading it."""
        session.retry(lambda: self._request(url).close(), url, stop)

    def files(self, project: str, stop: threading.Event) -> dict[str, Listed]:
        """Return all files of a project by filename. The first index that has a file wins."""
        pages = [self._page(index, project, stop) for index in self.sources.indexes]
        return {name: listed for page in reversed(pages) for name, listed in page.items()}

    def listed(self, place: str, project: str = "") -> tuple[Listed, ...]:
        """Return the files of a project in an index, or without a project of a page. Raises SourceError."""
        if not self._may_ask(place):
            raise SourceError(place, "this run is offline", kind="unreachable")
        return tuple(self._page(place, project, threading.Event()).values())

    def read(self, url: str, start: int, size: int, stop: threading.Event) -> bytes:
        """Read exactly `size` bytes of a file from `start` on."""

        def ask() -> bytes:
            with self._request(url, headers={"Range": f"bytes={start}-{start + size - 1}"}) as response:
                if response.status_code != requests.codes.partial_content:
                    raise SourceError(url, "the server does not give parts of a file", kind="unreachable")
                data = self._session.read(response, size)
            if len(data) != size:
                raise TransientError(f"{len(data)} bytes came instead of {size}")
            return data

        return session.retry(ask, url, stop)

    def _local_first(self, bases: Sequence[str]) -> Iterator[str]:
        """Yield the addresses that may be asked, those on this machine first."""
        return filter(self._may_ask, sorted(filter(None, bases), key=lambda base: file_path(base) is None))

    def _may_ask(self, url: str) -> bool:
        return not self._local_only or file_path(url) is not None

    def _look_up(self, base: str, artifact: Wanted, stop: threading.Event) -> str | SourceError:
        """Find a file in a package index: the path is `project/filename`, for PyTorch's below `cpu/`, `cu126/` …

        On a page with links, it is `filename`.
        """
        *above, project, name = (
            ("", artifact.path) if artifact.source.startswith(LINKS) else artifact.path.split("/")
        )
        index = "".join([base, *(f"{part}/" for part in above)])
        try:
            return self._page(index, project, stop)[name].url
        except KeyError:
            return SourceError(_page_of(index, project), f"there is no `{name}`", kind="gone")
        except SourceError as refusal:
            return refusal

    def _look_back(self, base: str, artifact: Wanted, name: str, stop: threading.Event) -> str | SourceError:
        """Find a package in Debian's snapshot archive.

        It lists the files of each binary package and version by sha1, of the main and the security archive alike, and
        serves them by it (its API is described at salsa.debian.org/snapshot-team/snapshot). Only the lock's sha256 is
        trusted.
        """
        package = "/".join(quote(part, safe="") for part in (artifact.name, artifact.version))
        url = f"{base}mr/binary/{package}/binfiles?fileinfo=1"
        if base in self._silent:
            return self._silent[base]
        try:
            digest = _digest_of(session.retry(lambda: self._get(url), url, stop), name)
        except ValueError as error:
            return SourceError(url, str(error), kind="unreachable")
        except SourceError as refusal:
            if refusal.kind != "gone":
                self._silent[base] = refusal
            return refusal
        if not digest:
            return SourceError(url, f"there never was a `{name}`", kind="gone")
        return f"{base}file/{digest}"

    def _page(self, index: str, project: str, stop: threading.Event) -> dict[str, Listed]:
        """Return the files of one project in an index, or without a project of a page, by filename. Each is requested once."""

        def ask() -> dict[str, Listed]:
            try:
                with self._request(url, headers={"Accept": pypi_simple.ACCEPT_ANY}) as response:
                    content = self._session.read(response)
            except SourceError as refusal:
                if refusal.kind == "gone":
                    return {}
                raise
            # No server may name a file of this machine, and an index in a folder may.
            schemes = {*session.PORTS, "file"} if urlsplit(index).scheme == "file" else {*session.PORTS}
            files = _listed(index, project, response, content)
            if foreign := [file.url for file in files if urlsplit(file.url).scheme not in schemes]:
                message = "%s names `%s`, which no server may: it is passed over"
                log.warning(message, shown(url), shown(foreign[0]))
            return {file.filename: file for file in files if file.url not in foreign}

        url = _page_of(index, project)
        with self._guard:  # one page at a time: other threads mostly wait for the same one
            if index in self._silent:
                raise self._silent[index]
            if (index, project) not in self._pages:
                try:
                    self._pages[index, project] = session.retry(ask, url, stop)
                except SourceError as refusal:
                    self._silent[index] = refusal
                    raise
            return self._pages[index, project]

    def _get(self, url: str, most: int = PAGE) -> bytes:
        with self._request(url) as response:
            return self._session.read(response, most)

    def _request(
        self, url: str, *, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> session.Response:
        # In clear text, `~/.netrc` is for the addresses that a setting or the recipe names, and for none that an index names.
        is_open = url.startswith("http:") and not self._names(url)
        response = self._session.send(method, url, headers=headers, authorization="" if is_open else None)
        if response.ok:
            return response
        response.close()
        raise _judged(response, url)

    def _names(self, url: str) -> bool:
        """Whether a setting or the recipe names an address of the URL's origin."""
        known = filter(None, (*self.sources.addresses, *self._repositories.values()))
        return any(session.is_same_origin(source, url) for source in known)


def _page_of(index: str, project: str) -> str:
    return f"{index}{canonicalize_name(project)}/" if project else index


def _listed(index: str, project: str, response: session.Response, content: bytes) -> list[Listed]:
    """Return the files of a project's page, as the index lists them; raises SourceError for what is no such page."""
    if sum(map(content.count, (b"<", b"{", b"["))) > MOST_MARKS:
        raise SourceError(response.url, "its page has too many elements", kind="unusable")
    page = requests.Response()
    page.url, page.headers, page.encoding = response.url, response.headers, "utf-8"
    page._content = content  # noqa: SLF001 - what `pypi_simple` parses; it would read without a bound
    try:
        return [
            Listed(
                # The text of a link on another page than an index's may be anything.
                filename=package.filename
                if project
                else unquote(urlsplit(package.url).path).rpartition("/")[2],
                url=session.with_user_of(index, package.url),
                uploaded=str(package.upload_time.date()) if package.upload_time else "",
                yanked=package.is_yanked,
                sha256=str(package.digests.get("sha256", "")),
            )
            for package in pypi_simple.ProjectPage.from_response(page, project).packages
        ]
    except Exception as error:  # of three parsers, over bytes of a server
        why = f"the answer is not a package index ({type(error).__name__})"
        raise SourceError(response.url, why, kind="unusable") from error


def _digest_of(answer: bytes, filename: str) -> str:
    """Return the sha1 of a file from an answer of the snapshot archive, "" without the file; raises ValueError."""
    try:
        for digest, places in parse_json(answer)["fileinfo"].items():
            if any(place["name"] == filename for place in places) and re.fullmatch(r"[0-9a-f]{40}", digest):
                return str(digest)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("what it sends is no answer of an archive of all days") from error
    return ""


def _judged(response: session.Response, url: str) -> SourceError | TransientError:
    status = response.status_code
    if passing := session.busy(response):
        return passing
    if status == requests.codes.range_not_satisfiable:
        return SourceError(url, "it is shorter than expected", kind="wrong")
    if status in {requests.codes.not_found, requests.codes.gone}:
        return SourceError(url, f"not found ({status})", kind="gone")
    if status in {requests.codes.unauthorized, requests.codes.forbidden}:
        return SourceError(url, f"it refused access ({status})", kind="refused")
    return SourceError(url, f"the server answered {status}", kind="unreachable")


class Index:
    """The package indexes of this machine, for reading; raises FetchError.

    Of a wheel, a few MB are read instead of the whole file. `remotezip` uses its own sessions and does not retry. So this opens
    a file object for `zipfile`, with the credentials, proxies and retries of `SourceClient`.
    """

    def __init__(self, sources: Sources, limits: RequestLimits | None = None) -> None:
        self.client = SourceClient(sources, local_only=False, limits=limits)

    def files(self, project: str) -> tuple[Listed, ...]:
        """Return the files of a project, sorted by name."""
        with _errors(f"list the files of `{project}`"):
            files = self.client.files(project, threading.Event())
        return tuple(files[name] for name in sorted(files))

    def read(self, listed: Listed) -> bytes:
        """Read a source distribution as a whole."""
        with _errors(f"read `{listed.filename}`"):
            return self.client.page(listed.url, threading.Event(), most=ARCHIVE)

    @contextlib.contextmanager
    def open(self, listed: Listed) -> Iterator[zipfile.ZipFile]:
        """Open a wheel as a zip file whose members are fetched on demand."""
        with _errors(f"read `{listed.filename}`"), BoundedZip(_open(self.client, listed.url)) as wheel:
            yield wheel

    def open_artifact(self, artifact: Wanted) -> AbstractContextManager[zipfile.ZipFile]:
        """Open a locked wheel in the first place that has it."""
        places = self.client.places(artifact, threading.Event())
        url = next((place for place in places if isinstance(place, str)), None)
        if url is None:
            raise FetchError(f"no source here has `{artifact.path}`")
        return self.open(Listed(filename=artifact.path, url=url))


@contextlib.contextmanager
def _errors(what: str) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise FetchError(f"could not {what}: {str(error) or type(error).__name__}") from error


def _open(web: SourceClient, url: str) -> io.BufferedReader:
    stop = threading.Event()
    size, left = web.measure(url, stop), MOST

    def load(number: int) -> bytes:
        nonlocal left
        left -= BLOCK
        if left < 0:
            raise SourceError(url, f"more than {MOST} bytes of it would be read", kind="unusable")
        start = number * BLOCK
        return web.read(url, start, min(BLOCK, size - start), stop)

    return io.BufferedReader(BlockReader(load, size=size, block_size=BLOCK), BUFFER)
