"""Open what `verify` and `diff` compare: locks, SIFs, and images as files or in the Docker engine."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.artifacts.oci.reader import read_tree
from envbuilder.artifacts.outputs import SIF
from envbuilder.artifacts.sif import opened_sif
from envbuilder.artifacts.squashfs.reader import SquashfsTree
from envbuilder.core.cache import Store
from envbuilder.core.console import Console
from envbuilder.core.errors import UsageError
from envbuilder.core.spelling import nearest
from envbuilder.layers.overlay import MOST_KEPT
from envbuilder.lock.file import load_lock
from envbuilder.recipe.load import list_recipes, load
from envbuilder.recipe.matrix import file_of
from envbuilder.recipe.model import SUFFIX
from envbuilder.verify.diff import EXPORTS, READ, Contents, of_lock, of_tree, read_exports

if TYPE_CHECKING:
    from envbuilder.artifacts.docker_engine import DockerEngine


@contextlib.contextmanager
def open_image(
    text: str, environment: Mapping[str, str], store: Store, console: Console, *, hint: str = ""
) -> Iterator[Path]:
    """Open an image by its path, or by its name in the Docker engine, which saves it to a temporary file.

    Raises UsageError when neither exists.
    """
    engine = find_image(text, environment, hint=hint)
    if engine is None:
        yield Path(text)
        return
    with store.workspace() as work:
        saved = work / "image.tar"
        with console.step(f"save `{text}` out of the Docker engine"):
            engine.save(text, saved)
        yield saved


def find_image(text: str, environment: Mapping[str, str], *, hint: str = "") -> "DockerEngine | None":
    """Return the Docker engine that has the image, or None if it is a file. Raises UsageError when neither is there."""
    if Path(text).exists():
        return None
    from envbuilder.artifacts.docker_engine import connect  # noqa: PLC0415 - the Docker SDK, for images in the engine

    engine, why = connect(environment), "no Docker engine answers that could have an image of that name"
    if engine is not None:
        try:
            engine.image_id(text)
        except UsageError as error:
            why = error.message
        else:
            return engine
    hint = hint or "name a recipe that has a lock, a file, or a folder of an image"
    raise UsageError(f"there is no file or folder `{text}`, and {why}", hint=hint)


def read_lock(path: Path, recipe: str = "") -> Contents:
    """Read a lock, and settings from the recipe beside it; raises LockError, whose hint names `recipe`."""
    lock = load_lock(path, recipe=recipe)
    beside = path.with_suffix(SUFFIX)
    wanted = load(beside) if file_of(beside)[0].is_file() else None
    if wanted is None:
        return of_lock(str(path), lock, environment=None)
    return of_lock(str(path), lock, environment=dict(wanted.env), nccl=wanted.nccl)


def find_lock(text: str, recipes: Path) -> tuple[Path, str] | None:
    """Return a lock's path and the recipe as typed ("" for a lock), or None if `text` is something else."""
    path = Path(text)
    if path.suffix in (".lock", SUFFIX, ".yml"):
        return path.with_suffix(".lock"), "" if path.suffix == ".lock" else text
    for folder in () if path.exists() else (recipes, Path()):  # as `find_recipe` looks for a name
        if any(file_of(folder / f"{text}{end}")[0].is_file() for end in (".lock", SUFFIX)):
            return folder / f"{text}.lock", text
    return None


def read_sif(path: Path, *, threads: int) -> Contents:
    with opened_sif(path) as system:
        tree = SquashfsTree(system, system.entries(threads=threads))
        there = [entry.path for entry in tree.entries if entry.path in READ and entry.size <= MOST_KEPT]
        contents = {name: tree.open(name).read() for name in there}
    environment = read_exports(contents.get(EXPORTS, b"").decode("utf-8", "replace"))
    return of_tree(str(path), "sif", tree.entries, contents, environment=environment)


def read_image(name: str, path: Path) -> Contents:
    """Read an image that is a layout or an archive, under the name that the user gave it."""
    tree = read_tree(path, keep=READ)
    return of_tree(name, "image", tree.entries, tree.contents, environment=dict(tree.image.config.env))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subjects:
    """Read what `diff` compares."""

    environment: Mapping[str, str]
    store: Callable[[], Store]  # opened for an image in the engine alone
    console: Console
    recipes: Path
    threads: int

    def read(self, *names: str) -> tuple[Contents, ...]:
        """Read locks, SIFs and images; raises UsageError, LockError or VerifyError for what cannot be read.

        What takes a moment comes first, so that a mistake in a name does not wait for an image.
        """
        images = [name for name in names if find_lock(name, self.recipes) is None and not _is_sif(name)]
        for name in images:
            find_image(name, self.environment, hint=self._nearest(name))
        for name in names:
            if name.endswith(SIF) and not Path(name).exists():
                raise UsageError(f"there is no SIF `{name}`", hint="name two that are there")
        contents = {name: self._read(name) for name in sorted(names, key=images.__contains__)}
        return tuple(contents[name] for name in names)

    def _nearest(self, name: str) -> str:
        return nearest(name, list_recipes(self.recipes)).strip()

    def _read(self, name: str) -> Contents:
        if lock := find_lock(name, self.recipes):
            return read_lock(*lock)
        step = self.console.step(f"read `{name}`")
        if _is_sif(name):
            with step:
                return read_sif(Path(name), threads=self.threads)
        near = self._nearest(name)
        with open_image(name, self.environment, self.store(), self.console, hint=near) as path, step:
            return read_image(name, path)


def _is_sif(name: str) -> bool:
    return Path(name).suffix == SIF and not Path(name).is_dir()
