"""What the programs of a build run in: the files of layers, read out of the SIF that the build makes.

A layer's files are a view of the SIF (see `SifWriter.view`), which `enter_sandbox.py` mounts for one program. So nothing is unpacked or
copied for it, and no mount outlives its program. Where this machine mounts none, the files are unpacked, and go with the build.
"""

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Final, TypeAlias

from envbuilder.artifacts.sif import SifWriter, read_sif
from envbuilder.artifacts.squashfs.writer import Packed, layout_squashfs
from envbuilder.core.cache import Store, sha256_text
from envbuilder.core.console import Console
from envbuilder.core.errors import BuildError, CommandError, SpaceError
from envbuilder.core.process import Runner
from envbuilder.layers.entry import Entry, Kind
from envbuilder.layers.layer import Layer, extract, read_manifest
from envbuilder.layers.writer import Blocks
from envbuilder.run.container import TEMPORARY
from envbuilder.runners.sandbox import Mounted, sandbox

_TRIAL: Final = f"{TEMPORARY}/layer"
# Folder → what is in it, by name. None: a folder that no layer names.
Listing: TypeAlias = Mapping[str, Mapping[str, Entry | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFolder:
    """A folder that a sandbox has files from: one of this machine, or the place at which it mounts a squashfs."""

    place: Path
    file: Path | None = None  # that holds the squashfs
    offset: int = 0  # at which it begins there
    listing: Listing = field(default_factory=dict, compare=False, repr=False)  # of the squashfs

    def path(self, name: str) -> str:
        """Return the place of a folder, for a mount. Raises BuildError for a link, which leads to a folder of this machine.

        The scripts of packages may leave one in place of any folder, and nothing changes a layer later.
        """
        for part in (*reversed(PurePath(name).parents[:-1]), PurePath(name)):
            if target := self.link(str(part)):
                raise BuildError(
                    f"`/{part}` of the environment is a link to `{target}`, expected a folder",
                    hint="a package under `apt` or `packages` made it so, and nothing can be built in such an environment",
                )
        return str(self.place / name)

    def link(self, name: str) -> str:
        """Return the target of a link, "" for anything else."""
        if self.file is None:
            path = self.place / name
            return str(path.readlink()) if path.is_symlink() else ""
        folder, _, last = name.rpartition("/")
        entry = self.listing.get(folder, {}).get(last)
        return entry.target if entry and entry.kind is Kind.LINK else ""

    def is_folder(self, name: str) -> bool:
        """Whether there is a folder of that name, and no link to one."""
        if self.file is None:
            path = self.place / name
            return path.is_dir() and not path.is_symlink()
        return name in self.listing

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder, none if there is no such folder."""
        if self.file is not None:
            return sorted(self.listing.get(folder, ()))
        path = self.place / folder
        return sorted(inner.name for inner in path.iterdir()) if path.is_dir() else []


class LayerFolders:
    """The folders of one build, each made when a program needs it. `close` removes them."""

    def __init__(self, store: Store, runner: Runner, console: Console) -> None:
        self._store, self._runner, self._console = store, runner, console
        self._guard = threading.RLock()
        self._can_mount: bool | None = None
        self._begin()

    def _begin(self) -> None:
        self._stack = contextlib.ExitStack()
        self._work: Path | None = None
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._made: dict[str, LayerFolder] = {}

    def of(self, layer: Layer, sif: SifWriter) -> LayerFolder:
        """Return the folder with a layer's files, once the SIF has it. Raises BuildError if the SIF does not get it, SpaceError."""
        return self._of_layers((layer,), lambda: (sif.path, sif.view(layer)))

    def of_sif(self, sif: Path, layers: Sequence[Layer]) -> LayerFolder:
        """Return the folder with the files of a SIF, which has these layers. Raises what `read_sif` raises, BuildError, SpaceError."""
        return self._of_layers(layers, lambda: (sif, read_sif(sif).system.offset))

    def other(self, name: str, write: Callable[[Path], object]) -> LayerFolder:
        """Return a folder of no layer, which the first caller has written. It is read by several programs at once."""

        def make() -> LayerFolder:
            with self._guard:
                folder = self._stack.enter_context(self._store.workspace()) / name
            write(folder)
            return LayerFolder(place=folder)

        return self._once(name, make)

    def _of_layers(self, layers: Sequence[Layer], find: Callable[[], tuple[Path, int]]) -> LayerFolder:
        key = sha256_text(" ".join(layer.digest for layer in layers))
        return self._once(key, lambda: self._make(layers, self._workspace() / key, find))

    def _once(self, key: str, make: Callable[[], LayerFolder]) -> LayerFolder:
        with self._guard:
            lock = self._locks[key]
        with lock:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

    def close(self) -> None:
        with contextlib.suppress(OSError):  # after an interruption, a thread may write there yet; see `sweep`
            self._stack.close()
        self._begin()

    def can_mount(self) -> bool:
        """Whether a squashfs can be mounted for a sandbox here."""
        with self._guard:
            if self._can_mount is None:
                self._can_mount = self._try()
            return self._can_mount

    def _try(self) -> bool:
        work = self._workspace()
        place, file = work / "trial", work / "trial.squashfs"
        place.mkdir()
        seen = Entry(path="seen", kind=Kind.DIRECTORY, mode=0o755, mtime=0)
        layout = layout_squashfs(
            [Packed(blob=file, entries=[seen], blocks=Blocks(fragments=(), small={}, large={}))], epoch=0
        )
        file.write_bytes(layout.head + layout.tables)
        options = ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", TEMPORARY]
        options += ["--ro-bind", str(place), _TRIAL]
        command = sandbox(
            options,
            ("/bin/ls", f"{_TRIAL}/seen"),
            why="mount a squashfs",
            env=(),
            mounted=(Mounted(file, 0, place),),
        )
        try:
            self._runner.run(command)
        except (CommandError, SpaceError):  # the second where no more namespaces are allowed
            return False
        return True

    def _workspace(self) -> Path:
        with self._guard:
            self._work = self._work or self._stack.enter_context(self._store.workspace())
            return self._work

    def _make(
        self, layers: Sequence[Layer], folder: Path, find: Callable[[], tuple[Path, int]]
    ) -> LayerFolder:
        if self.can_mount():
            with contextlib.suppress(OSError):  # the SIF's file system has no place for views
                file, offset = find()
                folder.mkdir()
                return LayerFolder(place=folder, file=file, offset=offset, listing=_list(layers))
        name = layers[0].name if len(layers) == 1 else "SIF's"
        with self._console.step(f"unpack the {name} layer"):
            above: set[str] = set()
            for layer in reversed(layers):
                above |= extract(layer, folder, without=above)
        return LayerFolder(place=folder)


def mounted(folders: Iterable[LayerFolder]) -> tuple[Mounted, ...]:
    """Return what a sandbox mounts to have these folders."""
    kept = dict.fromkeys(folders)
    return tuple(Mounted(folder.file, folder.offset, folder.place) for folder in kept if folder.file)


def _list(layers: Iterable[Layer]) -> Listing:
    listing: dict[str, dict[str, Entry | None]] = {"": {}}
    for layer in layers:
        for entry in read_manifest(layer):
            path = entry.path
            if entry.kind is Kind.DIRECTORY:
                listing.setdefault(path, {})
            listing.setdefault(entry.parent, {})[path.rpartition("/")[2]] = entry
            while path := path.rpartition("/")[0]:  # folders that no layer names
                folder, _, name = path.rpartition("/")
                listing.setdefault(folder, {}).setdefault(name, None)
    return listing
