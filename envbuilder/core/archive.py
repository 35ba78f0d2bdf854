"""Read the files of an archive: a tar, compressed or not, or a zip file. Nothing is written."""

import contextlib
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from envbuilder.core.errors import BuildError


def archived_files(archive: Path, *, strip: bool) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of every file. A link yields its target's content, or nothing if that is outside."""
    for member, content in _read_zip(archive) if zipfile.is_zipfile(archive) else _read_tar(archive):
        name = PurePosixPath(member)
        if name.is_absolute() or ".." in name.parts:
            raise BuildError(f"`{archive}` holds `{member}`, which would be written outside its folder")
        if strip:
            name = PurePosixPath(*name.parts[1:])
        if name.parts:
            yield str(name), content


def _read_tar(archive: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(archive) as tar:
        for member in tar:
            with contextlib.suppress(KeyError):  # a dangling link
                if not member.isdir() and (stream := tar.extractfile(member)):
                    yield member.name, stream.read()


def _read_zip(archive: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            if not member.is_dir():
                yield member.filename, members.read(member)
