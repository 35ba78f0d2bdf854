"""Find the log files and read them in blocks of whole lines, with constant memory."""

from __future__ import annotations

import gzip
import logging
import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

from envbuilder.core.text.redact import plain

log = logging.getLogger(__name__)
BLOCK: Final = 4 << 20
STDIN: Final = "-"
_HEAD: Final = 4096
_GZIP: Final = b"\x1f\x8b"
DAMAGED: Final = (EOFError, zlib.error, gzip.BadGzipFile)  # how reading a cut or damaged gzip file ends
# A packed log is read up to this many times its size, and so many bytes beside.
_TIMES: Final = 100
_SPARE: Final = 2 << 30


class LogError(Exception):
    """A log that cannot be read."""

    hint = "name log files, folders of them, or `-`"


@dataclass(frozen=True)
class Block:
    """Whole lines of one log. A line longer than a block is cut."""

    data: bytes
    line: int  # the number of its first line, from 1


@dataclass(frozen=True)
class Log:
    """One file, or the standard input."""

    name: str
    stream: IO[bytes]
    head: bytes  # its first bytes, also still in the stream
    most: int = sys.maxsize  # bytes that are read

    def blocks(self) -> Iterator[Block]:
        """Return the text from here to its end. A live stream gives the text that it has."""
        rest, size, line = list[bytes](), 0, 1
        for data in self._pieces():
            rest.append(data)
            size += len(data)
            if size < BLOCK and b"\n" not in data:
                continue
            whole = b"".join(rest)
            cut = (whole.rfind(b"\n") + 1) or (whole.rfind(b"\r") + 1) or size
            yield Block(data=whole[:cut], line=line)
            line += whole.count(b"\n", 0, cut)
            rest, size = [whole[cut:]], size - cut
        if size:
            yield Block(data=b"".join(rest), line=line)

    def _pieces(self) -> Iterator[bytes]:
        read = getattr(self.stream, "read1", self.stream.read)
        left = self.most
        try:
            while data := read(BLOCK):
                yield data
                left -= len(data)
                if left < 0:
                    why = "it unpacks to more than a log does"
                    log.warning("%s is read up to %d bytes: %s", plain(self.name), self.most, why)
                    return
        except DAMAGED:
            return  # the text before the damage is used
        except OSError as error:
            raise LogError(f"cannot read `{self.name}`: {error.strerror or error}") from error


def open_logs(names: Iterable[str], stdin: IO[bytes], skipped: list[str]) -> Iterator[Log]:
    """Open each log once, in the order given, files of a folder by name. Raises LogError for one that is not there.

    Files of a folder that may not be read are added to `skipped`.
    """
    seen: set[tuple[int, int]] = set()
    for name in names:
        if name == STDIN:
            yield Log(name="<stdin>", stream=stdin, head=b"")
            continue
        files = list(_files(Path(name)))
        if not files:
            raise LogError(f"the folder `{name}` holds no log")
        for path in files:
            if path != Path(name) and not os.access(path, os.R_OK):
                skipped.append(str(path))
                continue
            try:
                status = path.stat()
                key = (status.st_dev, status.st_ino)
                if key in seen:
                    continue
                seen.add(key)
                with path.open("rb") as raw:
                    yield from _open(path, raw, is_regular=stat.S_ISREG(status.st_mode))
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise LogError(f"cannot read `{path}`: {reason}") from error


def _open(path: Path, raw: IO[bytes], *, is_regular: bool) -> Iterator[Log]:
    if not is_regular:  # a pipe
        yield Log(name=str(path), stream=raw, head=b"")
        return
    stream: IO[bytes] = raw
    most = sys.maxsize
    head = raw.read(_HEAD)
    raw.seek(0)
    if head.startswith(_GZIP):
        packed = gzip.GzipFile(fileobj=raw)
        most = _SPARE + _TIMES * path.stat().st_size
        stream = cast("IO[bytes]", packed)
        try:
            head = packed.peek(_HEAD)[:_HEAD]
        except DAMAGED:
            head = b""
    yield Log(name=str(path), stream=stream, head=head, most=most)


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    older = set(_older_jobs(path))
    for parent, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            file = Path(parent, name)
            job = file.relative_to(path).parts[0].removesuffix(".log")
            if job not in older and file.suffix != ".sh" and file.is_file():
                yield file


def _older_jobs(folder: Path) -> list[str]:
    """Return the jobs in a folder of `launch slurm` but the newest: what failed there is not the cause of what fails now."""
    logs = [path for path in folder.glob("*-*.log") if path.with_suffix(".sh").exists()]
    *older, newest = sorted(logs, key=lambda path: path.stat().st_mtime) or [folder]
    if older:
        log.warning(
            "of %d jobs in %s, this is the newest: %s", len(logs), plain(str(folder)), plain(str(newest))
        )
    return [path.stem for path in older]
