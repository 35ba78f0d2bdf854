"""Lay the layers of any image over each other, as a container sees them: tars of gzip or zstd, with whiteouts.

A layer is read once, as a stream, and compared with its digest and its diff_id. Nothing is written.
"""

import gzip
import hashlib
import struct
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import IO, Final, Protocol, cast

import zstandard

from envbuilder.core.archive import BoundedTar
from envbuilder.core.budget import Entries, most_unpacked, need_within
from envbuilder.layers.entry import Entry, Kind
from envbuilder.layers.tar import CHUNK, Member, read_member

MOST_KEPT: Final = 64 << 20  # bytes of a file whose content is kept
_BUFFER: Final = 64 << 10  # bytes; tarfile copies what is left of its buffer after every header
_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
_MOST_LINKS: Final = 40  # above a path, as in Linux
DAMAGED: Final = (
    OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError,
    struct.error, tarfile.TarError, zlib.error, zstandard.ZstdError,
)  # fmt: skip


class Readable(Protocol):
    """A stream of bytes, from a file or from the network."""

    def read(self, size: int, /) -> bytes: ...


class FileScanner(Protocol):
    """Inspects files as they are read: `wants` chooses a file, `finds` reports what is in it."""

    def wants(self, entry: Entry) -> bool: ...
    def finds(self, content: bytes) -> Iterator[str]: ...


class Overlay(dict[str, Entry]):
    """The tree by path, layer after layer, with the contents of the files that `keep` chooses.

    `hidden` lists what `scanner` found in files that later layers hide. Everybody with the image has them.
    """

    def __init__(self, keep: Callable[[str], bool], scanner: FileScanner | None = None) -> None:
        super().__init__()
        self.keep = keep
        self.scanner = scanner
        self.hidden: list[tuple[str, str]] = []
        self._kept: dict[str, bytes] = {}
        self._found: dict[str, tuple[str, ...]] = {}
        self._entries = Entries()
        self._lower: dict[str, set[str]] = {}  # by folder, the paths in it that the layers below have

    def contents(self) -> dict[str, bytes]:
        """Return the kept contents of files that no later layer removed."""
        return {
            path: content
            for path, content in self._kept.items()
            if path in self and self[path].kind is Kind.FILE
        }

    def lay_over(self, stream: Readable, *, name: str, sha256: str, diff_id: str) -> None:
        """Add one layer. `sha256` is of the compressed bytes, "" when it is not known.

        Raises one of `DAMAGED` when the layer cannot be read or differs from its digests.
        """
        packed = _Hashing(stream)
        tar = _Hashing(_unpacked(packed), packed)
        with BoundedTar.open(fileobj=cast("IO[bytes]", tar), mode="r|", bufsize=_BUFFER) as archive:
            self._lay(archive)
        found, whole = tar.finish(), packed.finish()
        if sha256 and whole != sha256:
            raise ValueError(f"`{name}` does not hold what its name says; its sha256 is {whole}")
        if found != diff_id:
            raise ValueError(
                f"the tar in `{name}` is not the one that the config names; its sha256 is {found}"
            )

    def _lay(self, archive: tarfile.TarFile) -> None:
        """Apply a layer's tar to the tree. A whiteout hides paths of lower layers, wherever it stands in the tar."""
        own: set[str] = set()
        for found in archive:
            archive.members.clear()  # type: ignore[attr-defined]  # it keeps every member, and each is needed once
            member = read_member(found)
            path = self._real(member.entry.path)
            self._entries.add(
                path, len(member.entry.target) + sum(len(value) for _, value in member.entry.xattrs)
            )
            folder, _, name = path.rpartition("/")
            if name == _OPAQUE:
                self._hide_below(folder, own)
            elif name.startswith(_WHITEOUT):
                hidden = f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/")
                if hidden not in own:
                    self._hide(hidden, own)
            else:
                if member.entry.kind is not Kind.DIRECTORY:
                    self._hide(path, own)
                member = replace(member, entry=replace(member.entry, path=path))
                self[path] = self._entry(member, archive.extractfile(found) if found.isreg() else None)
                own.add(path)
        for path in own:
            self._note(path)

    def _real(self, path: str) -> str:
        """Return where a member lies: links above it lead to folders of the tree, as container engines follow them."""
        parts, real, links = path.split("/"), list[str](), 0
        while parts:
            real.append(parts.pop(0))
            if real[-1] in ("", ".", ".."):
                del real[-2 if real[-1] == ".." else -1 :]
                continue
            entry = self.get("/".join(real)) if parts else None
            if entry is not None and entry.kind is Kind.LINK:
                links += 1
                need_within(f"links above `{path[:100]}`", links, _MOST_LINKS)
                real = [] if entry.target.startswith("/") else real[:-1]
                parts = entry.target.split("/") + parts
        return "/".join(real)

    def _hide(self, path: str, own: Collection[str]) -> None:
        entry = self._forget(path)
        if entry is None or entry.kind is Kind.DIRECTORY:  # a layer need not name a folder
            self._hide_below(path, own)

    def _hide_below(self, folder: str, own: Collection[str]) -> None:
        """Hide what the layers below have in a folder. Each path is met once, whatever the number of whiteouts."""
        folders = [folder]
        while folders:
            for path in self._lower.pop(folders.pop(), ()):
                folders.append(path)
                if path not in own:
                    self._forget(path)

    def _note(self, path: str) -> None:
        """Note a path in its folder, and the folder in its own, which the tar may not name."""
        while path:
            folder = path.rpartition("/")[0]
            inside = self._lower.setdefault(folder, set())
            if path in inside:
                return
            inside.add(path)
            path = folder

    def _forget(self, path: str) -> Entry | None:
        self.hidden += [(path, what) for what in self._found.pop(path, ())]
        return self.pop(path, None)

    def _entry(self, member: Member, content: IO[bytes] | None) -> Entry:
        entry, path = member.entry, member.entry.path
        if member.hard:
            first = self._real(member.hard.lstrip("/"))
            if self.keep(path) and first in self._kept:
                self._kept[path] = self._kept[first]
            else:
                self._kept.pop(path, None)
            return replace(self[first], path=path)
        return replace(entry, sha256=self._read(entry, content)) if content else entry

    def _read(self, file: Entry, content: IO[bytes]) -> str:
        """Return the digest of a file's content."""
        path = file.path
        digest = hashlib.sha256()
        is_kept = self.keep(path) and file.size <= MOST_KEPT
        scanner = (
            self.scanner if self.scanner and file.size <= MOST_KEPT and self.scanner.wants(file) else None
        )
        pieces: list[bytes] | None = [] if is_kept or scanner else None
        while chunk := content.read(CHUNK):
            digest.update(chunk)
            if pieces is not None:
                pieces.append(chunk)
        whole = b"".join(pieces or ())
        if scanner:
            self._found[path] = tuple(scanner.finds(whole))
        if is_kept:
            self._kept[path] = whole
        else:
            self._kept.pop(path, None)
        return digest.hexdigest()


