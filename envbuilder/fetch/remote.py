"""Reads single members out of wheels on the network: a few MB instead of the whole file.

`remotezip` does the same with its own sessions and without new tries; the index's credentials, proxies and patience are
those of `Web`, so this is a file object for the standard library's `zipfile` instead.
"""

import collections
import contextlib
import io
import threading
import zipfile
from collections.abc import Iterator
from typing import Final

from envbuilder.errors import FetchError
from envbuilder.fetch.wanted import Refusal
from envbuilder.fetch.web import Listed, Web
from envbuilder.sources import Sources, shown

BLOCK: Final = 1 << 20  # bytes of one request
KEPT: Final = 8  # blocks; a wheel's directory is read in small steps back and forth


class Index:
    """The package indexes of this machine, for reading; raises FetchError."""

    def __init__(self, sources: Sources) -> None:
        self._web = Web(sources, local_only=False)

    def files(self, project: str) -> tuple[Listed, ...]:
        """The files of a project, sorted by name."""
        with _told(f"list the files of `{project}`"):
            found = self._web.files(project, threading.Event())
        return tuple(found[name] for name in sorted(found))

    def read(self, listed: Listed) -> bytes:
        """The whole file, for one that is small."""
        with _told(f"read `{listed.filename}`"):
            return _RemoteFile(self._web, listed.url).read()

    @contextlib.contextmanager
    def open(self, listed: Listed) -> Iterator[zipfile.ZipFile]:
        """The wheel as a zip file whose members are fetched when they are read."""
        with _told(f"read `{listed.filename}`"), zipfile.ZipFile(_RemoteFile(self._web, listed.url)) as wheel:
            yield wheel


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except Refusal as refusal:
        raise FetchError(f"could not {what}: {refusal}") from refusal
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(f"could not {what}: {error}") from error


class _RemoteFile(io.BufferedIOBase):
    """A file behind a URL that can be read and sought."""

    def __init__(self, web: Web, url: str) -> None:
        self._web = web
        self._url = url
        self._stop = threading.Event()
        self._size = web.measure(url, self._stop)
        self._at = 0
        self._blocks: collections.OrderedDict[int, bytes] = collections.OrderedDict()

    def __repr__(self) -> str:
        return f"<{shown(self._url)}>"

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(self._size - self._at, 0)
        wanted = left if size is None or size < 0 else min(size, left)
        parts = []
        while wanted:
            number, offset = divmod(self._at, BLOCK)
            part = self._block(number)[offset : offset + wanted]
            parts.append(part)
            self._at += len(part)
            wanted -= len(part)
        return b"".join(parts)

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            start = number * BLOCK
            data = self._web.read(self._url, start, min(BLOCK, self._size - start), self._stop)
            self._blocks[number] = data
            if len(self._blocks) > KEPT:
                self._blocks.popitem(last=False)
        return self._blocks[number]
