"""Limits of what a foreign file may make its reader do: bytes, entries, depth and names, each with its reason.

An image, a package, a log or a dump states sizes and counts that anybody could have written. Readers compare them with
the file's real size and with these limits before they allocate or loop. Everything real is far below.
"""

import json
import lzma
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, Any, Final, NoReturn

# Paths of one file system. A large environment has 300,000; each takes about 1 KB of memory.
ENTRIES: Final = 1_000_000
# Bytes of a path or of a link's target: Linux opens nothing longer (PATH_MAX).
PATH: Final = 4096
# Folders in folders. Trees of node_modules have about 60.
DEPTH: Final = 256
# Bytes of all paths, targets and attributes of one file system. 300,000 files have about 50 MB.
NAMES: Final = 512 << 20
# Bytes of one file in an image or a layer. The largest checkpoints have less than 200 GB.
FILE: Final = 1 << 40
# Bytes of a SIF. The largest environments have 30 GB.
SIF: Final = 1 << 40
# Bytes of a document that a person or a tool wrote: an SBOM of 300,000 files has about 50 MB.
DOCUMENT: Final = 256 << 20
# Bytes of a file that is read into memory from an archive: the largest library in a source archive has less.
MEMBER: Final = 1 << 30
# A file unpacks to at most this many times its size. Of Debian's, Ubuntu's, NVIDIA's and torch's packages it is 14 at most.
TIMES: Final = 100
# Bytes that any image may unpack to beside that: a layer may hold a large file of zeros. Hashing them takes seconds.
SPARE: Final = 2 << 30
# The same for an archive of sources or a package, which is written to disk.
ARCHIVE_SPARE: Final = 256 << 20
# Bytes of memory that one xz stream may ask for. `xz -9` needs 65 MiB.
XZ: Final = 256 << 20
# Bytes of a program's answer on its stdout. The longest, of uv and of git for large projects, have a few MB.
OUTPUT: Final = 64 << 20
# Bytes at the end of an output that is for the log and not an answer.
OUTPUT_END: Final = 8 << 20
# Bytes of a line of a program's output; a longer line is cut into several.
LINE: Final = 4 << 20
# Bytes of a build's log. A build of torch's own sources has about 40 MB.
LOG: Final = 512 << 20
_CHUNK: Final = 1 << 20
_LINE_COST: Final = 64  # bytes of a line in memory beside its letters


class BudgetError(ValueError):
    """A file claims more than a reader accepts. Readers translate it as they do other damage, and name the file."""


def need_within(what: str, number: int, limit: int) -> None:
    """Raise BudgetError for a number below 0 or above the limit."""
    if not 0 <= number <= limit:
        raise BudgetError(f"{what}: {number}, expected at most {limit}")


def read_within(stream: IO[bytes], limit: int, what: str) -> bytes:
    """Return the rest of a stream. Raises BudgetError once it has more than `limit` bytes."""
    pieces, count = list[bytes](), 0
    while piece := stream.read(_CHUNK):
        pieces.append(piece)
        count += len(piece)
        need_within(what, count, limit)
    return b"".join(pieces)


def most_unpacked(size: int, spare: int = SPARE) -> int:
    """Return how many bytes a file of `size` bytes may unpack to."""
    return spare + TIMES * size


class Entries:
    """Counts the paths of one file system."""

    _count = _names = 0

    def add(self, path: str, more: int = 0) -> None:
        """Count a path, with `more` bytes of target and attributes. Raises BudgetError."""
        self._count += 1
        self._names += len(path) + more
        if self._count > ENTRIES or self._names > NAMES or len(path) > PATH or path.count("/") >= DEPTH:
            need_within("paths in it", self._count, ENTRIES)
            need_within("bytes of paths and attributes", self._names, NAMES)
            need_within(f"bytes of the path {path[:100]!r}…", len(path), PATH)
            need_within(f"folders in the path {path[:100]!r}…", path.count("/") + 1, DEPTH)


def read_xz(stream: IO[bytes], chunk: int) -> Iterator[bytes]:
    """Yield what an xz or lzma file unpacks to, in pieces of at most `chunk` bytes.

    Python's own `lzma.open` allocates whatever the file asks for, up to 4 GiB. Raises LZMAError and EOFError.
    """
    decompressor = lzma.LZMADecompressor(memlimit=XZ)
    rest = b""
    while True:
        if decompressor.eof:  # another xz file may follow, and zeros between them
            rest = (decompressor.unused_data or stream.read(chunk)).lstrip(b"\0")
            if not rest:
                return
            decompressor = lzma.LZMADecompressor(memlimit=XZ)
        elif decompressor.needs_input and not rest:
            rest = stream.read(chunk)
            if not rest:
                raise EOFError("it is cut off")
        piece, rest = decompressor.decompress(rest, chunk), b""
        if piece:
            yield piece


class LastLines(deque[str]):
    """The last lines of an output, of which programs may print any number."""

    _left = OUTPUT_END

    def append(self, line: str) -> None:
        super().append(line)
        self._left -= len(line) + _LINE_COST
        while self._left < 0 and len(self) > 1:
            self._left += len(self.popleft()) + _LINE_COST


def parse_json(text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Return the value; raises ValueError for all that is no JSON, for NaN, deep nesting and bytes that are no UTF-8.

    `pairs` makes an object of its keys and values. Without it, an object is a dict.
    """
    content = text if isinstance(text, str) else text.decode("utf-8-sig")  # `json.loads` takes others too
    try:
        return json.loads(content, parse_constant=_refuse, object_pairs_hook=pairs)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is no JSON")
