"""Cut a SIF into parts that other SIFs may hold too, and put one together from such parts.

A squashfs of envbuilder is made of zstd frames: one for each block of a file, one for each group of
small files. After an edit most of them are the same, at other places. So a part begins where a frame
begins, which its first four bytes show. No table of the file is read, so any SIF can give parts: an
old one, a signed one, a damaged one.

Standard library and Python 3.8 alone: `sync` runs this text on machines without envbuilder.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from typing import TYPE_CHECKING, Iterable, Iterator, Sequence

if TYPE_CHECKING:
    import io

FRAME = b"\x28\xb5\x2f\xfd"  # the first bytes of a zstd frame (RFC 8878, 3.1.1)
MOST = 4 << 20  # bytes of a part, where there are no frames
DIGITS = 32  # of a part's sha256: the sha256 of the whole file is checked in the end
_BLOCK = 4096  # a file system shares bytes of two files in blocks
_LARGEST = 1 << 30  # bytes of a file that parts are taken from, unless the whole is large itself
_FULL = (errno.ENOSPC, errno.EDQUOT)


def cut(stream: io.BufferedIOBase) -> Iterator[tuple[int, int, str]]:
    """Yield the place, size and digest of each part. Equal stretches of two files give equal parts."""
    # One buffer for the whole file: new ones for each piece cost as much as the hashes.
    room = bytearray(2 * MOST)
    view, at, have, more = memoryview(room), 0, 0, True
    while more:
        count = stream.readinto(view[have:])
        more, have, start = count > 0, have + count, 0
        while start < have:
            end = room.find(FRAME, start + 1, min(start + MOST + len(FRAME), have))
            if end < 0:
                if more and have - start < MOST + len(FRAME):
                    break
                end = min(start + MOST, have)
            yield at + start, end - start, digest(view[start:end])
            start = end
        room[: have - start] = room[start:have]
        at, have = at + start, have - start


def digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]


class Assembly:
    """A file that is put together from parts, each given by size and digest. `missing` holds their numbers."""

    def __init__(
        self, path: str, parts: Sequence[tuple[int, str]], missing: Iterable[int] | None = None
    ) -> None:
        """Open the file. Parts that an earlier attempt put there are kept.

        They are looked for by their digests, unless the caller knows which are `missing`.
        """
        self.parts = parts
        self.places: list[int] = []
        self._numbers: dict[str, list[int]] = {}
        self.size = 0
        for number, (size, name) in enumerate(parts):
            self.places.append(self.size)
            self._numbers.setdefault(name, []).append(number)
            self.size += size
        self._out = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._guard = threading.Lock()
        self.missing = set(range(len(parts)) if missing is None else missing)
        if missing is None and os.fstat(self._out).st_size:
            self.check()

    def close(self) -> None:
        os.close(self._out)

    @property
    def lacks(self) -> int:
        """The bytes that are missing."""
        return sum(self.parts[number][0] for number in self.missing)

    def check(self) -> None:
        """Read the file, and count every part with other bytes as missing."""
        for number, (size, name) in enumerate(self.parts):
            if digest(os.pread(self._out, size, self.places[number])) == name:
                self.missing.discard(number)
            else:
                self.missing.add(number)

    def put(self, number: int, data: bytes) -> bool:
        """Write a part; False if its bytes are wrong."""
        if digest(data) != self.parts[number][1]:
            return False
        left, at = memoryview(data), self.places[number]
        with self._guard:
            while left:
                count = os.pwrite(self._out, left, at)
                left, at = left[count:], at + count
        self.missing.discard(number)
        return True

    def take(self, path: str) -> None:
        """Copy the missing parts that another SIF has. A file that cannot be read gives what came before.

        The file may be anybody's. Links, FIFOs and files much larger than the whole give nothing.
        """
        try:
            source = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(source, "rb") as stream:
                status = os.fstat(source)
                if not stat.S_ISREG(status.st_mode) or status.st_size > max(4 * self.size, _LARGEST):
                    return
                run = _Run(0, 0)
                for at, size, name in cut(stream):
                    for number in self._numbers.get(name, ()):
                        if number in self.missing:
                            if not run.goes_on(at, self.places[number]):
                                self._copy_run(stream.fileno(), run)
                                run = _Run(at, self.places[number])
                            run.add(number, size)
                self._copy_run(stream.fileno(), run)
        except OSError as error:
            if error.errno in _FULL:
                raise

    def copy(self, source: int, pieces: Iterable[tuple[int, int]], number: int) -> None:
        """Copy a part whose pieces, each with place and size, are in an open file. The bytes are not read here."""
        to = self.places[number]
        for at, size in pieces:
            if not self._copy(source, at, to, size):
                return
            to += size
        self.missing.discard(number)

    def fill(self, source: int) -> None:
        """Copy the missing parts from their own places in an open file: the SIF itself, elsewhere."""
        run = _Run(0, 0)
        for number in sorted(self.missing):
            if not run.goes_on(self.places[number], self.places[number]):
                self._copy_run(source, run)
                run = _Run(self.places[number], self.places[number])
            run.add(number, self.parts[number][0])
        self._copy_run(source, run)

    def finish(self) -> str:
        """Write the file to the disk; return its sha256."""
        os.ftruncate(self._out, self.size)
        os.fsync(self._out)
        whole, at = hashlib.sha256(), 0
        while at < self.size:
            data = os.pread(self._out, MOST, at)
            if not data:
                break
            whole.update(data)
            at += len(data)
        return whole.hexdigest()

    def _copy_run(self, source: int, run: _Run) -> None:
        if self._copy(source, run.at, run.to, run.size):
            self.missing.difference_update(run.numbers)

    def _copy(self, source: int, at: int, to: int, size: int) -> bool:
        """Copy bytes; False when the file ends before. Where it can, the file system shares whole blocks."""
        step = -at % _BLOCK if (at - to) % _BLOCK == 0 else 0
        while size:
            length = min(size, step or size)
            try:
                count = os.copy_file_range(source, self._out, length, at, to)
            except (OSError, AttributeError) as error:  # other systems have no such call
                unable = (None, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
                if getattr(error, "errno", None) not in unable:
                    raise
                count = os.pwrite(self._out, os.pread(source, min(length, MOST), at), to)
            if not count:
                return False
            at, to, size = at + count, to + count, size - count
            step = -at % _BLOCK if (at - to) % _BLOCK == 0 else 0
        return True


class _Run:
    """Consecutive parts that are consecutive in another file too."""

    def __init__(self, at: int, to: int) -> None:
        self.at, self.to, self.size = at, to, 0
        self.numbers: list[int] = []

    def goes_on(self, at: int, to: int) -> bool:
        return (at, to) == (self.at + self.size, self.to + self.size)

    def add(self, number: int, size: int) -> None:
        self.numbers.append(number)
        self.size += size
