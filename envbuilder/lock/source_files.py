"""Find the files of the recipe's folder that its extensions are built from, with their digests.

The folder may be a stranger's clone. A link in it may lead to another visible file of the folder, and nowhere else: what a link to
`~/.ssh` says would be in the image.
"""

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from envbuilder.core.beneath import FILE_LIMIT, leads_out, open_beneath
from envbuilder.core.cache import Sha256, Store
from envbuilder.core.errors import BuildError, LockError, RecipeError
from envbuilder.lock.model import SourceFile
from envbuilder.recipe.extension import HERE, SOURCE_SUFFIXES, Extension, Form
from envbuilder.recipe.load import list_recipes, load_all
from envbuilder.recipe.model import SUFFIX, Recipe

HEADERS: Final = frozenset({
    ".h", ".hh", ".hpp", ".hxx", ".h++", ".cuh", ".inl", ".inc", ".ipp", ".ixx", ".tpp", ".tcc", ".txx", ".def",
})  # fmt: skip
# What an import of a captured project may read. Its folder may also hold gigabytes of data.
CODE: Final = frozenset(
    {*HEADERS, *SOURCE_SUFFIXES, ".py", ".pyi", ".toml", ".cfg", ".ini", ".json", ".yaml", ".yml", ".txt"}
)
# Beside code, what a build of a project may read. The recipe's own folder may hold data as well.
_BESIDE_CODE: Final = frozenset({"", ".md", ".rst", ".in", ".cmake"})
_SITES: Final = "sites"  # where `--profile` looks
MADE: Final = frozenset({".so", ".o", ".a", ".pyc", ".egg", ".whl"})  # leftovers of an earlier build


def own_files(recipe: Recipe) -> Mapping[str, tuple[SourceFile, ...]]:
    """Return the source files of each extension. Raises RecipeError with every file that is missing."""
    folder = recipe.path.parent
    missing = [
        f"{recipe.place(f'$.extensions[{index}]')}: the extension `{extension.name}` names `{source}`, which is not there"
        for index, extension in enumerate(recipe.extensions)
        for source in extension.sources
        if not (folder / source).is_file()
    ]
    if missing:
        raise RecipeError("\n".join(missing), hint=f"sources are relative to `{folder}`")
    own = _own(recipe) if any(extension.path == HERE for extension in recipe.extensions) else set()
    return {
        extension.name: tuple(one for one in _files(extension, folder) if one.path not in own)
        for extension in recipe.extensions
    }


def _own(recipe: Recipe) -> set[str]:
    """Return envbuilder's own files in the recipe's folder: recipes, and profiles of sites.

    No project is built from them. A lock must not name its own recipe, and stays valid when `add` writes another one.
    """
    folder = recipe.path.parent
    beside = load_all(folder)[0] if list_recipes(folder) else ()
    recipes = {path.name for path in (*recipe.files, *(one.path for one in beside)) if path.suffix == SUFFIX}
    return recipes | {f"{_SITES}/{path.name}" for path in (folder / _SITES).glob(f"*{SUFFIX}")}


def source_digests(files: Mapping[str, tuple[SourceFile, ...]]) -> Mapping[str, Sha256]:
    """Return the digest of every file of every extension, by its path below the recipe's folder."""
    return {file.path: file.sha256 for some in files.values() for file in some}


def _files(extension: Extension, folder: Path) -> Iterator[SourceFile]:
    if extension.form is Form.LOAD:
        paths = {*extension.sources, *_headers(extension, folder)}
    elif extension.is_remote:
        paths = set()
    else:
        paths = set(_project(folder / extension.path, folder, code_only=extension.form is Form.CAPTURE))
        if extension.path == HERE and extension.form is Form.PROJECT:
            paths = {path for path in paths if Path(path).suffix.lower() in CODE | _BESIDE_CODE}
    if extension.patch:
        paths.add(extension.patch)
    for path in sorted(paths):
        with open_source(folder, path) as stream:
            digest = Sha256(hashlib.file_digest(stream, "sha256").hexdigest())
            yield SourceFile(path=path, sha256=digest, size=stream.tell())


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
        yield from (path for path in _visible(place, folder) if Path(path).suffix.lower() in HEADERS)


def _project(place: Path, folder: Path, *, code_only: bool) -> Iterator[str]:
    """Yield a project's files without the leftovers of a build."""
    for path in _visible(place, folder):
        file = Path(path)
        parents = file.relative_to(place.relative_to(folder)).parts[:-1]
        made = parents[:1] in (("build",), ("dist",)) or "__pycache__" in parents
        made = made or any(part.endswith(".egg-info") for part in parents)
        if not made and file.suffix not in MADE and (not code_only or file.suffix.lower() in CODE):
            yield path


def _visible(place: Path, folder: Path) -> Iterator[str]:
    """Yield the files in or below `place`, relative to `folder`, without hidden ones."""
    for path in place.rglob("*"):
        relative = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            yield relative.as_posix()
