"""Compare two locks, images or SIFs: packages, files, sizes, environment, NCCL.

`subjects` reads them. Times are not compared: they differ between any two days.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from envbuilder.artifacts.oci.model import load_json
from envbuilder.core.answer import Answer
from envbuilder.core.errors import LockError
from envbuilder.core.plain import columns
from envbuilder.layers.entry import Entry, Kind
from envbuilder.lock.diff import Change, changes, locked_packages
from envbuilder.lock.file import parse_lock
from envbuilder.lock.model import Lock, lock_artifacts
from envbuilder.sources.installed import DPKG, read_dpkg

SubjectKind = Literal["lock", "image", "sif"]

LOCK: Final = "opt/envbuilder/lock.json"
RECIPE: Final = "opt/envbuilder/recipe.yaml"
NCCL_FILE: Final = "etc/nccl.conf"
EXPORTS: Final = ".singularity.d/env/10-docker2singularity.sh"
READ: Final = frozenset({LOCK, RECIPE, DPKG, NCCL_FILE, EXPORTS})  # files whose content is read
SHOWN: Final = 15  # files of each kind in the text; the data has all of them
_NCCL: Final = re.compile(r"(TORCH_)?NCCL_|GLOO_")
_DIST_INFO: Final = re.compile(
    r"opt/env/.*/site-packages/([^/]+)-([^/-]+)\.dist-info|.*/dist-packages/([^/]+)-([^/-]+)\.dist-info"
)
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
    has_settings: bool = (
        True  # False for a lock without a recipe beside it: its environment and NCCL are unknown
    )


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
            " → ".join(f"{one.kind} {one.name}" for one in self.subjects),
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


def compare(one: Contents, other: Contents) -> Differences:
    files: tuple[Change, ...] | None = None
    folders: dict[str, int] = {}
    if one.entries is not None and other.entries is not None:
        files = tuple(_files(one.entries, other.entries))
        folders = _folders(one.entries, other.entries)
    without_recipe = tuple(read.name for read in (one, other) if not read.has_settings)
    return Differences(
        subjects=(
            ComparedSubject(kind=one.kind, name=one.name),
            ComparedSubject(kind=other.kind, name=other.name),
        ),
        packages=changes(one.packages, other.packages),
        environment=() if without_recipe else changes(one.environment, other.environment),
        nccl=() if without_recipe else changes(one.nccl, other.nccl),
        without_recipe=without_recipe,
        sizes=ComparedSizes(before=one.size, after=other.size, folders=folders),
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
    """Yield the Python packages with their versions."""
    for entry in entries:
        if match := _DIST_INFO.fullmatch(entry.path):
            yield f"python {match[1] or match[3]}", match[2] or match[4]


def _files(one: Sequence[Entry], other: Sequence[Entry]) -> Iterator[Change]:
    left = {entry.path: replace(entry, mtime=0) for entry in one}
    right = {entry.path: replace(entry, mtime=0) for entry in other}
    if left == right:
        return
    for path in sorted(left.keys() | right.keys()):
        before, after = left.get(path), right.get(path)
        if before != after:
            yield Change(name=f"/{path}", before=_shown(before), after=_shown(after))


def _shown(entry: Entry | None) -> str | None:
    """Describe an entry in one line."""
    if entry is None:
        return None
    what = f"to {entry.target}" if entry.target else "folder"
    if entry.kind is Kind.FILE:
        what = f"{entry.size} bytes {entry.sha256[:12]}"
    owner = "" if entry.uid == entry.gid == 0 else f" {entry.uid}:{entry.gid}"
    xattrs = "".join(f" {name}={value.hex()}" for name, value in entry.xattrs)
    return f"{what} {entry.mode:04o}{owner}{xattrs}"


def _folders(one: Sequence[Entry], other: Sequence[Entry]) -> dict[str, int]:
    """Return the folders with the largest change, the largest first."""
    grown: dict[str, int] = {}
    for sign, entries in ((-1, one), (1, other)):
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
