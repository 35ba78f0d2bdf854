"""Compare two locks, images or SIFs: packages, files, sizes, environment, NCCL. An image is a file, or in the Docker engine.

Times are not compared: they differ between any two days.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from envbuilder.artifacts.oci.model import load_json
from envbuilder.artifacts.oci.reader import read_tree
from envbuilder.artifacts.outputs import SIF
from envbuilder.artifacts.sif import opened_sif
from envbuilder.artifacts.squashfs.reader import SquashfsTree
from envbuilder.core.answer import Answer
from envbuilder.core.cache import Store
from envbuilder.core.console import Console
from envbuilder.core.errors import LockError, UsageError
from envbuilder.core.plain import columns
from envbuilder.core.spelling import nearest
from envbuilder.layers.entry import Entry, Kind
from envbuilder.layers.overlay import MOST_KEPT
from envbuilder.lock.changes import Change, changes, locked_packages
from envbuilder.lock.file import load_lock, parse_lock
from envbuilder.lock.model import Lock, lock_artifacts
from envbuilder.recipe.load import list_recipes, load
from envbuilder.recipe.matrix import file_of
from envbuilder.recipe.model import SUFFIX
from envbuilder.sources.installed import DPKG, read_dpkg

SubjectKind = Literal["lock", "image", "sif"]

LOCK: Final = "opt/envbuilder/lock.json"
RECIPE: Final = "opt/envbuilder/recipe.yaml"
NCCL_FILE: Final = "etc/nccl.conf"
EXPORTS: Final = ".singularity.d/env/10-docker2singularity.sh"
READ: Final = frozenset({LOCK, RECIPE, DPKG, NCCL_FILE, EXPORTS})  # files whose content is read
SHOWN: Final = 15  # files of each kind in the text; the data has all of them
_NCCL: Final = re.compile(r"(TORCH_)?NCCL_|GLOO_")
_DIST_INFO: Final = re.compile(r"(?:opt/env/.*/site|.*/dist)-packages/([^/]+)-([^/-]+)\.dist-info")
_DEEP: Final = 5  # folders down to which sizes are counted: /opt/env/lib/python3.11/site-packages
_EXPORT: Final = re.compile(r'^export (\w+)=(?:"?\$\{\1:-)?"?(.*?)"?(?:\}"?)?$', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of a lock, an image or a SIF. `entries` is None for a lock."""

    name: str
    kind: SubjectKind
    packages: Mapping[str, str]  # name → version
    environment: Mapping[str, str]
    nccl: Mapping[str, str]
    size: int  # bytes: of the files, or of what a lock fetches
    entries: tuple[Entry, ...] | None = None
    has_settings: bool = True  # not a lock without a recipe: its environment and NCCL are unknown


class ComparedSubject(Answer):
    """One of the two that were compared."""

    kind: SubjectKind
    name: str


class ComparedSizes(Answer):
    """Bytes: of the files, or of what a lock fetches. `folders` has the growth of those that changed most."""

    before: int
    after: int
    folders: dict[str, int]


class Differences(Answer):
    """What differs. `files` is null where one of the two is a lock.

    `without_recipe` names the locks without a recipe beside them: then `environment` and `nccl` are not compared.
    """

    subjects: tuple[ComparedSubject, ComparedSubject]
    packages: tuple[Change, ...]
    environment: tuple[Change, ...]
    nccl: tuple[Change, ...]
    without_recipe: tuple[str, ...]
    sizes: ComparedSizes
    files: tuple[Change, ...] | None

    def text(self, width: int = 0) -> str:
        """Return the answer for people, at a terminal of `width`."""
        before, after = self.sizes.before, self.sizes.after
        parts = [
            " → ".join(f"{subject.kind} {subject.name}" for subject in self.subjects),
            _part("packages", self.packages, len(self.packages), width),
            *self._settings(width),
            f"size {before / 1e9:.3f} GB → {after / 1e9:.3f} GB ({(after - before) / 1e6:+.1f} MB)",
            *(f"  {grown / 1e6:+10.1f} MB  /{folder}" for folder, grown in self.sizes.folders.items()),
        ]
        if self.files is not None:
            parts.append(_part("files", self.files, SHOWN, width))
        return "\n".join(parts)

    def _settings(self, width: int) -> Iterator[str]:
        if self.without_recipe:
            yield f"environment, NCCL: not compared, since no recipe is beside {' and '.join(self.without_recipe)}"
            return
        yield _part("environment", self.environment, len(self.environment), width)
        yield _part("NCCL", self.nccl, len(self.nccl), width)


