"""Turn a root file system, in a folder or in another program's tar, into the entries of a layer.

A tar is never extracted: its members are indexed and checked, and contents are read at their
offsets. That needs no root, and a hostile member has nothing to write to.
"""

import os
import stat
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from envbuilder.core.archive import DAMAGED_TAR, BoundedTar
from envbuilder.core.budget import BudgetError, Entries
from envbuilder.core.errors import BuildError
from envbuilder.layers.entry import (
    Entry,
    Kind,
    TarMember,
    from_bytes,
    is_normal,
    path_order,
    read_member,
    to_bytes,
)

# Made by container runtimes.
_DROPPED: Final = ("dev/*", "proc/*", "sys/*", "run/secrets", ".dockerenv")
# Files that a runtime replaces, or that name the build machine: present and empty in every layer.
_EMPTIED: Final = ("etc/hostname", "etc/hosts", "etc/machine-id", "etc/resolv.conf")
_HOST_XATTRS: Final = ("user.rootlesscontainers", "user.overlay.", "user.fuseoverlayfs.")
_SHOWN: Final = 10  # how many mistakes an error names
_MOST_ID: Final = 0xFFFFFFFE  # what a squashfs can hold


class Owner(NamedTuple):
    """The owner of a path, and what only its package or its image may say. The default is root, without anything more."""

    uid: int = 0
    gid: int = 0
    special: int = 0  # set-id bits: a file has no others
    xattrs: tuple[tuple[str, bytes], ...] = ()
    added: int = 0  # bits of the mode that the tree has and the layer does not: the builder has to read it

    def of(self, entry: Entry) -> Entry:
        others = 0 if entry.kind is Kind.DIRECTORY else 0o6000 & ~self.special
        mode = entry.mode & ~(others | self.added) if entry.kind is not Kind.LINK else entry.mode
        return replace(entry, uid=self.uid, gid=self.gid, mode=mode, xattrs=self.xattrs)


Owners: TypeAlias = Mapping[str, Owner]  # by path


def index_tar(
    tar: Path, *, epoch: int, drop: Collection[str] = (), owners: Owners | None = None, plain: bool = False
) -> tuple[TarMember, ...]:
    """Return the paths of the layer, sorted; raises BuildError with every member that a layer cannot hold.

    `drop` names paths that go with all below them; `name/*` keeps the folder itself. With `owners`, those of the tar do not count.
    With `plain`, each entry is as `root_entry` makes it, and hard links are files of their own.
    """
    try:
        with BoundedTar.open(tar, "r:") as opened:
            infos = opened.getmembers()
    except DAMAGED_TAR as error:
        raise BuildError(f"`{tar.name}` is not a tar that can be read: {error}") from error
    everything: dict[str, TarMember] = {}
    named: dict[str, TarMember] = {}
    mistakes: list[str] = []
    for info in infos:
        try:
            member = _judge(info)
        except ValueError as error:
            mistakes.append(str(error))
            continue
        path = member.entry.path
        if path in named:
            mistakes.append(f"`{path}` is there twice")
        elif not _is_dropped(path, drop):
            named[path] = member
        everything[path] = member
    contents = _contents(everything.values())
    members: list[tuple[TarMember, object]] = []
    for path in sorted(named, key=to_bytes):
        if path in contents:
            source = contents[path]
            members.append((replace(source, entry=replace(source.entry, path=path)), source.offset))
        else:
            mistakes.append(
                f"`{path}`: it is a hard link to {named[path].hard!r}, which is not there before it"
            )
    return _finish(members, mistakes, source=tar, owners=owners, epoch=epoch, plain=plain)


