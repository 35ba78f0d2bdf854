"""Find the files of the recipe's folder that its extensions are built from, with their digests.

The folder may be a stranger's clone. A link in it may lead to another visible file of the folder, and nowhere else: what a link to
`~/.ssh` says would be in the image.

What git ignores does not count. A user's own list decides nothing, so one folder has one lock for everybody. git is not asked: a clone's
settings may name programs. Of its index, the names of files are read: what git tracks it does not ignore.
"""

import bisect
import contextlib
import fnmatch
import functools
import hashlib
import io
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from envbuilder.compat.project_files import (
    COMPILED,
    HEADERS,
    Claims,
    Project,
    claim_included,
    claims_of_build,
    claims_of_imports,
)
from envbuilder.compat.python_code import holds_recipes
from envbuilder.core.beneath import FILE_LIMIT, leads_out, open_beneath, read_beneath
from envbuilder.core.cache import Sha256, Store
from envbuilder.core.errors import BuildError, LockError, RecipeError
from envbuilder.core.places import MAX_BYTES
from envbuilder.lock.model import Lock, SourceFile
from envbuilder.recipe.extension import HERE, SOURCE_SUFFIXES, Extension, Form
from envbuilder.recipe.model import SUFFIX, Recipe
from envbuilder.recipe.warm import NO_WARM, kept_files

# What an import of a captured project may read. Its folder may also hold gigabytes of data.
CODE: Final = frozenset(
    {*HEADERS, *SOURCE_SUFFIXES, ".py", ".pyi", ".toml", ".cfg", ".ini", ".json", ".yaml", ".yml", ".txt"}
)
# Beside code, what a build of a project may read. The recipe's own folder may hold data as well.
_BESIDE_CODE: Final = frozenset({
    "", ".md", ".rst", ".in", ".cmake", ".mk", ".build", ".options", ".rs", ".pyx", ".pxd", ".pxi", ".f", ".f90", ".s",
})  # fmt: skip
WARM: Final = "warm:"  # among the names of extensions
_APART: Final = ("sites", "logs")  # where `--profile` looks, and `launch` writes; recipes are apart too
_ANY: Final = "**"  # in a pattern of git
_MADE: Final = r"\.(so|o|a|pyc|egg|whl|egg-info)"  # leftovers of an earlier build


def own_files(recipe: Recipe) -> Mapping[str, tuple[SourceFile, ...]]:
    """Return the source files of each extension, and those of `WARM`. Raises RecipeError with every file that is missing."""
    folder = recipe.path.parent
    missing = [
        f"{recipe.place(f'$.extensions[{index}]')}: the extension `{extension.name}` names `{source}`, which is not there"
        for index, extension in enumerate(recipe.extensions)
        for source in extension.sources
        if not (folder / source).is_file()
    ]
    if missing:
        raise RecipeError("\n".join(missing), hint=f"sources are relative to `{folder}`")
    counting = {extension.name: _counting(extension, folder) for extension in recipe.extensions}
    if recipe.warm != NO_WARM:
        counting[WARM] = _read_by_warm(recipe, folder)
    return {
        name: tuple(digest_source(folder, path) for path in sorted(paths)) for name, paths in counting.items()
    }


def reasons(recipe: Recipe, lock: Lock) -> Mapping[str, str]:
    """Return why each source file counts, and that a file of the lock no longer does."""
    locked = {file.path for file in lock.own_files}
    there = (path for path in locked if (recipe.path.parent / path).is_file())
    why = dict.fromkeys(there, "nothing that decides the extension names it")
    for extension in recipe.extensions:
        why |= _counting(extension, recipe.path.parent)
    return why | _read_by_warm(recipe, recipe.path.parent)


def source_digests(files: Mapping[str, tuple[SourceFile, ...]]) -> Mapping[str, Sha256]:
    """Return the digest of every file of every extension, by its path below the recipe's folder."""
    return {file.path: file.sha256 for some in files.values() for file in some}


