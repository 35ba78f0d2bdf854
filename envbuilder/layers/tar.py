"""Read and write tar members as entries.

Headers are written byte by byte, because a layer's digest must not change with a Python release: ustar, with
a PAX header in front where ustar has no room (long or non-ASCII paths, big files, extended attributes).
`read_member` converts a member of any tar, as Python's `tarfile` read it.
"""

import math
import stat
import tarfile
from dataclasses import dataclass
from typing import Final

from envbuilder.layers.entry import Entry, Kind, to_bytes

BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)  # closes a tar
CHUNK: Final = 1 << 20

_HARD: Final = b"1"
_EXTENDED: Final = b"x"
_TYPES: Final = {Kind.FILE: b"0", Kind.LINK: b"2", Kind.DIRECTORY: b"5"}
_XATTR_NAME: Final = "SCHILY.xattr."
_MOST_OCTAL: Final = 0o77777777777  # 11 digits
_MOST_ID: Final = 0o7777777  # 7 digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One header as read, without `entry.sha256`. `hard` of a hard link is the first path of the same file."""

    entry: Entry
    hard: str = ""
    offset: int = 0  # of the content in the tar, bytes


def make_header(entry: Entry, *, hard: str = "") -> bytes:
    """Return the header blocks of an entry, or of a hard link to the path `hard`."""
    path = to_bytes(entry.path) + b"/" if entry.path else b"./"
    if entry.kind is not Kind.DIRECTORY:
        path = path[:-1]
    target = to_bytes(hard or entry.target)
    size = 0 if hard else entry.size
    records: list[tuple[bytes, bytes]] = []
    if len(path) > 100 or not path.isascii():
        records.append((b"path", path))
    if len(target) > 100 or not target.isascii():
        records.append((b"linkpath", target))
    numbers = ((b"size", size, _MOST_OCTAL), (b"uid", entry.uid, _MOST_ID), (b"gid", entry.gid, _MOST_ID))
    records += [(keyword, b"%d" % number) for keyword, number, most in numbers if number > most]
    records += [(to_bytes(_XATTR_NAME + name), value) for name, value in entry.xattrs]
    extended = b""
    if records:
        if not all(_is_utf8(value) for _, value in records):
            records.insert(0, (b"hdrcharset", b"BINARY"))
        body = b"".join(_record(keyword, value) for keyword, value in records)
        extended = _ustar(path=b"././@PaxHeader", mode=0o644, size=len(body), kind=_EXTENDED) + padded(body)
    return extended + _ustar(
        path=path[:100],
        mode=entry.mode,
        uid=entry.uid if entry.uid <= _MOST_ID else 0,
        gid=entry.gid if entry.gid <= _MOST_ID else 0,
        size=size if size <= _MOST_OCTAL else 0,
        mtime=entry.mtime,
        kind=_HARD if hard else _TYPES[entry.kind],
        target=target[:100],
    )


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % BLOCK)


def read_member(info: tarfile.TarInfo) -> Member:
    """Read a member of any tar; raises ValueError for a path that could leave the root or an invalid time.

    Whiteouts and special files are members as well: callers decide about them.
    """
    path = _below_root(info.name)
    if path and not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError(f"the path {info.name!r} is not plain")
    if not math.isfinite(info.mtime):
        raise ValueError(f"`{path}`: its time is {info.mtime}")
    kind = (
        Kind.DIRECTORY if info.isdir()
        else Kind.LINK if info.issym()
        else Kind.FILE if info.isreg() or info.islnk()
        else Kind.SPECIAL
    )  # fmt: skip
    entry = Entry(
        path=path,
        kind=kind,
        mode=0o777 if kind is Kind.LINK else stat.S_IMODE(info.mode),
        uid=info.uid,
        gid=info.gid,
        mtime=int(info.mtime),
        size=info.size if kind is Kind.FILE and not info.islnk() else 0,
        target={Kind.LINK: info.linkname, Kind.SPECIAL: _special(info)}.get(kind, ""),
        xattrs=tuple(
            (name.removeprefix(_XATTR_NAME), to_bytes(value))
            for name, value in sorted(info.pax_headers.items())
            if name.startswith(_XATTR_NAME)
        ),
    )
    return Member(
        entry=entry, hard=_below_root(info.linkname) if info.islnk() else "", offset=info.offset_data
    )


def _below_root(name: str) -> str:
    path = name.removeprefix("./").rstrip("/")
    return "" if path == "." else path


def _special(info: tarfile.TarInfo) -> str:
    if info.isblk() or info.ischr():
        return f"{'block' if info.isblk() else 'char'} {info.devmajor}:{info.devminor}"
    return "fifo" if info.isfifo() else "special"


def is_normal(path: str) -> bool:
    """Whether a path stays below the root, is in its normal spelling, and is not a whiteout."""
    parts = path.split("/")
    hidden = any(part in ("", ".", "..") or part.startswith(".wh.") for part in parts)
    return not path or not (hidden or "\0" in path)


def _ustar(
    *,
    path: bytes,
    mode: int,
    size: int,
    kind: bytes,
    uid: int = 0,
    gid: int = 0,
    mtime: int = 0,
    target: bytes = b"",
) -> bytes:
    name, link = path.ljust(100, b"\0"), target.ljust(100, b"\0")
    before = b"%b%07o\0%07o\0%07o\0%011o\0%011o\0" % (name, mode, uid, gid, size, mtime)
    after = (b"%b%bustar\00000" % (kind, link)).ljust(BLOCK - 156, b"\0")
    return b"%b%06o\0 %b" % (before, sum(before) + 8 * 0x20 + sum(after), after)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _record(keyword: bytes, value: bytes) -> bytes:
    """Return a PAX record. It begins with its own length in decimal digits."""
    rest = b" %b=%b\n" % (keyword, value)
    size = len(rest)
    while len(b"%d" % size) + len(rest) != size:
        size = len(b"%d" % size) + len(rest)
    return b"%d%b" % (size, rest)
