"""Reach files below a folder that foreign code may have written: a build's sandbox, a clone, an archive.

No link is followed on the way, the last name included, and nothing outside the folder is reached. A file is a regular
file, and is read up to a size that the caller gives. Each step opens one name in the folder that is already open
(openat(2) with O_NOFOLLOW), so a folder that is swapped for a link meanwhile changes nothing.
"""

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from envbuilder.core.budget import ENTRIES
from envbuilder.core.errors import BuildError
from envbuilder.core.system import NO_LINKS

# What a build's answers and sources may have, in bytes. The largest source file of PyTorch's own tree has 4 MB.
TEXT_LIMIT: Final = 64 << 20
FILE_LIMIT: Final = 8 << 30  # a compiled library: those of PyTorch's own wheels have up to 1 GB
DEPTH_LIMIT: Final = 128  # folders above a file
_FOLDER: Final = os.O_DIRECTORY | NO_LINKS
# O_NONBLOCK: a FIFO in place of a file must not block the open.
_FILE: Final = NO_LINKS | os.O_NONBLOCK
_LINKS: Final = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)


def leads_out(folder: Path, path: Path) -> bool:
    """Return whether a path, with its links followed, is outside the folder or a hidden place that it does not name.

    For files that a person may link to each other: a clone's link to its own `.git/config` would show a password.
    """
    # `resolve` fails for a circle of links.
    top, target = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    if not target.is_relative_to(top):
        return True
    return any(part.startswith(".") and part not in path.parts for part in target.relative_to(top).parts)


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise BuildError(f"expected a path inside the folder, found `{name}`")
    return parts


def _refused(folder: Path, name: str, what: str) -> BuildError:
    return BuildError(
        f"`{folder / name}` is {what}, and not a regular file in a folder of its own",
        hint="a build, a project or an archive made it so; nothing was read or written through it",
    )


def _open_folder(name: str, above: int) -> int:
    """Return a descriptor of a folder in an open one, also of one whose modes keep its owner out."""
    try:
        return os.open(name, os.O_RDONLY | _FOLDER, dir_fd=above)
    except PermissionError:
        closed = os.open(name, os.O_PATH | _FOLDER, dir_fd=above)
        try:
            os.chmod(f"/proc/self/fd/{closed}", 0o700)  # noqa: PTH101 - a descriptor has no other path
            return os.open(".", os.O_RDONLY | _FOLDER, dir_fd=closed)
        finally:
            os.close(closed)


@contextlib.contextmanager
def _opened(folder: Path, parts: list[str], *, make: bool = False) -> Iterator[int]:
    """Yield a descriptor of the folder below `folder`. `make` makes what is not there."""
    at = -1
    try:
        try:
            at = os.open(folder, os.O_RDONLY | _FOLDER)
            for part in parts:
                is_new = False
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=at)
                        is_new = True
                below = _open_folder(part, at)
                os.close(at)
                at = below
                if is_new:  # whatever the umask, as files are written
                    os.fchmod(at, stat.S_IMODE(os.fstat(at).st_mode) | 0o055)
        except OSError as error:
            if error.errno in _LINKS:
                raise _refused(folder, "/".join(parts), "reached through a link or a file") from error
            raise
        yield at
    finally:
        if at >= 0:
            os.close(at)


