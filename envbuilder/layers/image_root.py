"""Unpack the layers of an image into a folder, as a container would see them.

The owners that the layers name are for the packing of the folder: it belongs to whoever builds. Device nodes, pipes and
sockets are left out. No link of the image is followed.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

from envbuilder.core.cache import space_errors
from envbuilder.core.errors import BuildError
from envbuilder.layers.entry import Entry, Kind, to_bytes
from envbuilder.layers.import_tar import Owner, Owners
from envbuilder.layers.overlay import DAMAGED, Overlay
from envbuilder.layers.tar import CHUNK, Member

_NEEDED = {
    Kind.DIRECTORY: 0o700,
    Kind.FILE: 0o600,
}  # bits of modes without which the builder cannot work on it


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

    def _entry(self, member: Member, content: IO[bytes] | None) -> Entry:
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
                    stream.writelines(_pieces(content))
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


def _pieces(content: IO[bytes] | None) -> Iterator[bytes]:
    while content and (piece := content.read(CHUNK)):
        yield piece
