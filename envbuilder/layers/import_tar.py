"""What another program's tar of a root file system becomes as a layer: which members stay, in which order, as what.

The tar is never extracted: it is indexed, judged, and its contents are read from their places. That needs no root and
leaves a hostile member nothing to write to.
"""

import tarfile
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from envbuilder.core.errors import BuildError
from envbuilder.layers.entry import Entry, Kind, path_order
from envbuilder.layers.tar import is_normal

DROPPED: Final = (
    "dev/*",
    "proc/*",
    "sys/*",
    "run/secrets",
    ".dockerenv",
)  # what a runtime brings, or left behind
# Files that a runtime replaces or that would carry the build machine's name: always there, always empty.
EMPTIED: Final = ("etc/hostname", "etc/hosts", "etc/machine-id", "etc/resolv.conf")
_HOST_XATTRS: Final = ("user.rootlesscontainers", "user.overlay.", "user.fuseoverlayfs.")
_SHOWN: Final = 10  # how many mistakes an error names
_XATTR: Final = "SCHILY.xattr."
_MOST_ID: Final = 0xFFFFFFFE  # what a squashfs can hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One path of the layer to be: `first` is the path that holds its content (another one for a hard link)."""

    entry: Entry
    offset: int = 0  # of the content in the tar, bytes
    first: str = ""


def index_tar(tar: Path, *, epoch: int, drop: Collection[str] = ()) -> tuple[Part, ...]:
    """The parts of a layer, sorted by path, the root first. Raises BuildError with every member that cannot be in one.

    `drop` names paths that go with all below them; `name/*` keeps the folder itself.
    """
    try:
        with tarfile.open(tar, "r:") as opened:
            members = opened.getmembers()
    except (tarfile.TarError, OSError, UnicodeError, ValueError) as error:
        raise BuildError(f"`{tar.name}` is not a tar that can be read: {error}") from error
    named: dict[str, tarfile.TarInfo] = {}
    mistakes: list[str] = []
    for member in members:
        path = _plain(member.name)
        if path is None:
            mistakes.append(f"the path {member.name!r} is not plain")
        elif path in named:
            mistakes.append(f"`{path}` is there twice")
        elif not _is_dropped(path, (*DROPPED, *drop)):
            named[path] = member
    everything = {_plain(member.name): member for member in members}
    parts = {"": Part(entry=Entry(path="", kind=Kind.DIRECTORY, mode=0o755, uid=0, gid=0, mtime=epoch))}
    holders: dict[int, Part] = {}
    for path in sorted(named, key=lambda path: path.encode("utf-8", "surrogateescape")):
        try:
            source = _content_of(named[path], everything)
            entry = _make_entry(path, source, epoch)
        except (ValueError, OverflowError) as error:
            mistakes.append(f"`{path}`: {error}")
            continue
        part = Part(entry=entry, offset=source.offset_data)
        if entry.kind is Kind.FILE:
            first = holders.setdefault(source.offset, part)
            part = replace(part, first=first.entry.path)
        parts[path] = part
    for path in EMPTIED:
        if "etc" in parts:
            parts[path] = _emptied(path, epoch)
    mistakes += [f"`{p}`: its folder is not there" for p in parts if p and not _has_parent(parts, p)]
    if mistakes:
        more = f"\n… and {len(mistakes) - _SHOWN} more" if len(mistakes) > _SHOWN else ""
        raise BuildError(f"`{tar.name}` cannot become a layer:\n" + "\n".join(mistakes[:_SHOWN]) + more)
    return tuple(sorted(parts.values(), key=lambda part: path_order(part.entry)))


def plain_parts(parts: Collection[Part], *, epoch: int) -> tuple[Part, ...]:
    """The same as a folder that we fill ourselves would give them: root's, of one time, modes 0755 and 0644, each file its own."""
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
            first=part.entry.path,
        )
        for part in parts
    )


def _plain_mode(entry: Entry) -> int:
    if entry.kind is Kind.LINK:
        return 0o777
    return 0o755 if entry.kind is Kind.DIRECTORY or entry.mode & 0o100 else 0o644


def _plain(name: str) -> str | None:
    """The path below the root, or None when a name could mean anything else."""
    path = name.removeprefix("./").removesuffix("/")
    if path == ".":
        path = ""
    return path if is_normal(path) else None


def _is_dropped(path: str, drop: Collection[str]) -> bool:
    parts = path.split("/")
    above = ["/".join(parts[:count]) for count in range(1, len(parts))]
    return path in drop or any(folder in drop or f"{folder}/*" in drop for folder in above)


def _content_of(member: tarfile.TarInfo, everything: dict[str | None, tarfile.TarInfo]) -> tarfile.TarInfo:
    """The member that a chain of hard links ends at; a member may link only to what came before it."""
    while member.islnk():
        path = _plain(member.linkname)
        target = everything.get(path) if path is not None else None
        if target is None or target.offset >= member.offset:
            raise ValueError(f"it is a hard link to {member.linkname!r}, which is not there before it")
        member = target
    return member


def _make_entry(path: str, member: tarfile.TarInfo, epoch: int) -> Entry:
    if member.issparse() or not (member.isreg() or member.isdir() or member.issym()):
        raise ValueError("it is neither a file nor a folder nor a link")
    if not (0 <= member.uid <= _MOST_ID and 0 <= member.gid <= _MOST_ID and member.size >= 0):
        raise ValueError("its owner or size is out of range")
    kind = Kind.FILE if member.isreg() else Kind.DIRECTORY if member.isdir() else Kind.LINK
    mode = 0o777 if kind is Kind.LINK else member.mode & 0o7777
    for_all = mode & 0o002 and kind is not Kind.LINK
    if for_all and not (kind is Kind.DIRECTORY and mode & 0o1000):
        raise ValueError(f"everybody could write it (mode {mode:04o})")
    if kind is Kind.LINK and (not member.linkname or "\0" in member.linkname):
        raise ValueError("it is a link to nothing")
    return Entry(
        path=path,
        kind=kind,
        mode=mode,
        uid=member.uid,
        gid=member.gid,
        # A folder's says when something was put into it last: another order of the same installation, another time.
        mtime=epoch if kind is Kind.DIRECTORY else max(0, min(int(member.mtime), epoch)),
        size=member.size if kind is Kind.FILE else 0,
        target=member.linkname if kind is Kind.LINK else "",
        xattrs=tuple(
            (name, value.encode("utf-8", "surrogateescape"))
            for name, value in sorted(
                (k.removeprefix(_XATTR), v) for k, v in member.pax_headers.items() if k.startswith(_XATTR)
            )
            if _is_kept(name)
        ),
    )


def _is_kept(name: str) -> bool:
    """Whether an extended attribute belongs to the tree: file capabilities and users' own, never a host's labels."""
    return name == "security.capability" or (name.startswith("user.") and not name.startswith(_HOST_XATTRS))


def _emptied(path: str, epoch: int) -> Part:
    entry = Entry(path=path, kind=Kind.FILE, mode=0o644, uid=0, gid=0, mtime=epoch)
    return Part(entry=entry, first=path)


def _has_parent(parts: dict[str, Part], path: str) -> bool:
    parent = parts.get(path.rpartition("/")[0])
    return parent is not None and parent.entry.kind is Kind.DIRECTORY
