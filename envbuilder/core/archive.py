"""Read foreign archives within limits (`envbuilder/core/budget.py`): tars, compressed or not, and zip files. Nothing is written."""

import contextlib
import errno
import functools
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, ClassVar, Final, cast

from envbuilder.core.budget import (
    DOCUMENT,
    ENTRIES,
    FILE,
    BudgetError,
    Entries,
    need_within,
    read_within,
)

# Bytes of one extended header: paths of 4096 bytes, and attributes of 64 KiB each, which is the most that Linux has.
_HEADER: Final = 1 << 20
_RECORDS: Final = 256  # in one extended header
_MOST_RECORDS: Final = 4 * ENTRIES  # in one tar
# Extended headers before one member: GNU tar writes a long name, a long target and one for PAX.
_CHAIN: Final = 8
_EXTENDED: Final = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
KEPT: Final = 8  # blocks; readers of zip and ELF files go back and forth between tables and contents
_SPARSE: Final = "a sparse file, whose content is not the bytes in the tar"
_DIRECTORY_SIZE: Final = 5  # in what `zipfile` reads of the end of a file
# Bytes: 46 and the path for each member, and zipfile takes ten times as much memory.
_MOST_DIRECTORY: Final = 128 << 20
# What damaged or hostile bytes raise in the standard library's readers of archives.
DAMAGED_TAR: Final = (
    tarfile.TarError, OSError, EOFError, ValueError, OverflowError, RecursionError, MemoryError, zlib.error, lzma.LZMAError,
)  # fmt: skip
DAMAGED_ZIP: Final = (
    zipfile.BadZipFile, EOFError, ValueError, OverflowError, MemoryError, NotImplementedError, RuntimeError, struct.error,
    zlib.error, lzma.LZMAError,
)  # fmt: skip


class _Info(tarfile.TarInfo):
    """A member whose headers are bounded. `tarfile` names its methods as the place to extend it."""

    def _proc_member(self, archive: "BoundedTar") -> tarfile.TarInfo:
        self._need_size()
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise BudgetError(f"{self.name[:100]!r} is {_SPARSE}")
        if self.type in _EXTENDED:
            need_within("bytes of an extended header", self.size, _HEADER)
            archive.chain += 1
            need_within("extended headers before one member", archive.chain, _CHAIN)
        return cast("tarfile.TarInfo", super()._proc_member(archive))  # type: ignore[misc]

    def _apply_pax_info(self, headers: dict[str, str], encoding: str, errors: str) -> None:
        need_within("records in an extended header", len(headers), _RECORDS)
        if any(name.startswith("GNU.sparse.") for name in headers):
            self._refuse_sparse()
        super()._apply_pax_info(headers, encoding, errors)  # type: ignore[misc]
        self._need_size()

    def _need_size(self) -> None:
        if not 0 <= self.size <= FILE:
            need_within(f"bytes of {self.name[:100]!r}", self.size, FILE)

    def _refuse_sparse(self, *_: object) -> None:
        raise BudgetError(f"{self.name[:100]!r} is {_SPARSE}")

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


class BoundedTar(tarfile.TarFile):
    """A foreign tar. Reading raises BudgetError for sparse files, and for too many members or too large headers."""

    tarinfo = _Info  # type: ignore[mutable-override]  # as `tarfile` documents it
    # Without xz, where `tarfile` lets the file choose the memory.
    OPEN_METH: ClassVar[Mapping[str, str]] = {"tar": "taropen", "gz": "gzopen", "bz2": "bz2open"}
    chain = 0  # extended headers of the member that is read
    _records = 0
    _entries: Entries | None = None

    def next(self) -> tarfile.TarInfo | None:
        self.chain = 0
        if self._entries is None:
            self._entries = Entries()  # here, since TarFile's own `__init__` reads the first member
        is_counted = self.firstmember is not None  # type: ignore[attr-defined]
        member = super().next()
        if member is not None and not is_counted:
            self._entries.add(member.name, len(member.linkname))
            self._records += len(member.pax_headers)
            need_within("records in extended headers", self._records, _MOST_RECORDS)
        return member


class BoundedZip(zipfile.ZipFile):
    """A foreign zip file. Opening it and reading a member raise BadZipFile for all damage, and for what is too large."""

    def __init__(self, file: Path | IO[bytes]) -> None:
        with (
            _bad_zip(),
            file.open("rb") if isinstance(file, Path) else contextlib.nullcontext(file) as stream,
        ):
            # `zipfile` reads the whole directory at once. This is its own way to find it.
            ended = zipfile._EndRecData(stream)  # type: ignore[attr-defined]  # noqa: SLF001
            need_within("bytes of its directory", ended[_DIRECTORY_SIZE] if ended else 0, _MOST_DIRECTORY)
            super().__init__(file)

    def read(self, name: str | zipfile.ZipInfo, pwd: bytes | None = None) -> bytes:
        member = name if isinstance(name, zipfile.ZipInfo) else self.getinfo(name)
        with _bad_zip(), self.open(member, pwd=pwd) as stream:
            return read_within(stream, DOCUMENT, f"bytes of {member.filename[:100]!r}")


@contextlib.contextmanager
def _bad_zip() -> Iterator[None]:
    try:
        yield
    except DAMAGED_ZIP as error:
        raise zipfile.BadZipFile(str(error)) from error
    except OSError as error:
        # Of bzip2, or a place before the file's beginning, which its directory names.
        if error.errno not in (None, errno.EINVAL):
            raise
        raise zipfile.BadZipFile(str(error)) from error


class BlockReader(io.RawIOBase):
    """Reads and seeks in `size` bytes; `load` gives block `number`, whose length is `block_size` but for the last.

    Raises ValueError where a block is shorter than it must be, and whatever `load` raises.
    """

    def __init__(self, load: Callable[[int], bytes], *, size: int, block_size: int) -> None:
        self._block = functools.lru_cache(KEPT)(load)
        self._size, self._block_size = size, block_size
        self._at = 0

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

    def readinto(self, buffer: "memoryview | bytearray", /) -> int:  # type: ignore[override]  # what BufferedReader gives
        if self._at >= self._size:
            return 0
        number, offset = divmod(self._at, self._block_size)
        part = self._block(number)[offset : offset + len(buffer)]
        if not part:
            raise ValueError("a file whose blocks do not add up to its size")
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)
