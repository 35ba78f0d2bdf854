"""Turn a root file system in a folder into the entries of a layer."""

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from envbuilder.core.budget import BudgetError, Entries
from envbuilder.core.errors import BuildError
from envbuilder.layers.entry import Entry, Kind, from_bytes
from envbuilder.layers.import_tar import DROPPED, Owner, Owners, clean, finish, is_dropped
from envbuilder.layers.tar import Member, is_normal


def index_root(root: Path, owners: Owners, *, epoch: int, drop: Collection[str] = ()) -> tuple[Member, ...]:
    """Return the paths of the layer, sorted; raises BuildError with every file that a layer cannot hold.

    `drop` is as in `index_tar`. Of several hard links the first path has the content.
    """
    parts: dict[str, Member] = {}
    mistakes: list[str] = []
    holders: dict[tuple[int, int], str] = {}
    for name, status in sorted(walk(os.fsencode(root))):
        path = from_bytes(name)
        if is_dropped(path, (*DROPPED, *drop)):
            continue
        is_file = stat.S_ISREG(status.st_mode)
        first = holders.setdefault((status.st_dev, status.st_ino), path) if is_file else path
        try:
            found = _entry(path, status, os.fsencode(root) + b"/" + name)
            entry = clean(path, owners.get(first, Owner()).of(found), epoch)
        except ValueError as error:
            mistakes.append(f"`{path}`: {error}")
            continue
        parts[path] = Member(entry=entry, hard="" if first == path else first)
    return finish(parts, mistakes, root, epoch)


def walk(root: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    """Yield every path below a folder with what it is; links are not followed.

    Raises BuildError for more, longer or deeper paths than a layer can have, and if the folder itself is a link: a program
    that ran beside the tree could have put it there.
    """
    if not stat.S_ISDIR(os.lstat(root).st_mode):
        raise BuildError(f"`{from_bytes(root)}` is no folder: a program of the build replaced it")
    entries, folders = Entries(), [b""]
    try:
        while folders:
            below = folders.pop()
            with os.scandir(root + b"/" + below) as found:
                for item in found:
                    path = below + item.name
                    entries.add(from_bytes(path))
                    yield path, item.stat(follow_symlinks=False)
                    if item.is_dir(follow_symlinks=False):
                        folders.append(path + b"/")
    except BudgetError as error:
        raise BuildError(f"`{os.fsdecode(root)}` cannot become a layer: {error}") from error


def _entry(path: str, status: os.stat_result, full: bytes) -> Entry:
    if not is_normal(path):
        raise ValueError("a name like this would delete files of lower layers")
    mode = status.st_mode
    kind = (
        Kind.LINK if stat.S_ISLNK(mode)
        else Kind.DIRECTORY if stat.S_ISDIR(mode)
        else Kind.FILE if stat.S_ISREG(mode)
        else Kind.SPECIAL
    )  # fmt: skip
    return Entry(
        path=path,
        kind=kind,
        mode=0o777 if kind is Kind.LINK else stat.S_IMODE(mode),
        uid=0,
        gid=0,
        mtime=int(status.st_mtime),
        size=status.st_size if kind is Kind.FILE else 0,
        target=from_bytes(os.readlink(full)) if kind is Kind.LINK else "",  # noqa: PTH115 - names are bytes
    )
