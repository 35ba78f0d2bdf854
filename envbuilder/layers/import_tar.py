"""Turn another program's tar of a root file system into the entries of a layer.

The tar is never extracted: its members are indexed and checked, and contents are read at their
offsets. That needs no root, and a hostile member has nothing to write to.
"""

import tarfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from envbuilder.core.archive import DAMAGED_TAR, BoundedTar
from envbuilder.core.errors import BuildError
from envbuilder.layers.entry import Entry, Kind, path_order, to_bytes
from envbuilder.layers.tar import Member, is_normal, read_member

# Made by container runtimes.
DROPPED: Final = ("dev/*", "proc/*", "sys/*", "run/secrets", ".dockerenv")
# Files that a runtime replaces, or that name the build machine: present and empty in every layer.
EMPTIED: Final = ("etc/hostname", "etc/hosts", "etc/machine-id", "etc/resolv.conf")
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
        """Return an entry with this owner."""
        others = 0 if entry.kind is Kind.DIRECTORY else 0o6000 & ~self.special
        mode = entry.mode & ~(others | self.added) if entry.kind is not Kind.LINK else entry.mode
        return replace(entry, uid=self.uid, gid=self.gid, mode=mode, xattrs=self.xattrs)


Owners: TypeAlias = Mapping[str, Owner]  # by path


def index_tar(
    tar: Path, *, epoch: int, drop: Collection[str] = (), owners: Owners | None = None
) -> tuple[Member, ...]:
    """Return the paths of the layer, sorted; raises BuildError with every member that a layer cannot hold.

    `drop` names paths that go with all below them; `name/*` keeps the folder itself. With `owners`, those of the tar do not count.
    """
    try:
        with BoundedTar.open(tar, "r:") as opened:
            found = opened.getmembers()
    except DAMAGED_TAR as error:
        raise BuildError(f"`{tar.name}` is not a tar that can be read: {error}") from error
    everything: dict[str, Member] = {}
    named: dict[str, Member] = {}
    mistakes: list[str] = []
    for one in found:
        try:
            member = _judge(one)
        except ValueError as error:
            mistakes.append(str(error))
            continue
        path = member.entry.path
        if path in named:
            mistakes.append(f"`{path}` is there twice")
        elif not is_dropped(path, (*DROPPED, *drop)):
            named[path] = member
        everything[path] = member
    contents = _contents(everything.values())
    parts: dict[str, Member] = {}
    holders: dict[int, str] = {}  # the offset of a content, and the first path with it
    for path in sorted(named, key=to_bytes):
        if path not in contents:
            mistakes.append(
                f"`{path}`: it is a hard link to {named[path].hard!r}, which is not there before it"
            )
            continue
        source = contents[path]
        first = holders.setdefault(source.offset, path) if source.entry.kind is Kind.FILE else path
        owned = source.entry if owners is None else owners.get(first, Owner()).of(source.entry)
        try:
            entry = clean(path, owned, epoch)
        except ValueError as error:
            mistakes.append(f"`{path}`: {error}")
            continue
        parts[path] = Member(entry=entry, offset=source.offset, hard="" if first == path else first)
    return finish(parts, mistakes, tar, epoch)


def finish(
    parts: Mapping[str, Member], mistakes: Sequence[str], source: Path, epoch: int
) -> tuple[Member, ...]:
    """Return the parts of a layer, sorted, with the root folder and the emptied files. Raises BuildError with all mistakes."""
    every = {
        "": Member(entry=Entry(path="", kind=Kind.DIRECTORY, mode=0o755, uid=0, gid=0, mtime=epoch)),
        **parts,
    }
    for path in EMPTIED if "etc" in parts else ():
        empty = Entry(path=path, kind=Kind.FILE, mode=0o644, uid=0, gid=0, mtime=epoch)
        every[path] = Member(entry=empty)
    folders = {path for path, part in every.items() if part.entry.kind is Kind.DIRECTORY}
    lost = (
        f"`{path}`: its folder is not there"
        for path in every
        if path and path.rpartition("/")[0] not in folders
    )
    if wrong := [*mistakes, *lost]:
        raise BuildError(f"`{source.name}` cannot become a layer:\n" + some_lines(wrong))
    return tuple(sorted(every.values(), key=lambda part: path_order(part.entry)))


def some_lines(lines: Sequence[str]) -> str:
    """Return the first lines of a message, and how many more there are."""
    more = f"\n… and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "\n".join(lines[:_SHOWN]) + more


def plain_parts(parts: Collection[Member], *, epoch: int) -> tuple[Member, ...]:
    """Normalize the parts as `write_layer` does: owned by root, one time, modes 0755 and 0644, no hard links."""
    mistakes = [
        part.entry.path for part in parts if part.entry.mode & 0o6000 and part.entry.kind is Kind.FILE
    ]
    if mistakes:
        raise BuildError(
            "these would run with the rights of another user (set-id bit): " + " ".join(mistakes[:_SHOWN])
        )
    return tuple(
        replace(
            part,
            entry=replace(part.entry, mode=_plain_mode(part.entry), uid=0, gid=0, mtime=epoch, xattrs=()),
            hard="",
        )
        for part in parts
    )


def _plain_mode(entry: Entry) -> int:
    if entry.kind is Kind.LINK:
        return 0o777
    return 0o755 if entry.kind is Kind.DIRECTORY or entry.mode & 0o100 else 0o644


def _judge(found: tarfile.TarInfo) -> Member:
    """Read a member; raises ValueError for a path that a layer cannot have."""
    member = read_member(found)
    if not is_normal(member.entry.path):
        raise ValueError(f"the path {found.name!r} is not plain")
    return member


def is_dropped(path: str, drop: Collection[str]) -> bool:
    parts = path.split("/")
    above = ["/".join(parts[:count]) for count in range(1, len(parts))]
    return path in drop or any(folder in drop or f"{folder}/*" in drop for folder in above)


def _contents(members: Collection[Member]) -> dict[str, Member]:
    """Return for each path the member that has its content: of a hard link the first of its chain, if it is there before it."""
    contents: dict[str, Member] = {}
    for member in sorted(members, key=lambda member: member.offset):
        if not member.hard:
            contents[member.entry.path] = member
        elif member.hard in contents:
            contents[member.entry.path] = contents[member.hard]
    return contents


def clean(path: str, found: Entry, epoch: int) -> Entry:
    """Return the entry as a layer holds it; raises ValueError when it cannot."""
    if found.kind is Kind.SPECIAL:
        raise ValueError("it is neither a file nor a folder nor a link")
    if not (0 <= found.uid <= _MOST_ID and 0 <= found.gid <= _MOST_ID and found.size >= 0):
        raise ValueError("its owner or size is out of range")
    for_all = found.mode & 0o002 and found.kind is not Kind.LINK
    if for_all and not (found.kind is Kind.DIRECTORY and found.mode & 0o1000):
        raise ValueError(f"everybody could write it (mode {found.mode:04o})")
    if found.kind is Kind.LINK and (not found.target or "\0" in found.target):
        raise ValueError("it is a link to nothing")
    # A folder's time depends on the order of an installation.
    mtime = epoch if found.kind is Kind.DIRECTORY else max(0, min(found.mtime, epoch))
    kept = tuple((name, value) for name, value in found.xattrs if _is_kept(name))
    return replace(found, path=path, mtime=mtime, xattrs=kept)


def _is_kept(name: str) -> bool:
    """Whether a layer keeps an extended attribute: file capabilities and users' own, never a host's labels."""
    return name == "security.capability" or (name.startswith("user.") and not name.startswith(_HOST_XATTRS))
