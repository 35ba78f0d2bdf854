"""Find the log files and read them in blocks of whole lines, with constant memory."""

import io
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from envbuilder.core.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer as Buffer

BLOCK: Final = 4 << 20
STDIN: Final = "-"
_HEAD: Final = 4096
_GZIP: Final = b"\x1f\x8b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Whole lines of one log, but for a line longer than a block, which is cut."""

    data: bytes
    line: int  # the number of its first line, from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One file, or the standard input."""

    name: str
    stream: IO[bytes]
    head: bytes  # its first bytes, also still in the stream

    def blocks(self) -> Iterator[Block]:
        """The text from here to its end; a live stream gives what it has."""
        rest, line = b"", 1
        for data in self._pieces():
            whole = rest + data
            cut = whole.rfind(b"\n") + 1
            if not cut and len(whole) < BLOCK:
                rest = whole
                continue
            cut = cut or (whole.rfind(b"\r") + 1) or len(whole)
            yield Block(data=whole[:cut], line=line)
            line += whole.count(b"\n", 0, cut)
            rest = whole[cut:]
        if rest:
            yield Block(data=rest, line=line)

    def _pieces(self) -> Iterator[bytes]:
        read = getattr(self.stream, "read1", self.stream.read)
        try:
            while data := read(BLOCK):
                yield data
        except OSError as error:
            raise UsageError(f"cannot read `{self.name}`: {error.strerror or error}") from error


def open_logs(names: Iterable[str], stdin: IO[bytes], skipped: list[str]) -> Iterator[Log]:
    """Each log once, in the order given, files of a folder by name; raises UsageError for what is not there.

    What a folder holds and may not be read is added to `skipped`.
    """
    seen: set[tuple[int, int]] = set()
    for name in names:
        if name == STDIN:
            yield Log(name="<stdin>", stream=stdin, head=b"")
            continue
        for path in _files(Path(name)):
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
                raise UsageError(
                    f"cannot read `{path}`: {reason}", hint="name log files, folders of them, or `-`"
                ) from error


def _open(path: Path, raw: IO[bytes], *, is_regular: bool) -> Iterator[Log]:
    if not is_regular:  # a pipe
        yield Log(name=str(path), stream=raw, head=b"")
        return
    stream: IO[bytes] = raw
    if raw.read(2) == _GZIP:
        raw.seek(0)
        packed = io.BufferedReader(_Unpacked(raw), BLOCK)
        stream, head = packed, packed.peek(_HEAD)[:_HEAD]
    else:
        raw.seek(0)
        head = raw.read(_HEAD)
        raw.seek(0)
    yield Log(name=str(path), stream=stream, head=head)


class _Unpacked(io.RawIOBase):
    """What a gzip file holds, of a cut or damaged one all that can be had."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._engine = zlib.decompressobj(wbits=31)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "Buffer", /) -> int:
        view = memoryview(buffer)
        while data := self._rest or self._raw.read(1 << 16):
            if self._engine.eof:  # several files in one
                self._engine = zlib.decompressobj(wbits=31)
            try:
                found = self._engine.decompress(data, len(view))
            except zlib.error:
                return 0
            self._rest = self._engine.unconsumed_tail or self._engine.unused_data
            if found:
                view[: len(found)] = found
                return len(found)
        return 0


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for parent, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            file = Path(parent, name)
            if file.is_file():
                yield file
