"""Find the files of the recipe's folder that its extensions are built from, with their digests."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from envbuilder.core.cache import Sha256, sha256_file
from envbuilder.core.errors import RecipeError
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
        file = folder / path
        yield SourceFile(path=path, sha256=sha256_file(file), size=file.stat().st_size)


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