def _counting(extension: Extension, folder: Path) -> dict[str, str]:
    """Return the files of the recipe's folder that an extension is built from, each with why it counts."""
    counting: dict[str, str] = {}
    if extension.form is Form.LOAD:
        counting = dict.fromkeys(_headers(extension, folder), "a source of the extension may include it")
    elif extension.path and not extension.is_remote:
        counting = _project(extension, folder)
    named = filter(None, (*extension.sources, extension.patch))
    return counting | dict.fromkeys(named, "the recipe names it")


def _read_by_warm(recipe: Recipe, folder: Path) -> dict[str, str]:
    """Return the files that `warm` names: its programs, the code in the folders of its `files`, and all that counts in its `caches`."""
    names = recipe.warm.named(folder)
    inside = (path for name in names if (folder / name).is_dir() for path in visible(folder / name, folder))
    code = (path for path in inside if _suffix(path) in CODE)
    caches = (path for cache in recipe.warm.caches for path in kept_files(folder / cache))
    kept = (path.relative_to(folder).as_posix() for path in caches)
    named = (name for name in names if (folder / name).is_file())
    return dict.fromkeys((*named, *code, *kept), "`warm` names it")


def digest_source(folder: Path, path: str) -> SourceFile:
    """Return a file of the recipe's folder with its digest. Raises what `open_source` raises."""
    with open_source(folder, path) as stream:
        digest = Sha256(hashlib.file_digest(stream, "sha256").hexdigest())
        return SourceFile(path=path, sha256=digest, size=stream.tell())


@contextlib.contextmanager
def open_source(folder: Path, path: str) -> Iterator[io.BufferedReader]:
    """Yield a file of the recipe's folder, open for reading.

    Raises RecipeError for a link to a place outside the folder or to a hidden one, and for what is no regular file of a usual size.
    """
    top = Path(os.path.realpath(folder))
    try:
        descriptor = open_beneath(top, path)
    except BuildError:
        descriptor = _open_linked(top, path)
    with os.fdopen(descriptor, "rb") as stream:
        if os.fstat(stream.fileno()).st_size > FILE_LIMIT:
            raise RecipeError(
                f"`{path}` is larger than {FILE_LIMIT >> 30} GiB",
                hint="move it out of the folder of the extension: a lock has the digest of each file there",
            )
        yield stream


def _open_linked(top: Path, path: str) -> int:
    target = Path(os.path.realpath(top / path))
    if leads_out(top, top / path):
        raise RecipeError(
            f"`{path}` is a link to `{target}`, outside the recipe's folder or hidden in it",
            hint="replace the link by the file itself, or remove it: what it leads to would be in the lock and in the image",
        )
    try:
        return open_beneath(top, target.relative_to(top).as_posix())
    except BuildError as error:
        raise RecipeError(f"`{path}` cannot be a source of an extension: {error.message}") from error


def store_source(folder: Path, file: SourceFile, store: Store) -> None:
    """Put a file of the recipe's folder into the store. Raises LockError if it changed since it was locked, RecipeError as `open_source`."""
    if store.artifact(file.sha256).exists():
        return
    with open_source(folder, file.path) as stream, store.workspace() as work:
        copy, digest = work / "source", hashlib.sha256()
        with copy.open("xb") as out:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
                out.write(chunk)
        if digest.hexdigest() != file.sha256:
            raise LockError(f"`{file.path}` changed while it was read", hint="run it again")
        store.add_artifact(file.sha256, copy)


def _headers(extension: Extension, folder: Path) -> Iterator[str]:
    """Yield the headers that the sources may include, rather too many: only the compiler knows them.

    These are visible files with a header's suffix in or below the folders of the sources and of `include`.
    """
    places = {(folder / source).parent for source in extension.sources}
    for place in sorted(places | {folder / include for include in extension.include}):
        yield from (path for path in visible(place, folder) if _suffix(path) in HEADERS)


def visible(place: Path, folder: Path) -> Iterator[str]:
    """Yield the files in or below `place`, relative to `folder`, without hidden ones."""
    for path in place.rglob("*"):
        relative = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            yield relative.as_posix()


