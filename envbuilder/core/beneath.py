"""Reach files below a folder that foreign code may have written: a build's sandbox, a clone, an archive.

No link is followed on the way, the last name included, and nothing outside the folder is reached. A file is a regular
file, and is read up to a size that the caller gives. Each step opens one name in the folder that is already open
(openat(2) with O_NOFOLLOW), so a folder that is swapped for a link meanwhile changes nothing.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from envbuilder.core.errors import BuildError

# What a build's answers and sources may have, in bytes. The largest source file of PyTorch's own tree has 4 MB.
TEXT_LIMIT: Final = 64 << 20
FILE_LIMIT: Final = 8 << 30  # a compiled library: those of PyTorch's own wheels have up to 1 GB
_FOLDER: Final = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# O_NONBLOCK: a FIFO in place of a file must not block the open.
_FILE: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_LINKS: Final = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise BuildError(f"expected a path inside the folder, found `{name}`")
    return parts


def _refused(folder: Path, name: str, found: str) -> BuildError:
    return BuildError(
        f"`{folder / name}` is {found}, and not a regular file in a folder of its own",
        hint="a build, a project or an archive made it so; nothing was read or written through it",
    )


@contextlib.contextmanager
def _parent(folder: Path, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the open folder that holds `name`, and the last part of `name`. `make` makes the folders between."""
    *parents, last = _parts(name)
    at = os.open(folder, os.O_RDONLY | _FOLDER)
    try:
        for part in parents:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=at)
            try:
                below = os.open(part, os.O_RDONLY | _FOLDER, dir_fd=at)
            except OSError as error:
                if error.errno in _LINKS:
                    raise _refused(folder, name, "reached through a link or a file") from error
                raise
            os.close(at)
            at = below
        yield at, last
    finally:
        os.close(at)


def open_beneath(folder: Path, name: str) -> int:
    """Return a descriptor of the regular file `name` below `folder`, open for reading.

    Raises BuildError for a link, a device, a FIFO or a path that leaves the folder, and OSError as `os.open`.
    """
    with _parent(folder, name) as (at, last):
        try:
            descriptor = os.open(last, os.O_RDONLY | _FILE, dir_fd=at)
        except OSError as error:
            if error.errno in (*_LINKS, errno.ENXIO):
                raise _refused(folder, name, "a link or a device") from error
            raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _refused(folder, name, "no regular file")
    return descriptor


def read_beneath(folder: Path, name: str, *, limit: int = TEXT_LIMIT) -> bytes:
    """Return the content of a regular file below `folder`. Raises as `open_beneath`, and for more than `limit` bytes."""
    with os.fdopen(open_beneath(folder, name), "rb") as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise _refused(folder, name, f"larger than {limit} bytes")
    return content


def copy_beneath(folder: Path, name: str, target: Path, *, limit: int = FILE_LIMIT) -> None:
    """Copy a regular file below `folder` to the new file `target`, outside it. Raises as `read_beneath`."""
    with os.fdopen(open_beneath(folder, name), "rb") as stream, target.open("xb") as out:
        if os.fstat(stream.fileno()).st_size > limit:
            raise _refused(folder, name, f"larger than {limit} bytes")
        left = limit
        while chunk := stream.read(min(1 << 20, left + 1)):
            left -= len(chunk)
            if left < 0:
                raise _refused(folder, name, f"larger than {limit} bytes")
            out.write(chunk)


def write_beneath(folder: Path, name: str, content: bytes) -> None:
    """Write a file below `folder`, and the folders that it lies in. What is there under its name is replaced, never followed.

    The file is new: a link or a hard link that foreign code left under the name keeps its target.
    Raises BuildError for a link on the way.
    """
    with _parent(folder, name, make=True) as (at, last):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(last, dir_fd=at)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
        with os.fdopen(os.open(last, flags, 0o644, dir_fd=at), "wb") as stream:
            stream.write(content)


@contextlib.contextmanager
def folder_beneath(folder: Path, name: str = ".") -> Iterator[Path]:
    """Yield a path of the folder `name` below `folder`. Both are made where they are missing. Raises NotADirectoryError for a link.

    On Linux the path goes through the open folder: no link that is put on the way later leads elsewhere.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            at, _ = stack.enter_context(_parent(folder.resolve(), f"{name}/file", make=True))
        except BuildError as error:
            found = "expected a folder, found a link or a file"
            raise NotADirectoryError(errno.ENOTDIR, found, str(folder / name)) from error
        through = Path(f"/proc/{os.getpid()}/fd/{at}")
        yield through if through.is_dir() else folder / name


def files_beneath(folder: Path) -> Iterator[str]:
    """Yield the relative paths of the regular files below a folder, sorted. Links are neither followed nor yielded.

    A folder swapped for a link while it is walked is refused: `os.fwalk` compares what it opens.
    """
    found: list[str] = []
    for parent, _, names, descriptor in os.fwalk(folder, follow_symlinks=False):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISREG(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                    found.append(Path(parent, name).relative_to(folder).as_posix())
    yield from sorted(found)