@contextlib.contextmanager
def _parent(folder: Path, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the folder that holds `name`, and the last part of `name`. `make` makes the folders between."""
    *parents, last = _parts(name) or [""]
    if not last:
        raise BuildError(f"expected a path inside the folder, found `{name}`")
    with _opened(folder, parents, make=make) as at:
        yield at, last


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
    out = io.BytesIO()
    _copy(folder, name, out, limit)
    return out.getvalue()


def copy_beneath(folder: Path, name: str, target: Path, *, limit: int = FILE_LIMIT) -> None:
    """Copy a regular file below `folder` to the new file `target`, outside it. Raises as `read_beneath`."""
    with target.open("xb") as out:
        _copy(folder, name, out, limit)


def _copy(folder: Path, name: str, out: IO[bytes], limit: int) -> int:
    """Copy a regular file into a stream. Returns its mode."""
    with os.fdopen(open_beneath(folder, name), "rb") as stream:
        status = os.fstat(stream.fileno())
        left = limit - status.st_size
        while left >= 0 and (chunk := stream.read(1 << 20)):
            out.write(chunk)
            left = limit - stream.tell()  # it may grow meanwhile
    if left < 0:
        raise _refused(folder, name, f"larger than {limit} bytes")
    return stat.S_IMODE(status.st_mode)


@contextlib.contextmanager
def _new_name(folder: Path, name: str) -> Iterator[tuple[int, str]]:
    with _parent(folder, name, make=True) as (at, last):
        try:
            yield at, last
        except FileExistsError as error:
            raise FileExistsError(error.errno, error.strerror, name) from error


@contextlib.contextmanager
def new_beneath(folder: Path, name: str) -> Iterator[IO[bytes]]:
    """Yield a new file below `folder`, open for writing. The folders that it lies in are made.

    Raises BuildError for a link on the way, and FileExistsError if anything has the name.
    """
    with _new_name(folder, name) as (at, last):
        descriptor = os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o644, dir_fd=at)
    with os.fdopen(descriptor, "wb") as stream:
        yield stream


@contextlib.contextmanager
def pinned_folder(folder: Path, name: str = ".") -> Iterator[Path]:
    """Yield a path of the folder `name` below `folder`. Both are made where they are missing. Raises NotADirectoryError for a link.

    On Linux the path goes through the open folder: no link that is put on the way later leads elsewhere.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            at = stack.enter_context(_opened(folder.resolve(), _parts(name), make=True))
        except BuildError as error:
            what = "expected a folder, found a link or a file"
            raise NotADirectoryError(errno.ENOTDIR, what, str(folder / name)) from error
        through = Path(f"/proc/{os.getpid()}/fd/{at}")
        yield through if through.is_dir() else folder / name


def link_beneath(folder: Path, name: str, target: str) -> None:
    """Make a symbolic link below `folder`. Raises as `new_beneath`."""
    with _new_name(folder, name) as (at, last):
        os.symlink(target, last, dir_fd=at)


def folder_beneath(folder: Path, name: str) -> Path:
    """Make the folder `name` below `folder` where it is not there. Raises BuildError for a link or a file on the way."""
    with _opened(folder, _parts(name), make=True):
        return folder / name


def walk_beneath(folder: Path, name: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Yield everything below the folder `name` in `folder`, parents first: its path from `folder`, and what it is.

    Links are yielded and not followed. Raises BuildError for a tree without a reasonable end.
    """
    waiting, count = [_parts(name)], 0
    while waiting:
        parts = waiting.pop()
        if len(parts) > DEPTH_LIMIT:
            what = f"a tree with more than {DEPTH_LIMIT} folders in each other"
            raise _refused(folder, "/".join(parts[:3]), what)
        with _opened(folder, parts) as at, os.scandir(at) as items:
            entries = sorted((item.name, item.stat(follow_symlinks=False)) for item in items)
        count += len(entries)
        if count > ENTRIES:
            raise _refused(folder, name, f"a tree of more than {ENTRIES} files")
        for last, status in entries:
            yield "/".join([*parts, last]), status
        waiting += [[*parts, last] for last, status in reversed(entries) if stat.S_ISDIR(status.st_mode)]


def files_beneath(folder: Path, name: str = "") -> Iterator[str]:
    """Yield the paths from `folder` of the regular files below its folder `name`, sorted. Links are neither followed nor yielded."""
    yield from sorted(path for path, status in walk_beneath(folder, name) if stat.S_ISREG(status.st_mode))


def unlink_beneath(folder: Path, name: str) -> None:
    """Remove the file `name` below `folder`. Raises BuildError for a path that leaves the folder."""
    with _parent(folder, name) as (at, last):
        os.unlink(last, dir_fd=at)


def copy_tree_beneath(folder: Path, name: str, target: Path, *, limit: int = FILE_LIMIT) -> None:
    """Copy what is below the folder `name` in `folder` into the folder `target`: files, folders, and links as links.

    `target` may hold files; a link in it is not followed either. Raises FileExistsError for a path that is in both, and
    BuildError for a device, a FIFO or more than `limit` bytes.
    """
    above = len("".join(f"{part}/" for part in _parts(name)))
    folder_beneath(target.parent, target.name)
    for path, status in walk_beneath(folder, name):
        copy = path[above:]
        if stat.S_ISDIR(status.st_mode):
            folder_beneath(target, copy)
        elif stat.S_ISLNK(status.st_mode):
            with _parent(folder, path) as (at, last):
                link_beneath(target, copy, os.readlink(last, dir_fd=at))
        else:
            with new_beneath(target, copy) as out:
                mode = _copy(folder, path, out, limit)
                limit -= out.tell()
                os.fchmod(out.fileno(), mode)