def _project(extension: Extension, folder: Path) -> dict[str, str]:
    """Return the files of a project that count, without hidden ones and the leftovers of a build."""
    is_capture, is_here = extension.form is Form.CAPTURE, extension.path == HERE
    place = Path(os.path.realpath(folder / extension.path))
    ignored = GitIgnored(place, Path(os.path.realpath(folder)))

    def read(path: str) -> str:
        with open_source(folder, f"{extension.path}/{path}") as stream:
            return stream.read(MAX_BYTES).decode(errors="replace")

    names = frozenset(_visible_names(place)) - {"build", "dist"}
    project = Project(place, names, read, lambda entry: _unignored(place, entry, ignored, set()))
    try:
        claims = claims_of_imports(project, extension.capture) if is_capture else claims_of_build(project)
    except RecursionError:  # an expression that is nested without end
        claims = Claims(patterns={"*": "its Python cannot be read, so every file counts"})
    suffixes = CODE if is_capture else CODE | _BESIDE_CODE | claims.suffixes
    listed, included, scanned = dict[str, list[str]](), set[str](), set[str]()

    def is_allowed(path: str) -> bool:
        return has_any or _suffix(path) in suffixes or path in included or claims.has_data(path)

    def counted() -> dict[str, str]:
        for entry in project.entries if claims.patterns else claims.entries:
            is_apart = entry in _APART or entry.endswith(SUFFIX) or holds_recipes(place / entry)
            if entry not in listed and (entry in claims.entries or not is_apart):
                listed[entry] = list(_unignored(place, entry, ignored, claims.paths))
        files = {path: claims.reason(path) for paths in (*listed.values(), included) for path in paths}
        allowed = (path for path in files if is_allowed(path))
        return {path: files[path] for path in allowed if files[path]}

    has_any = not (is_here or is_capture)  # a project of its own may install data
    files = counted()
    if not any(path.endswith(COMPILED) for path in files):
        claims.look_for("*", "nothing that can be read names the sources, so each of the folder counts")
        files = counted()
    while new := {path for path in files if path.endswith(COMPILED)} - scanned:
        for path in sorted(new):
            headers = claim_included(project, claims, path, read(path))
            included |= {header for header in headers if not leads_out(folder, place / header)}
        scanned |= new
        files = counted()
    return {os.path.normpath(f"{extension.path}/{path}"): why for path, why in files.items()}


def _suffix(path: str) -> str:
    return ".toml" if path.endswith("Cargo.lock") else Path(path).suffix.lower()  # recipes have other locks


def _visible_names(folder: Path) -> list[str]:
    """Return the names in a folder of a project, sorted, without hidden files and the leftovers of a build."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() or path.is_dir())
    return [name for name in names if not re.fullmatch(rf"\..*|__pycache__|.*({_MADE})", name)]


# ---- the `.gitignore` files of a repository, as gitignore(5) describes them


class _Rule(NamedTuple):
    pattern: tuple[str, ...]
    ignores: bool
    for_folders: bool


class GitIgnored:
    """The rules for `place`, a folder in or below `folder`. A place that git ignores has its own rules alone."""

    def __init__(self, place: Path, folder: Path) -> None:
        self._rules: dict[Path, tuple[_Rule, ...]] = {}
        self._top = self._repository = _repository(folder)
        on_the_way = [path for path in (place, *place.parents) if self._top in path.parents]
        if any(self.ignores(path, is_folder=True) for path in on_the_way):
            self._top = place

    def ignores(self, path: Path, *, is_folder: bool) -> bool:
        """Return whether the rules leave out a path, in a folder that they do not leave out."""
        ignored, inside = False, path.relative_to(self._top).parts
        for depth in range(len(inside)):
            base = self._top.joinpath(*inside[:depth])
            if base not in self._rules:
                self._rules[base] = tuple(_read_rules(base))
            for rule in self._rules[base]:
                if (is_folder or not rule.for_folders) and _matches(rule.pattern, inside[depth:]):
                    ignored = rule.ignores
        return ignored

    def tracks(self, path: Path, *, is_folder: bool) -> bool:
        """Return whether git has a file, or one below a folder."""
        name = os.fsencode(path.relative_to(self._repository)) + (b"/" if is_folder else b"\0")
        at = bisect.bisect_left(self._tracked, name)
        return any(tracked.startswith(name) for tracked in self._tracked[at : at + 1])

    @functools.cached_property
    def _tracked(self) -> list[bytes]:
        """The names in git's index up to version 3: a NUL, the length (up to 255), the name, a NUL, by gitformat-index(5)."""
        try:
            folder = self._repository / ".git"
            if folder.is_file():  # of a worktree or a submodule
                text = read_beneath(self._repository, ".git").decode()
                folder = self._repository / text.removeprefix("gitdir: ").rstrip("\n")
            parts = read_beneath(folder, "index").split(b"\0")
        except (OSError, ValueError, BuildError):
            return []
        return sorted(part[1:] + b"\0" for part in parts if part and part[0] == len(part) - 1)


