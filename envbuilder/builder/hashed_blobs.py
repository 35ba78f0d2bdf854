"""Note which blobs of layers in the cache were hashed, so that a build hashes again only those that were written to since.

A blob is what it was if its inode, its size, its time of modification and its time of change are. No program can set the time of
change. A hard link sets it too, and a build makes and removes links: so the states are compared before a build makes the first, and
noted after the last. What the disk changes by itself changes no state: `envbuilder verify` finds it, which hashes every file.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from envbuilder.artifacts.oci.layout import Layout
from envbuilder.core.cache import Sha256, Store, read_proved, save_proved, sha256_file, sha256_text
from envbuilder.core.errors import BuildError
from envbuilder.layers.layer import Layer

_TICK: Final = 20_000_000  # nanoseconds: times of files move on in ticks of at most 10 ms
_WHOLE: Final = 1_000_000_000  # of a file system that has whole seconds

_Written = tuple[int, ...]  # what a write of a file changes, and a hard link does not


class HashedBlobs:
    """The blobs that one build need not hash."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._right: dict[Sha256, _Written] = {}  # blobs that hold what their digests say, while they are so

    def look(self, layers: Sequence[Layer]) -> None:
        """Find the blobs that nobody has written to since a build noted them. This build has made no link yet."""
        self._right.clear()
        for layer in layers:
            with contextlib.suppress(OSError, ValueError):
                state = _state(layer)
                if json.loads(read_proved(self._note(layer))) == state:
                    self._right[layer.digest] = tuple(state[:-1])

    def need_right(self, layer: Layer) -> None:
        """Hash a blob unless that was done. Raises BuildError for a damaged one."""
        now = _written(layer)
        if self._right.get(layer.digest) != now:
            if sha256_file(layer.blob) != layer.digest:
                raise BuildError(
                    f"the {layer.name} layer in `{layer.folder}` is damaged",
                    hint="remove that folder and build again",
                )
            self._right[layer.digest] = now

    @contextlib.contextmanager
    def hashed(self, layout: Layout, layers: Sequence[Layer]) -> Iterator[dict[Path, Sha256]]:
        """Yield the digests of the image's files that are known. A block that ends well has hashed all others."""
        now = {layer.digest: _written(layer) for layer in layers}
        paths = {
            layer.digest: (layer.blob, layout.path(blob.blob))
            for layer, blob in zip(layers, layout.layers, strict=True)
        }
        yield {
            path: digest
            for digest, (blob, path) in paths.items()
            if self._right.get(digest) == now[digest] and path.samefile(blob)  # a copy was not looked at
        }
        self._right |= now

    def note(self, layers: Sequence[Layer]) -> None:
        """Note the blobs that are right, unless they were written to since. This build makes and removes no link any more."""
        for layer in layers:
            with contextlib.suppress(OSError, ValueError):
                state, path = _state(layer), self._note(layer)
                if self._right.get(layer.digest) != tuple(state[:-1]):
                    continue
                tick = _TICK if state[-1] % _WHOLE else 2 * _WHOLE
                if time.time_ns() - state[-1] < tick:
                    time.sleep(tick / _WHOLE)  # the next write gets another time
                if _state(layer) == state:
                    save_proved(path, json.dumps(state))

    def _note(self, layer: Layer) -> Path:
        return self._store.proof(sha256_text(f"hashed blob {layer.folder.name} {layer.digest}"))


def _written(layer: Layer) -> _Written:
    return tuple(_state(layer)[:-1])


def _state(layer: Layer) -> list[int]:
    status = layer.blob.stat()
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
