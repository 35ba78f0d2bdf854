"""Lay the layers of any image over each other, as a container sees them: tars of gzip or zstd, with whiteouts.

A layer is read once, as a stream, and compared with its digest and its diff_id. `Overlay` writes nothing.
`ImageRoot` also unpacks the layers into a folder, which belongs to whoever builds: the owners that the layers name are
for the packing of the folder. Device nodes, pipes and sockets are left out. No link of the image is followed.
"""

import contextlib
import gzip
import hashlib
import os
import shutil
import struct
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Final, Protocol, cast

import zstandard

from envbuilder.core.archive import BoundedTar
from envbuilder.core.budget import Entries, most_unpacked, need_within
from envbuilder.core.cache import space_errors
from envbuilder.core.errors import BuildError
from envbuilder.layers.entry import CHUNK, Entry, Kind, Readable, TarMember, follow, read_member, to_bytes
from envbuilder.layers.import_tree import Owner, Owners

MOST_KEPT: Final = 64 << 20  # bytes of a file whose content is kept
_BUFFER: Final = 64 << 10  # bytes; tarfile copies what is left of its buffer after every header
_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
DAMAGED: Final = (
    OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError,
    struct.error, tarfile.TarError, zlib.error, zstandard.ZstdError,
)  # fmt: skip


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
        inner, outer = tar.finish(), packed.finish()
        if sha256 and outer != sha256:
            raise ValueError(f"`{name}` does not hold what its name says; its sha256 is {outer}")
        if inner != diff_id:
            raise ValueError(
                f"the tar in `{name}` is not the one that the config names; its sha256 is {inner}"
            )

    def _lay(self, archive: tarfile.TarFile) -> None:
        """Apply a layer's tar to the tree. A whiteout hides paths of lower layers, wherever it stands in the tar."""
        added: set[str] = set()
        for info in archive:
            archive.members.clear()  # type: ignore[attr-defined]  # it keeps every member, and each is needed once
            member = read_member(info)
            path = self._real(member.entry.path)
            self._entries.add(
                path, len(member.entry.target) + sum(len(value) for _, value in member.entry.xattrs)
            )
            folder, _, name = path.rpartition("/")
            if name == _OPAQUE:
                self._hide_below(folder, added)
            elif name.startswith(_WHITEOUT):
                hidden = f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/")
                if hidden not in added:
                    self._hide(hidden, added)
            else:
                if member.entry.kind is not Kind.DIRECTORY:
                    self._hide(path, added)
                member = replace(member, entry=replace(member.entry, path=path))
                self[path] = self._entry(member, archive.extractfile(info) if info.isreg() else None)
                added.add(path)
        for path in added:
            self._note(path)

    def _real(self, path: str) -> str:
        """Return where a member lies: links above it lead to folders of the tree, as container engines follow them."""
        real = follow(self, path, last=False)
        if real is None:
            raise ValueError(f"there are too many links above `{path[:100]}`")
        return real

    def _hide(self, path: str, added: Collection[str]) -> None:
        entry = self._forget(path)
        if entry is None or entry.kind is Kind.DIRECTORY:  # a layer need not name a folder
            self._hide_below(path, added)

    def _hide_below(self, folder: str, added: Collection[str]) -> None:
        """Hide what the layers below have in a folder. Each path is met once, whatever the number of whiteouts."""
        folders = [folder]
        while folders:
            for path in self._lower.pop(folders.pop(), ()):
                folders.append(path)
                if path not in added:
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

    def _entry(self, member: TarMember, content: IO[bytes] | None) -> Entry:
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
        self._kept.pop(file.path, None)
        is_kept = self.keep(file.path)
        is_scanned = self.scanner is not None and self.scanner.wants(file)
        if file.size > MOST_KEPT or not (is_kept or is_scanned):
            return hashlib.file_digest(content, "sha256").hexdigest()  # type: ignore[arg-type]  # a buffered reader
        whole = content.read()
        if self.scanner and is_scanned:
            self._found[file.path] = tuple(self.scanner.finds(whole))
        if is_kept:
            self._kept[file.path] = whole
        return hashlib.sha256(whole).hexdigest()