def _repository(folder: Path) -> Path:
    """Return the folder's repository, without places above it that somebody else owns or writes: a `.git` in /tmp."""
    owners = {0, os.geteuid(), folder.stat().st_uid}
    for place in (folder, *folder.parents):
        if place != folder and (place.stat().st_uid not in owners or place.stat().st_mode & stat.S_IWOTH):
            break
        if (place / ".git").exists():
            return place
    return folder


def _read_rules(folder: Path) -> Iterator[_Rule]:
    try:
        lines = read_beneath(folder, ".gitignore").decode(errors="replace").splitlines()
    except (OSError, BuildError):  # git follows no link there either
        return
    for line in lines:
        text = re.sub(r"(?<!\\)\s+$", "", line)
        if text and not text.startswith("#"):
            pattern = text.removeprefix("!")
            parts = pattern.strip("/").split("/")
            if "/" not in pattern.rstrip("/"):  # at any depth
                parts = [_ANY, *parts]
            parts = [part for at, part in enumerate(parts) if part != _ANY or parts[at - 1 : at] != [_ANY]]
            yield _Rule(tuple(parts), not text.startswith("!"), pattern.endswith("/"))


@functools.lru_cache(1 << 16)
def _matches(pattern: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    if not pattern or not parts:
        return not pattern and not parts
    first, rest = pattern[0], pattern[1:]
    if first == _ANY:
        starts = range(len(parts)) if _ANY in rest else range(max(0, len(parts) - len(rest)), len(parts))
        return not rest or any(_matches(rest, parts[start:]) for start in starts)
    return bool(_component(first).match(parts[0])) and _matches(rest, parts[1:])


@functools.lru_cache(1 << 12)
def _component(text: str) -> re.Pattern[str]:
    """Return the expression of one part of a pattern. What `fnmatch` makes is searched in linear time."""
    text = re.sub(r"\\([*?[])", r"[\1]", text).replace("[^", "[!")
    return re.compile(fnmatch.translate(re.sub(r"\\(.)", r"\1", text)))


def _unignored(
    place: Path, path: str, ignored: GitIgnored, named: set[str], *, only_named: bool = False
) -> Iterator[str]:
    """Yield a file, or those below a folder, without what git ignores. What a build names in full counts nevertheless."""
    is_folder = (place / path).is_dir()
    only_named = (only_named or ignored.ignores(place / path, is_folder=is_folder)) and path not in named
    is_tracked = only_named and ignored.tracks(place / path, is_folder=is_folder)
    if not is_folder:
        yield from () if only_named and not is_tracked else (path,)
        return
    is_entered = not only_named or is_tracked or any(name.startswith(f"{path}/") for name in named)
    if is_entered and not (place / path).is_symlink():
        for name in _visible_names(place / path):
            yield from _unignored(place, f"{path}/{name}", ignored, named, only_named=only_named)
