"""A download that can be resumed: its partial file, its digest and its progress.

A download that was killed or cut goes on from the partial file, from the same source or another
one. The digest decides at the end; wrong bytes are fetched again.
"""

import hashlib
import threading
from pathlib import Path
from typing import Final, Protocol

CHUNK: Final = 1 << 18  # bytes


class Progress(Protocol):
    """Counts transferred bytes, from several threads. A negative count takes back bytes that must be fetched again."""

    def advance(self, count: int, /) -> None: ...


class Stopped(Exception):  # noqa: N818 - the failure is another download's
    """The download ends because another one failed or the person interrupted."""


class Download:
    """A partial file, open for appending. The caller closes `out`."""

    def __init__(self, path: Path, size: int, progress: Progress, stop: threading.Event) -> None:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self.out = path.open("r+b" if path.exists() else "x+b")
        self.size = size
        self.done = 0
        self.failures = 0  # in a row
        self.saved = 0  # bytes that were resumed, after breaks and from earlier attempts
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
    def is_whole(self) -> bool:
        return self.done == self.size

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def add(self, chunk: bytes) -> None:
        if self._stop.is_set():
            raise Stopped
        self.out.write(chunk)
        self._digest.update(chunk)
        self.done += len(chunk)
        self._progress.advance(len(chunk))

    def restart(self) -> None:
        self._progress.advance(-self.done)
        self.out.seek(0)
        self.out.truncate()
        self._digest = hashlib.sha256()
        self.done = self.inherited = 0