def index_root(
    root: Path, owners: Owners, *, epoch: int, drop: Collection[str] = ()
) -> tuple[TarMember, ...]:
    """Return the paths of the layer, sorted; raises BuildError with every file that a layer cannot hold.

    `drop` is as in `index_tar`. Of several hard links the first path has the content.
    """
    members = [
        (TarMember(entry=entry), (status.st_dev, status.st_ino))
        for entry, status in scan(root)
        if not _is_dropped(entry.path, drop)
    ]
    return _finish(members, [], source=root, owners=owners, epoch=epoch)


def index_tree(tree: Path, *, epoch: int, omit: Collection[str] = ()) -> tuple[TarMember, ...]:
    """Return the paths below a folder that a step filled, sorted, but the folders in `omit`; raises BuildError as `index_root`."""
    parts: list[TarMember] = []
    mistakes: list[str] = []
    for entry, _ in scan(tree):
        if entry.path not in omit:
            try:
                parts.append(TarMember(entry=root_entry(entry, epoch)))
            except ValueError as error:
                mistakes.append(f"`{entry.path}`: {error}")
        elif entry.kind is not Kind.DIRECTORY:
            mistakes.append(f"`{entry.path}` is not a folder, and another layer has it as one")
    if mistakes:
        raise BuildError(f"`{tree}` cannot become a layer:\n" + some_lines(mistakes))
    return tuple(parts)


def root_entry(entry: Entry, epoch: int) -> Entry:
    """Return an entry as root's, with one time, the mode 0755 or 0644 and no attributes; raises ValueError when a layer cannot hold it."""
    _need_usual(entry)
    if entry.kind is Kind.FILE and entry.mode & 0o6000:
        raise ValueError("it would run with the rights of another user (set-id bit)")
    mode = 0o755 if entry.kind is Kind.DIRECTORY or entry.mode & stat.S_IXUSR else 0o644
    mode = entry.mode if entry.kind is Kind.LINK else mode
    return replace(entry, mode=mode, uid=0, gid=0, mtime=epoch, xattrs=())


def scan(root: Path) -> Iterator[tuple[Entry, os.stat_result]]:
    """Yield every path below a folder, sorted, as root's entry without its digest."""
    top = os.fsencode(root)
    for name, status in sorted(_walk(top)):
        mode = status.st_mode
        kind = (
            Kind.LINK if stat.S_ISLNK(mode)
            else Kind.DIRECTORY if stat.S_ISDIR(mode)
            else Kind.FILE if stat.S_ISREG(mode)
            else Kind.SPECIAL
        )  # fmt: skip
        entry = Entry(
            path=from_bytes(name),
            kind=kind,
            mode=0o777 if kind is Kind.LINK else stat.S_IMODE(mode),
            mtime=int(status.st_mtime),
            size=status.st_size if kind is Kind.FILE else 0,
            target=from_bytes(os.readlink(top + b"/" + name)) if kind is Kind.LINK else "",  # noqa: PTH115 - names are bytes
        )
        yield entry, status