def compare(before: Contents, after: Contents) -> Differences:
    files: tuple[Change, ...] | None = None
    folders: dict[str, int] = {}
    if before.entries is not None and after.entries is not None:
        files = tuple(_files(before.entries, after.entries))
        folders = _folders(before.entries, after.entries)
    both = (before, after)
    without_recipe = tuple(contents.name for contents in both if not contents.has_settings)
    first, second = (ComparedSubject(kind=contents.kind, name=contents.name) for contents in both)
    return Differences(
        subjects=(first, second),
        packages=changes(before.packages, after.packages),
        environment=() if without_recipe else changes(before.environment, after.environment),
        nccl=() if without_recipe else changes(before.nccl, after.nccl),
        without_recipe=without_recipe,
        sizes=ComparedSizes(before=before.size, after=after.size, folders=folders),
        files=files,
    )


def of_lock(name: str, lock: Lock, *, environment: Mapping[str, str] | None, nccl: str = "") -> Contents:
    """Return the contents of a lock, with the settings of the recipe beside it; None without a recipe."""
    settings = {key: value for key, value in (environment or {}).items() if _NCCL.match(key)}
    return Contents(
        name=name,
        kind="lock",
        packages=locked_packages(lock),
        environment=environment or {},
        nccl=settings | ({"recipe": nccl} if nccl else {}),
        size=sum(artifact.size for artifact in lock_artifacts(lock)),
        has_settings=environment is not None,
    )


def of_tree(
    name: str,
    kind: SubjectKind,
    entries: tuple[Entry, ...],
    contents: Mapping[str, bytes],
    *,
    environment: Mapping[str, str],
) -> Contents:
    """Return the contents of a tree. `contents` holds the files of `READ`.

    Its packages are those of its lock or, without one that can be read, of the package databases.
    """
    settings = {key: value for key, value in environment.items() if _NCCL.match(key)}
    lines = _text(contents, NCCL_FILE).splitlines()
    settings |= {
        key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines) if value
    }
    with contextlib.suppress(KeyError, ValueError):  # no recipe, or none that can be read
        settings |= {"recipe": str(load_json(contents[RECIPE]).get("nccl", ""))}
    try:
        packages = locked_packages(parse_lock(_text(contents, LOCK), LOCK))
    except LockError:
        packages = read_dpkg(contents) | dict(_distributions(entries))
    return Contents(
        name=name,
        kind=kind,
        packages=packages,
        environment=dict(environment),
        nccl={key: value for key, value in settings.items() if value},
        size=sum(entry.size for entry in entries),
        entries=entries,
    )


def read_exports(text: str) -> dict[str, str]:
    """Return the environment in a SIF's start script, as Apptainer and envbuilder write it."""
    return {match[1]: match[2].strip("'") for match in _EXPORT.finditer(text)}


def _distributions(entries: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        if match := _DIST_INFO.fullmatch(entry.path):
            yield f"python {match[1]}", match[2]


def _files(before: Sequence[Entry], after: Sequence[Entry]) -> Iterator[Change]:
    left, right = ({entry.path: replace(entry, mtime=0) for entry in entries} for entries in (before, after))
    for path in sorted(left.keys() | right.keys()) if left != right else ():
        old, new = left.get(path), right.get(path)
        if old != new:
            yield Change(name=f"/{path}", before=_shown(old), after=_shown(new))


def _shown(entry: Entry | None) -> str | None:
    if entry is None:
        return None
    what = f"to {entry.target}" if entry.target else "folder"
    if entry.kind is Kind.FILE:
        what = f"{entry.size} bytes {entry.sha256[:12]}"
    owner = "" if entry.uid == entry.gid == 0 else f" {entry.uid}:{entry.gid}"
    xattrs = "".join(f" {name}={value.hex()}" for name, value in entry.xattrs)
    return f"{what} {entry.mode:04o}{owner}{xattrs}"


def _folders(before: Sequence[Entry], after: Sequence[Entry]) -> dict[str, int]:
    """Return the folders with the largest change, the largest first."""
    grown: dict[str, int] = {}
    for sign, entries in ((-1, before), (1, after)):
        for entry in entries:
            if entry.size:
                folder = "/".join(entry.path.split("/")[:-1][: _DEEP + 1])
                grown[folder] = grown.get(folder, 0) + sign * entry.size
    changed = [(folder, size) for folder, size in grown.items() if size]
    return dict(sorted(changed, key=lambda item: (-abs(item[1]), item[0]))[:SHOWN])


def _part(name: str, changes: Sequence[Change], most: int, width: int) -> str:
    if not changes:
        return f"{name}: the same"
    rows = [(f"  {mark}", *rest) for mark, *rest in (change.row() for change in changes[:most])]
    lines = [f"{name}: {len(changes)} different", columns(rows, width)]
    return "\n".join([*lines, *([f"  and {len(changes) - most} more"] if len(changes) > most else [])])


def _text(contents: Mapping[str, bytes], path: str) -> str:
    return contents.get(path, b"").decode("utf-8", "replace")


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
