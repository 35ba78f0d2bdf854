"""One path of a tree, as a value and as one line of a manifest.

Image, SIF and plan are compared by these lines, so a path has one spelling. Bytes that terminals or
line-based tools could misread are escaped. Nothing in a line depends on the machine that wrote the tree.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from envbuilder.core.cache import Sha256, parse_sha256, sha256_text

_PLAIN: Final = re.compile(r"[!-\[\]-~]+")  # printable ASCII without space and backslash
_ESCAPED: Final = re.compile(rb"\\x([0-9a-f]{2})")
_ROOT: Final = "."  # how the root, whose path is empty, is written
_NOTHING: Final = "-"  # in place of content, for a directory
_MOST_LINKS: Final = 40  # links that a path may go through, as in Linux


class Kind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    SPECIAL = "special"  # a device, fifo or socket: in foreign images only


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A path below the root (`""` is the root itself) and everything that an artifact keeps of it.

    A hard link is a plain file here: image and SIF name different first links of the same file.
    Bytes of a path that are not UTF-8 are kept as lone surrogates (PEP 383).
    """

    path: str
    kind: Kind
    mode: int  # permission, set-id and sticky bits; 0o777 for every link
    uid: int
    gid: int
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


def follow(paths: Mapping[str, Entry], path: str) -> str | None:
    """Follow links below the root and return the path they end at, or None."""
    left = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    done: list[str] = []
    links = 0
    while left:
        part = left.pop()
        if part == "..":
            done = done[:-1]
            continue
        entry = paths.get("/".join((*done, part)))
        if entry is None:
            return None
        if entry.kind is Kind.LINK:
            links += 1
            if links > _MOST_LINKS:
                return None
            if entry.target.startswith("/"):
                done = []
            left += [step for step in reversed(entry.target.split("/")) if step not in ("", ".")]
        else:
            done.append(part)
    return "/".join(done)


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
