"""One path of a tree: as a value, as one line of a manifest, and as a member of a tar.

Image, SIF and plan are compared by these lines, so a path has one spelling. Bytes that terminals or
line-based tools could misread are escaped. Nothing in a line depends on the machine that wrote the tree.

Headers of a tar are written byte by byte, because a layer's digest must not change with a Python release: ustar, with
a PAX header in front where ustar has no room (long or non-ASCII paths, big files, extended attributes).
`read_member` converts a member of any tar, as Python's `tarfile` read it.
"""

import functools
import math
import re
import stat
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from envbuilder.core.cache import Sha256, parse_sha256, sha256_text

_PLAIN: Final = re.compile(r"[!-\[\]-~]+")  # printable ASCII without space and backslash
_ESCAPED: Final = re.compile(rb"\\x([0-9a-f]{2})")
_ROOT: Final = "."  # how the root, whose path is empty, is written
_NOTHING: Final = "-"  # in place of content, for a directory
_MOST_LINKS: Final = 40  # links that a path may go through, as in Linux

BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)  # closes a tar
CHUNK: Final = 1 << 20

_HARD: Final = b"1"
_EXTENDED: Final = b"x"
_XATTR_NAME: Final = "SCHILY.xattr."
_MOST_OCTAL: Final = 0o77777777777  # 11 digits
_MOST_ID: Final = 0o7777777  # 7 digits


class Readable(Protocol):
    """A stream of bytes, from a file or from the network."""

    def read(self, size: int, /) -> bytes: ...


class Kind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    SPECIAL = "special"  # a device, fifo or socket: in foreign images only


_TYPES: Final = {Kind.FILE: b"0", Kind.LINK: b"2", Kind.DIRECTORY: b"5"}  # in a tar


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A path below the root (`""` is the root itself) and everything that an artifact keeps of it.

    A hard link is a plain file here: image and SIF name different first links of the same file.
    Bytes of a path that are not UTF-8 are kept as lone surrogates (PEP 383).
    """

    path: str
    kind: Kind
    mode: int  # permission, set-id and sticky bits; 0o777 for every link
    uid: int = 0
    gid: int = 0
    mtime: int  # seconds
    size: int = 0  # bytes of a file, else 0
    sha256: str = ""  # of a file's content, else empty
    target: str = ""  # of a link; what a special file is; else empty
    xattrs: tuple[tuple[str, bytes], ...] = ()  # sorted by name

    @property
    def parent(self) -> str:
        return self.path.rpartition("/")[0]

    def __str__(self) -> str:
        path = _ROOT if not self.path else _escape(self.path) if self.path != _ROOT else "\\x2e"
        content = self.sha256 or (_escape(self.target) if self.target else _NOTHING)
        xattrs = "".join(f" {_escape(name)}={value.hex()}" for name, value in self.xattrs)
        return (
            f"{self.kind.value} {self.mode:04o} {self.uid}:{self.gid} {self.size} {self.mtime} "
            f"{path} {content}{xattrs}"
        )


def to_bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def from_bytes(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def parse_entry(line: str) -> Entry:
    """Read one manifest line; raises ValueError for anything that `str(entry)` does not write."""
    try:
        kind, mode, owner, size, mtime, path, content, *xattrs = line.split(" ")
        uid, gid = owner.split(":")
        kind = Kind(kind)
        entry = Entry(
            path="" if path == _ROOT else _unescape(path),
            kind=kind,
            mode=int(mode, 8),
            uid=int(uid),
            gid=int(gid),
            size=int(size),
            mtime=int(mtime),
            sha256=parse_sha256(content) if kind is Kind.FILE else "",
            target=_unescape(content) if kind in (Kind.LINK, Kind.SPECIAL) else "",
            xattrs=tuple(
                (_unescape(name), bytes.fromhex(value))
                for name, _, value in (x.rpartition("=") for x in xattrs)
            ),
        )
    except ValueError as error:
        raise ValueError(f"expected a manifest line, found {line!r}") from error
    return entry


def make_manifest(entries: Iterable[Entry]) -> str:
    """Return the lines of the entries, sorted by path."""
    return "".join(f"{entry}\n" for entry in sorted(entries, key=path_order))


# A build reads each layer's up to seven times, and an environment has some 40,000 lines.
@functools.lru_cache(8)
def parse_manifest(text: str) -> tuple[Entry, ...]:
    return tuple(parse_entry(line) for line in text.splitlines())


def tree_digest(entries: Iterable[Entry]) -> Sha256:
    """The identity of a tree, whatever holds it: sha256 of its manifest."""
    return sha256_text(make_manifest(entries))


def path_order(entry: Entry) -> bytes:
    """Sort a parent before its children, equally on every machine."""
    return to_bytes(entry.path)


def follow(paths: Mapping[str, Entry], path: str, *, last: bool = True) -> str | None:
    """Follow links below the root and return the path they end at, None if it is not there or there are too many links.

    Without `last`, only links above the path are followed, and nothing has to be there: a tar may bring it.
    """
    parts, real, links = path.split("/"), list[str](), 0
    while parts:
        part = parts.pop(0)
        if part in ("", ".", ".."):
            real = real[:-1] if part == ".." else real
            continue
        real.append(part)
        entry = paths.get("/".join(real)) if parts or last else None
        if entry is None and last:
            return None
        if entry is not None and entry.kind is Kind.LINK:
            links += 1
            if links > _MOST_LINKS:
                return None
            real = [] if entry.target.startswith("/") else real[:-1]
            parts = entry.target.split("/") + parts
    return "/".join(real)


def _escape(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    return "".join(
        chr(byte) if 0x21 <= byte <= 0x7E and byte != 0x5C else f"\\x{byte:02x}" for byte in to_bytes(text)
    )


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return from_bytes(_ESCAPED.sub(lambda match: bytes.fromhex(match[1].decode()), text.encode("ascii")))


@dataclass(frozen=True, slots=True, kw_only=True)
class TarMember:
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


def read_member(info: tarfile.TarInfo) -> TarMember:
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
    return TarMember(
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