def _walk(root: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
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
            with os.scandir(root + b"/" + below) as items:
                for item in items:
                    path = below + item.name
                    entries.add(from_bytes(path))
                    yield path, item.stat(follow_symlinks=False)
                    if item.is_dir(follow_symlinks=False):
                        folders.append(path + b"/")
    except BudgetError as error:
        raise BuildError(f"`{os.fsdecode(root)}` cannot become a layer: {error}") from error


def _finish(
    members: Iterable[tuple[TarMember, object]], mistakes: list[str], *, source: Path, owners: Owners | None, epoch: int,
    plain: bool = False,
) -> tuple[TarMember, ...]:  # fmt: skip
    """Return the parts of a layer, sorted, with the root folder and the emptied files. Raises BuildError with all mistakes.

    Of files with the same key, the first has the content, and decides the owner of all.
    """
    root = Entry(path="", kind=Kind.DIRECTORY, mode=0o755, mtime=epoch)
    parts = {"": TarMember(entry=root)}
    holders: dict[object, str] = {}  # by key, the first path
    for member, key in members:
        path = member.entry.path
        first = holders.setdefault(key, path) if member.entry.kind is Kind.FILE else path
        entry = member.entry if owners is None else owners.get(first, Owner()).of(member.entry)
        try:
            entry = _clean(entry, epoch)
            entry = root_entry(entry, epoch) if plain else entry
        except ValueError as error:
            mistakes.append(f"`{path}`: {error}")
        else:
            parts[path] = replace(member, entry=entry, hard="" if plain or first == path else first)
    for path in _EMPTIED if "etc" in parts else ():
        parts[path] = TarMember(entry=Entry(path=path, kind=Kind.FILE, mode=0o644, mtime=epoch))
    folders = {path for path, part in parts.items() if part.entry.kind is Kind.DIRECTORY}
    mistakes += [
        f"`{path}`: its folder is not there"
        for path, part in parts.items()
        if path and part.entry.parent not in folders
    ]
    if mistakes:
        raise BuildError(f"`{source.name}` cannot become a layer:\n" + some_lines(mistakes))
    return tuple(sorted(parts.values(), key=lambda part: path_order(part.entry)))


def some_lines(lines: Sequence[str]) -> str:
    """Return the first lines of a message, and how many more there are."""
    more = f"\n… and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "\n".join(lines[:_SHOWN]) + more


def _judge(info: tarfile.TarInfo) -> TarMember:
    """Read a member; raises ValueError for a path that a layer cannot have."""
    member = read_member(info)
    if not is_normal(member.entry.path):
        raise ValueError(f"the path {info.name!r} is not plain")
    return member


def _is_dropped(path: str, drop: Collection[str]) -> bool:
    parts = path.split("/")
    above = ["/".join(parts[:count]) for count in range(1, len(parts))]
    dropped = (*_DROPPED, *drop)
    return path in dropped or any(folder in dropped or f"{folder}/*" in dropped for folder in above)


def _contents(members: Collection[TarMember]) -> dict[str, TarMember]:
    """Return for each path the member that has its content: of a hard link the first of its chain, if it is there before it."""
    contents: dict[str, TarMember] = {}
    for member in sorted(members, key=lambda member: member.offset):
        if not member.hard:
            contents[member.entry.path] = member
        elif member.hard in contents:
            contents[member.entry.path] = contents[member.hard]
    return contents


def _clean(entry: Entry, epoch: int) -> Entry:
    """Return the entry as a layer holds it; raises ValueError when it cannot."""
    _need_usual(entry)
    if not (0 <= entry.uid <= _MOST_ID and 0 <= entry.gid <= _MOST_ID and entry.size >= 0):
        raise ValueError("its owner or size is out of range")
    for_all = entry.mode & 0o002 and entry.kind is not Kind.LINK
    if for_all and not (entry.kind is Kind.DIRECTORY and entry.mode & 0o1000):
        raise ValueError(f"everybody could write it (mode {entry.mode:04o})")
    if entry.kind is Kind.LINK and (not entry.target or "\0" in entry.target):
        raise ValueError("it is a link to nothing")
    # A folder's time depends on the order of an installation.
    mtime = epoch if entry.kind is Kind.DIRECTORY else max(0, min(entry.mtime, epoch))
    xattrs = tuple((name, value) for name, value in entry.xattrs if _is_kept(name))
    return replace(entry, mtime=mtime, xattrs=xattrs)


def _need_usual(entry: Entry) -> None:
    """Raise ValueError for a whiteout, and for a device, a pipe or a socket."""
    if not is_normal(entry.path):
        raise ValueError("a name like this would delete files of lower layers")
    if entry.kind is Kind.SPECIAL:
        raise ValueError("it is neither a file nor a folder nor a link")


def _is_kept(name: str) -> bool:
    """Whether a layer keeps an extended attribute: file capabilities and users' own, never a host's labels."""
    return name == "security.capability" or (name.startswith("user.") and not name.startswith(_HOST_XATTRS))
