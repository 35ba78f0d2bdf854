"""Read .deb packages without dpkg (deb(5)).

`python-debian` is under the GPL, which the zipapp with all its packages cannot hold, and unpacks without a bound.
"""

import contextlib
import gzip
import io
import lzma
import sys
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from envbuilder.core.archive import BoundedTar
from envbuilder.core.budget import TIMES, need_within, read_xz
from envbuilder.core.errors import BuildError
from envbuilder.core.limits import usable_memory

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_DAMAGE: Final = (
    ValueError, EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, tarfile.TarError, LookupError, OverflowError,
    RecursionError,
)  # fmt: skip
_MAGIC: Final = b"!<arch>\n"
CHUNK: Final = 1 << 20
_HEADER: Final = 60  # bytes before each member of an ar archive
_SMALL: Final = 64 << 20  # bytes that each part may unpack to


@contextlib.contextmanager
def open_tar(deb: Path, part: str) -> Iterator[IO[bytes]]:
    """Yield a package's tar, `control` or `data`, as a stream. Raises BuildError for a damaged package."""
    with _damage_named(deb), deb.open("rb") as stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("it is not an ar archive")
        while len(header := stream.read(_HEADER)) == _HEADER:
            name, size = header[:16].decode().strip().rstrip("/"), int(header[48:58])
            need_within(f"bytes of `{name}`", size, deb.stat().st_size)
            if name.startswith(f"{part}.tar"):
                yield _unpacked(name, io.BufferedReader(_Member(stream, size), CHUNK))
                return
            stream.seek(size + size % 2, io.SEEK_CUR)
        raise ValueError(f"it has no {part}.tar")


def read_tar(deb: Path, part: str) -> memoryview:
    """Return the bytes of a package's tar. Raises BuildError for a damaged package, or one that unpacks to too much."""
    size = deb.stat().st_size
    most = min(_SMALL + TIMES * size, usable_memory() // 2)  # the pieces are there twice when they are joined
    pieces, total = [], 0
    with open_tar(deb, part) as tar:
        while piece := tar.read(CHUNK):
            pieces.append(piece)
            total += len(piece)
            if total > most:
                raise BuildError(
                    f"the package `{deb}` of {size} bytes unpacks to more than {most}",
                    hint=f"{TIMES} times its size and half of the free memory are the most: "
                    "do without the package, or build where more memory is free",
                )
    return memoryview(b"".join(pieces))


def members(tar: memoryview, deb: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a package's tar. Raises BuildError for a damaged one."""
    with _damage_named(deb), BoundedTar.open(fileobj=io.BytesIO(tar), mode="r:") as opened:
        yield from opened


def read_control(deb: Path) -> dict[str, tuple[bytes, tarfile.TarInfo]]:
    """Return the files of a package's control part, by name. Raises BuildError for a damaged package."""
    tar = read_tar(deb, "control")
    return {
        member.name.removeprefix("./"): (bytes(tar[member.offset_data :][: member.size]), member)
        for member in members(tar, deb)
        if member.isreg()
    }


def read_about(deb: Path) -> str:
    """Return the fields of a package: its name, version and dependencies. Raises BuildError for a damaged package."""
    with _damage_named(deb):
        return read_control(deb)["control"][0].decode()


@contextlib.contextmanager
def _damage_named(deb: Path) -> Iterator[None]:
    try:
        yield
    except _damage() as error:
        raise BuildError(
            f"the package `{deb}` cannot be read: {error}", hint="remove it, and run the same command again"
        ) from error


def _damage() -> tuple[type[Exception], ...]:
    """Return the errors of damaged packages, zstandard's too where `_unpacked` has imported it."""
    zstandard = sys.modules.get("zstandard")
    return (*_DAMAGE, zstandard.ZstdError) if zstandard else _DAMAGE


def _unpacked(name: str, stream: io.BufferedReader) -> IO[bytes]:
    match name.rpartition(".")[2]:
        case "tar":
            return stream
        case "gz":
            return io.BufferedReader(gzip.open(stream))
        case "xz" | "lzma":
            return io.BufferedReader(_Pieces(read_xz(stream, CHUNK)))
        case "zst":
            import zstandard  # noqa: PLC0415 - slow, and most commands read no package

            return io.BufferedReader(zstandard.open(stream))
        case other:
            raise ValueError(f"its member `{name}` is compressed by `{other}`, which is not known")


class _Pieces(io.RawIOBase):
    """Pieces of bytes as a stream."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        self._rest = self._rest or memoryview(next(self._pieces, b""))
        view = memoryview(buffer)
        length = min(len(view), len(self._rest))
        view[:length], self._rest = self._rest[:length], self._rest[length:]
        return length


class _Member(io.RawIOBase):
    """The next bytes of a stream, as a stream of their own."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream, self._left = stream, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer)[: self._left]
        content = self._stream.read(len(view))
        view[: len(content)] = content
        self._left -= len(content)
        return len(content)