class _Hashing:
    """A stream that hashes the bytes that are read."""

    def __init__(self, stream: Readable, packed: "_Hashing | None" = None) -> None:
        """`packed` has the bytes that this stream is unpacked from, and bounds it."""
        self._stream = stream
        self._digest = hashlib.sha256()
        self._ahead = b""
        self._packed = packed
        self.size = 0

    def read(self, size: int = CHUNK) -> bytes:
        if self._ahead:
            data, self._ahead = self._ahead[:size], self._ahead[size:]
            return data
        data = self._stream.read(size)
        self._digest.update(data)
        self.size += len(data)
        if self._packed is not None:
            need_within("bytes that a layer unpacks to", self.size, most_unpacked(self._packed.size))
        return data

    def peek(self, size: int) -> bytes:
        """Return the next bytes without consuming them; fewer at the end."""
        while len(self._ahead) < size and (data := self._stream.read(size - len(self._ahead))):
            self._digest.update(data)
            self.size += len(data)
            self._ahead += data
        return self._ahead[:size]

    def finish(self) -> str:
        """Read to the end and return the digest of all bytes."""
        while self.read():
            pass
        return self._digest.hexdigest()


def _unpacked(stream: _Hashing) -> Readable:
    magic = stream.peek(4)
    file = cast("IO[bytes]", stream)
    if magic[:2] == b"\x1f\x8b":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file, mode="rb"))
    if magic == b"\x28\xb5\x2f\xfd":
        return zstandard.ZstdDecompressor().stream_reader(file, read_size=CHUNK, read_across_frames=True)
    return stream