def read_members(pieces: Iterable[bytes]) -> Iterator[tuple[TarMember, Callable[[], bytes]]]:
    """Yield the members of a layer whose bytes come in pieces, each with what reads its content. Digests are not compared.

    Raises one of `DAMAGED` when the layer cannot be read.
    """
    packed = _Hashing(_Pieces(pieces))
    tar = _Hashing(_unpacked(packed), packed)
    with BoundedTar.open(fileobj=cast("IO[bytes]", tar), mode="r|", bufsize=_BUFFER) as archive:
        for info in archive:
            archive.members.clear()  # type: ignore[attr-defined]  # as in `Overlay`
            # A stream has no way back to what a link names.
            content = archive.extractfile(info) if info.isreg() else None
            yield read_member(info), content.read if content else bytes


class _Pieces:
    """A stream of bytes that come in pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces, self._left = iter(pieces), b""

    def read(self, size: int, /) -> bytes:
        self._left = self._left or next(self._pieces, b"")
        data, self._left = self._left[:size], self._left[size:]
        return data


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


# Bits of modes without which the builder cannot work on it.
_NEEDED: Final = {Kind.DIRECTORY: 0o700, Kind.FILE: 0o600}


def owners_of(image: Overlay) -> Owners:
    """Return the owner of each path of an image."""
    return {
        path: Owner(
            uid=entry.uid, gid=entry.gid, special=entry.mode & 0o6000, xattrs=entry.xattrs,
            added=_NEEDED.get(entry.kind, 0) & ~entry.mode,
        )
        for path, entry in image.items()
    }  # fmt: skip


class ImageRoot(Overlay):
    """An image's tree that is also written into a new folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(keep=lambda _: False)
        folder.mkdir()
        folder.chmod(0o755)
        self._top = os.fsencode(folder)
        self._emptied: set[str] = set()  # folders that a layer hides, and which may have files of its own

    def lay_over(self, stream: IO[bytes], *, name: str, sha256: str, diff_id: str) -> None:  # type: ignore[override]
        """Add one layer. Raises BuildError for one that is damaged or does not fit."""
        try:
            with space_errors(Path(os.fsdecode(self._top))):
                super().lay_over(stream, name=name, sha256=sha256, diff_id=diff_id)
        except DAMAGED as error:
            raise BuildError(f"a layer of the image cannot be unpacked: {error}") from error
        self._remove_emptied()

    def _place(self, path: str) -> bytes:
        return os.path.join(self._top, to_bytes(path))  # noqa: PTH118 - names are bytes

    def _forget(self, path: str) -> Entry | None:
        entry = super()._forget(path)
        if entry is None or entry.kind is Kind.DIRECTORY:
            self._emptied.add(path)
        elif entry.kind is not Kind.SPECIAL:
            os.unlink(self._place(path))  # noqa: PTH108
        return entry

    def _remove_emptied(self) -> None:
        for path in sorted(self._emptied, reverse=True):  # the deepest first
            if path not in self:
                with contextlib.suppress(OSError):
                    os.rmdir(self._place(path))  # noqa: PTH106
        self._emptied.clear()

    def _entry(self, member: TarMember, content: IO[bytes] | None) -> Entry:
        """Write a member. Nothing but folders is above it, because the tree's links were followed."""
        entry, place = member.entry, self._place(member.entry.path)
        self._remove_emptied()
        _need_folder(os.path.dirname(place))  # noqa: PTH120
        if member.hard:
            first = self._real(member.hard.lstrip("/"))
            entry = replace(self[first], path=entry.path)
            if entry.kind is not Kind.SPECIAL:
                os.link(self._place(first), place, follow_symlinks=False)
            return entry
        match entry.kind:
            case Kind.DIRECTORY:
                old = self.get(entry.path)
                if old is not None and old.kind is not Kind.DIRECTORY:
                    self._forget(entry.path)
                _need_folder(place)
            case Kind.LINK:
                os.symlink(to_bytes(entry.target), place)  # noqa: PTH211
                os.utime(place, (entry.mtime, entry.mtime), follow_symlinks=False)
            case Kind.FILE:
                with open(place, "xb") as stream:  # noqa: PTH123
                    if content:
                        shutil.copyfileobj(content, stream, CHUNK)
                os.utime(place, (entry.mtime, entry.mtime))
            case Kind.SPECIAL:
                return entry
        if entry.kind is not Kind.LINK:
            os.chmod(place, entry.mode | _NEEDED[entry.kind])  # noqa: PTH101
        return entry


def _need_folder(place: bytes) -> None:
    """Make a folder, and those above it that no layer names."""
    if not os.path.isdir(place):  # noqa: PTH112
        _need_folder(os.path.dirname(place))  # noqa: PTH120
        os.mkdir(place)  # noqa: PTH102
        os.chmod(place, 0o755)  # noqa: PTH101, S103
