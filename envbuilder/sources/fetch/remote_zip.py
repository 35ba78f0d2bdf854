"""Read single members of wheels over the network: a few MB instead of the whole file.

`remotezip` uses its own sessions and does not retry. This is a file object for the standard
library's `zipfile` instead, with the credentials, proxies and retries of `SourceClient`.
"""

import contextlib
import io
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterator
from typing import Final

from envbuilder.core.archive import BlockReader, BoundedZip
from envbuilder.core.budget import BudgetError
from envbuilder.core.errors import FetchError
from envbuilder.sources.fetch.client import Listed, SourceClient
from envbuilder.sources.http import ARCHIVE, Limits
from envbuilder.sources.http.failure import SourceError
from envbuilder.sources.names import Sources, Wanted

BLOCK: Final = 1 << 20  # bytes of one request
BUFFER: Final = 1 << 16
MOST: Final = 512 << 20  # bytes that are read of one wheel: a compiler has 60 MB
# Not `DAMAGED_ZIP`: callers read members and judge them in the same block, and raise ValueError themselves.
_BROKEN: Final = (
    SourceError, zipfile.BadZipFile, BudgetError, KeyError, EOFError, OverflowError, RuntimeError, struct.error, zlib.error
)  # fmt: skip


class Index:
    """The package indexes of this machine, for reading; raises FetchError."""

    def __init__(self, sources: Sources, limits: Limits | None = None) -> None:
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

    @contextlib.contextmanager
    def open_artifact(self, artifact: Wanted) -> Iterator[zipfile.ZipFile]:
        """Open a locked wheel in the first place that has it."""
        places = self.client.places(artifact, threading.Event())
        url = next((place for place in places if isinstance(place, str)), None)
        if url is None:
            raise FetchError(f"no source here has `{artifact.path}`")
        with _errors(f"read `{artifact.path}`"), BoundedZip(_open(self.client, url)) as wheel:
            yield wheel


@contextlib.contextmanager
def _errors(what: str) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise FetchError(f"could not {what}: {str(error) or type(error).__name__}") from error


def _open(web: SourceClient, url: str) -> io.BufferedReader:
    """Open the file behind a URL for reading and seeking."""
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
