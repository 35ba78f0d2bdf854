"""The inventory of a folder in the cache: each path with its state, and the sha256 of its content.

A folder is compared with its inventory before it is used. A file whose state is as noted is not read again: size,
mode, owner, time of modification and time of change. No program can set the time of change, so what it wrote or moved
there is noticed, whatever it did to the other times. A file with another state is hashed, and is right if its content
is. What the disk changes by itself changes no state, and is noticed only where every file is hashed.
"""

import errno
import hashlib
import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from envbuilder.core.system import NO_LINKS

UNKNOWN: Final = ""  # the content of a file that was not hashed
# Bytes of one folder: the objects of the largest CUDA projects have some hundred MB.
MOST_HASHED: Final = 8 << 30
_SECOND: Final = 1_000_000_000  # nanoseconds
_TICK: Final = 20_000_000  # nanoseconds: times of files move on in ticks of at most 10 ms
_WAIT: Final = os.O_NONBLOCK  # a FIFO in place of a file must not block the open
_MODE: Final = 0o177777


@dataclass(frozen=True, slots=True)
class InventoryItem:
    """One path. `kept` must stay as it is. `state` changes with each write, and with each new hard link too."""

    kept: str  # type, mode, owner, size of a file
    state: str
    content: str  # sha256 of a file, target of a link


@dataclass(frozen=True, slots=True)
class Inventory:
    """The items of a folder by their paths below it, the folder itself left out."""

    items: Mapping[bytes, InventoryItem]

    @classmethod
    def take(
        cls, folder: Path, contents: Mapping[str, str] | None = None, leave_out: Collection[str] = ()
    ) -> Self:
        """Note a folder that nobody writes any more. `contents` are known digests by path; None hashes every file.

        `leave_out` are names at the top of the folder. Raises OSError for a folder of more bytes than are worth hashing, as
        a project may leave one with a sparse file of a terabyte.
        """
        items: dict[bytes, InventoryItem] = {}
        newest, left, top = 0, MOST_HASHED, os.fsencode(folder) + b"/"
        for path, status in _scan(folder, leave_out):
            content = UNKNOWN
            left -= status.st_size if contents is None else 0
            if left < 0:
                raise OSError(errno.EFBIG, f"more than {MOST_HASHED} bytes", str(folder))
            if stat.S_ISLNK(status.st_mode):
                content = os.fsdecode(os.readlink(top + path))  # noqa: PTH115 - names are bytes
            elif stat.S_ISREG(status.st_mode):
                content = _hash(top + path) if contents is None else contents.get(os.fsdecode(path), UNKNOWN)
            items[path] = InventoryItem(_kept(status), _state(status), content)
            newest = max(newest, status.st_ctime_ns)
        tick = _TICK if newest % _SECOND else 2 * _SECOND  # old file systems have whole seconds
        if time.time_ns() - newest < tick:
            time.sleep(tick / _SECOND)  # the next write gets another time
        return cls(items)

    def compare(self, folder: Path, *, whole: bool, leave_out: Collection[str] = ()) -> "Inventory | str":
        """Return how the folder differs, otherwise its inventory with the states of now. `whole` hashes every file."""
        items: dict[bytes, InventoryItem] = {}
        top = os.fsencode(folder) + b"/"
        for path, status in _scan(folder, leave_out):
            item = self.items.get(path)
            if item is None:
                return f"`{os.fsdecode(path)}` was added"
            state = _state(status)
            if item.kept != _kept(status):
                return f"`{os.fsdecode(path)}` differs"
            if stat.S_ISLNK(status.st_mode):
                if item.content != os.fsdecode(os.readlink(top + path)):  # noqa: PTH115 - names are bytes
                    return f"`{os.fsdecode(path)}` differs"
            elif stat.S_ISREG(status.st_mode) and (item.state != state or (whole and item.content)):
                if item.content != _hash(top + path):
                    return f"`{os.fsdecode(path)}` differs"
                item = InventoryItem(item.kept, state, item.content)
            items[path] = item
        if len(items) < len(self.items):
            return f"`{os.fsdecode(min(self.items.keys() - items.keys()))}` is gone"
        return Inventory(items)

    def to_bytes(self) -> bytes:
        """Return the text of a file whose first line is the sha256 of the others."""
        words = (
            word
            for path, item in self.items.items()
            for word in (path, item.kept.encode(), item.state.encode(), os.fsencode(item.content))
        )
        text = b"\0".join(words)
        return hashlib.sha256(text).hexdigest().encode() + b"\n" + text


def parse_inventory(content: bytes) -> Inventory:
    """Raises ValueError for anything that `to_bytes` does not write."""
    digest, _, text = content.partition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        raise ValueError("expected the sha256 of what follows")
    words = text.split(b"\0") if text else []
    every = zip(words[::4], words[1::4], words[2::4], words[3::4], strict=True)
    return Inventory({
        path: InventoryItem(kept.decode(), state.decode(), os.fsdecode(content)) for path, kept, state, content in every
    })  # fmt: skip


def _scan(folder: Path, leave_out: Collection[str]) -> Iterator[tuple[bytes, os.stat_result]]:
    """Yield the paths below a folder, links not followed. A folder has 40,000 paths, so each costs one call."""
    top = os.fsencode(folder)
    left: list[bytes] = [b""]
    while left:
        below = left.pop()
        with os.scandir(top + b"/" + below if below else top) as entries:
            for entry in entries:
                if not below and os.fsdecode(entry.name) in leave_out:
                    continue
                status = entry.stat(follow_symlinks=False)
                path = below + b"/" + entry.name if below else entry.name
                yield path, status
                if stat.S_ISDIR(status.st_mode):
                    left.append(path)


def _kept(status: os.stat_result) -> str:
    """Return what a copy of the cache keeps. The owner is named unless it is this user, whom a copy may change."""
    own = status.st_uid != os.geteuid()
    size = status.st_size if stat.S_ISREG(status.st_mode) else 0
    return f"{status.st_mode & _MODE:o} {status.st_uid if own else '-'} {size}"


def _state(status: os.stat_result) -> str:
    """Return what no write leaves as it is. Folders have none: their names are compared."""
    if not stat.S_ISREG(status.st_mode):
        return ""
    return f"{status.st_mtime_ns} {status.st_ctime_ns}"


def _hash(path: bytes) -> str:
    """Return the sha256 of a regular file, another word for anything else that may be there by now."""
    descriptor = os.open(path, os.O_RDONLY | NO_LINKS | _WAIT)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return "no file"
        return hashlib.file_digest(stream, "sha256").hexdigest()
