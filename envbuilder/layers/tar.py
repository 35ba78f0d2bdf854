"""Read and write tar members as entries.

Headers are written byte by byte, because a layer's digest must not change with a Python release:
ustar, and one PAX header in front where ustar has no room (long or non-ASCII paths, big files,
extended attributes). `TarReader` accepts only such tars and compares every byte of a header.
`read_member` converts a member of any tar, as Python's `tarfile` read it.
"""

import math
import stat
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from envbuilder.layers.entry import Entry, Kind, from_bytes, to_bytes

BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)  # what closes a tar
CHUNK: Final = 1 << 20

_REGULAR: Final = b"0"
_HARD: Final = b"1"
_SYMBOLIC: Final = b"2"
_DIRECTORY: Final = b"5"
_EXTENDED: Final = b"x"
_TYPES: Final = {Kind.FILE: _REGULAR, Kind.DIRECTORY: _DIRECTORY, Kind.LINK: _SYMBOLIC}
_XATTR_NAME: Final = "SCHILY.xattr."
_XATTR: Final = _XATTR_NAME.encode()
_MOST_PAX: Final = 1 << 20  # bytes of one PAX header that is read
_MOST_OCTAL: Final = 0o77777777777  # 11 digits
_MOST_ID: Final = 0o7777777  # 7 digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One header as read. `entry.sha256` is empty; `hard` names the first link, whose content this path shares."""

    entry: Entry
    hard: str = ""
    offset: int = 0  # of the content in the tar, bytes; not of a canonical tar


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
    if size > _MOST_OCTAL:
        records.append((b"size", b"%d" % size))
    if entry.uid > _MOST_ID:
        records.append((b"uid", b"%d" % entry.uid))
    if entry.gid > _MOST_ID:
        records.append((b"gid", b"%d" % entry.gid))
    records += [(_XATTR + to_bytes(name), value) for name, value in entry.xattrs]
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


class TarReader:
    """Reads canonical tars from chunks of any size; raises ValueError for any byte that `make_header` would write differently.

    Iterate over the members. `content` gives the bytes of the current one.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._chunk = memoryview(b"")
        self._left = 0  # bytes of content not read yet
        self._padding = 0

    def __iter__(self) -> Iterator[Member]:
        while True:
            for _ in self.content():
                pass
            if any(self._take(self._padding)):
                raise ValueError("the padding after a file is not empty")
            header = self._take(BLOCK)
            if not any(header):
                if any(self._take(BLOCK)) or self._chunk or any(self._chunks):
                    raise ValueError("there is data after the end")
                return
            yield self._member(header)

    def content(self) -> Iterator[memoryview]:
        """Yield the content of the current file in pieces. Unread content is skipped."""
        while self._left:
            piece = self._some(self._left)
            self._left -= len(piece)
            yield piece

    def _member(self, header: bytes) -> Member:
        extended: dict[bytes, bytes] = {}
        raw = header
        if header[156:157] == _EXTENDED:
            size = _number(header[124:136])
            if size > _MOST_PAX:
                raise ValueError(f"a PAX header of {size} bytes")
            raw += self._take(size + -size % BLOCK)
            extended = dict(_records(raw[BLOCK : BLOCK + size]))
            header = self._take(BLOCK)
            raw += header
        kinds = {_REGULAR: Kind.FILE, _HARD: Kind.FILE, _DIRECTORY: Kind.DIRECTORY, _SYMBOLIC: Kind.LINK}
        flag = header[156:157]
        if flag not in kinds:
            raise ValueError(f"a member of type {flag!r}")
        path = from_bytes(extended.get(b"path") or header[:100].rstrip(b"\0"))
        target = from_bytes(extended.get(b"linkpath") or header[157:257].rstrip(b"\0"))
        size = int(extended.get(b"size") or _number(header[124:136]))
        entry = Entry(
            path="" if path == "./" else path.removesuffix("/"),
            kind=kinds[flag],
            mode=_number(header[100:108]),
            uid=int(extended.get(b"uid") or _number(header[108:116])),
            gid=int(extended.get(b"gid") or _number(header[116:124])),
            mtime=_number(header[136:148]),
            size=size,
            target=target if flag == _SYMBOLIC else "",
            xattrs=tuple(
                (from_bytes(k.removeprefix(_XATTR)), v) for k, v in extended.items() if k.startswith(_XATTR)
            ),
        )
        member = Member(entry=entry, hard=target if flag == _HARD else "")
        if raw != make_header(entry, hard=member.hard):
            raise ValueError(f"the header of {path!r} is not in the one form that envbuilder writes")
        for name in (entry.path, member.hard):
            if not is_normal(name):
                raise ValueError(f"the path {name!r} is not plain")
        self._left = size
        self._padding = -size % BLOCK
        return member

    def _some(self, most: int) -> memoryview:
        if not self._chunk:
            self._chunk = memoryview(next(self._chunks, b""))
            if not self._chunk:
                raise ValueError("it ends too early")
        piece, self._chunk = self._chunk[:most], self._chunk[most:]
        return piece

    def _take(self, size: int) -> bytes:
        if len(self._chunk) >= size:
            piece, self._chunk = self._chunk[:size], self._chunk[size:]
            return bytes(piece)
        pieces = bytearray()
        while len(pieces) < size:
            pieces += self._some(size - len(pieces))
        return bytes(pieces)


def read_member(found: tarfile.TarInfo) -> Member:
    """Read a member of any program's tar; raises ValueError for a path that could leave the root or a time that is none.

    Whiteouts and special files are members as well: callers decide about them.
    """
    path = _below_root(found.name)
    if path and not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError(f"the path {found.name!r} is not plain")
    if not math.isfinite(found.mtime):
        raise ValueError(f"`{path}`: its time is {found.mtime}")
    kind = _kind(found)
    entry = Entry(
        path=path,
        kind=kind,
        mode=0o777 if kind is Kind.LINK else stat.S_IMODE(found.mode),
        uid=found.uid,
        gid=found.gid,
        mtime=int(found.mtime),
        size=found.size if kind is Kind.FILE and not found.islnk() else 0,
        target={Kind.LINK: found.linkname, Kind.SPECIAL: _special(found)}.get(kind, ""),
        xattrs=tuple(
            (name.removeprefix(_XATTR_NAME), value.encode("utf-8", "surrogateescape"))
            for name, value in sorted(found.pax_headers.items())
            if name.startswith(_XATTR_NAME)
        ),
    )
    return Member(
        entry=entry,
        hard=_below_root(found.linkname) if found.islnk() else "",
        offset=found.offset_data,
    )


def _below_root(name: str) -> str:
    path = name.removeprefix("./").rstrip("/")
    return "" if path == "." else path


def _kind(found: tarfile.TarInfo) -> Kind:
    if found.isdir():
        return Kind.DIRECTORY
    if found.issym():
        return Kind.LINK
    return Kind.FILE if found.isreg() or found.islnk() else Kind.SPECIAL


def _special(found: tarfile.TarInfo) -> str:
    if found.isblk() or found.ischr():
        return f"{'block' if found.isblk() else 'char'} {found.devmajor}:{found.devminor}"
    return "fifo" if found.isfifo() else "special"


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


def _number(field: bytes) -> int:
    return int(field.rstrip(b"\0 ") or b"0", 8)


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


def _records(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    while body:
        digits, _, _ = body.partition(b" ")
        size = int(digits)
        if not len(digits) < size <= len(body):
            raise ValueError("a PAX record of a wrong length")
        keyword, _, value = body[len(digits) + 1 : size - 1].partition(b"=")
        yield keyword, value
        body = body[size:]
