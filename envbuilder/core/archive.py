"""Read the files of an archive: a tar, compressed or not, or a zip file. Nothing is written."""

import contextlib
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from envbuilder.core.errors import BuildError


def archived_files(archive: Path, *, strip: bool) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of every file. A link yields its target's content, or nothing if that is outside.

    Raises BuildError for an archive that cannot be read.
    """
    for member, content in _members(archive):
        name = PurePosixPath(member)
        if name.is_absolute() or ".." in name.parts:
            raise BuildError(f"`{archive}` holds `{member}`, which would be written outside its folder")
        if strip:
            name = PurePosixPath(*name.parts[1:])
        if name.parts:
            yield str(name), content


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    try:
        yield from _read_zip(archive) if zipfile.is_zipfile(archive) else _read_tar(archive)
    # `RuntimeError`: a file with a password; `NotImplementedError` is one too, for a compression that Python lacks.
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        EOFError,
        RuntimeError,
    ) as error:
        raise BuildError(f"`{archive}` cannot be read: {error}") from error
    except OSError as error:
        if error.errno is not None:  # of the disk; gzip and bzip2 have no number
            raise
        raise BuildError(f"`{archive}` cannot be read: {error}") from error


def _read_tar(archive: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(archive) as tar:
        for member in tar:
            with contextlib.suppress(KeyError, RecursionError):  # a dangling link, or a circle of them
                if not member.isdir() and (stream := tar.extractfile(member)):
                    yield member.name, stream.read()


def _read_zip(archive: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            if not member.is_dir():
                yield member.filename, members.read(member)
