"""What an extension is made of: the recipe's own files, a git commit or an sdist, each with its digest."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from envbuilder.errors import FetchError, LockError, RecipeError
from envbuilder.extension import SOURCE_SUFFIXES, Extension, Form
from envbuilder.lock import Artefact, Lock, LockedExtension, SourceFile
from envbuilder.recipe import Recipe
from envbuilder.resolve.checkout import export_commit
from envbuilder.resolve.means import Means
from envbuilder.resolve.sdist import find_sdist
from envbuilder.store import Sha256, sha256_file

HEADERS: Final = frozenset(
    {
        ".h",
        ".hh",
        ".hpp",
        ".hxx",
        ".h++",
        ".cuh",
        ".inl",
        ".inc",
        ".ipp",
        ".ixx",
        ".tpp",
        ".tcc",
        ".txx",
        ".def",
    }
)
# What an import of a project may read beside its modules; a folder that is captured may also hold data by the gigabyte.
CODE: Final = frozenset(
    {*HEADERS, *SOURCE_SUFFIXES, ".py", ".pyi", ".toml", ".cfg", ".ini", ".json", ".yaml", ".yml", ".txt"}
)
MADE: Final = frozenset(
    {".so", ".o", ".a", ".pyc", ".egg", ".whl"}
)  # what an earlier build left in a project


def lock_extensions(recipe: Recipe, means: Means, *, old: Lock | None) -> tuple[LockedExtension, ...]:
    """Find and hash what the extensions are made of; raises RecipeError, FetchError or BuildError.

    An archive that the old lock names for the same commit or version is taken over and not looked at again.
    """
    known = {one.name: one for one in old.extensions} if old else {}
    files = own_files(recipe)
    return tuple(
        _lock(extension, files[extension.name], known.get(extension.name), means)
        for extension in recipe.extensions
    )


def own_files(recipe: Recipe) -> Mapping[str, tuple[SourceFile, ...]]:
    """Extension → the files of the recipe's folder that it is built from; raises RecipeError with every one that is missing."""
    folder = recipe.path.parent
    missing = [
        f"{recipe.place(f'$.extensions[{index}]')}: the extension `{extension.name}` names `{source}`, which is not there"
        for index, extension in enumerate(recipe.extensions)
        for source in extension.sources
        if not (folder / source).is_file()
    ]
    if missing:
        raise RecipeError("\n".join(missing), hint=f"sources are relative to `{folder}`")
    return {extension.name: tuple(_files(extension, folder)) for extension in recipe.extensions}


def source_digests(files: Mapping[str, tuple[SourceFile, ...]]) -> Mapping[str, Sha256]:
    """Path below the recipe's folder → digest, of every file of every extension."""
    return {file.path: file.sha256 for some in files.values() for file in some}


def store_sources(
    recipe: Recipe, extensions: tuple[LockedExtension, ...], means: Means, *, offline: bool = False
) -> None:
    """Take what the extensions are built from into the store, where a build reads it; sdists are fetched like wheels."""
    for extension in extensions:
        for file in extension.files:
            means.store.add_artefact(file.sha256, recipe.path.parent / file.path)
        archive = extension.archive
        if (
            archive is not None
            and archive.kind == "git"
            and not means.store.artefact(archive.sha256).exists()
        ):
            _store_commit(extension, archive, means, offline=offline)


def _store_commit(extension: LockedExtension, archive: Artefact, means: Means, *, offline: bool) -> None:
    """From a folder that has its tree, as `cache vendor` writes it; else from the repository."""
    for folder in means.sources().folders:
        path = folder / archive.filename
        if path.is_file() and sha256_file(path) == archive.sha256:
            means.store.add_artefact(archive.sha256, path)
            return
    if offline:
        raise FetchError(
            f"this run is offline, and the commit {extension.commit} of `{extension.git}` is not in the cache",
            hint=f"run it once without `--offline`, or put `{archive.filename}` into a folder that ENVBUILDER_FOLDERS names",
        )
    found = export_commit(extension.git, extension.commit, store=means.store, runner=means.runner)
    if found.sha256 != archive.sha256:
        raise LockError(
            f"the commit {extension.commit} of `{extension.git}` gives other files than when it was locked",
            hint="a submodule that is gone, or a repository that was replaced: find out which before relocking",
        )


def _lock(
    extension: Extension, files: tuple[SourceFile, ...], old: LockedExtension | None, means: Means
) -> LockedExtension:
    return LockedExtension(
        name=extension.name,
        sources=extension.sources,
        include=extension.include,
        cflags=extension.cflags,
        cuda_cflags=extension.cuda_cflags,
        files=files,
        path=extension.path,
        git=extension.git,
        commit=extension.commit,
        sdist=extension.sdist,
        capture=extension.capture,
        env=extension.env,
        archive=_archive(extension, old, means),
    )


def _archive(extension: Extension, old: LockedExtension | None, means: Means) -> Artefact | None:
    origin = (extension.git, extension.commit, extension.sdist)
    if not any(origin):
        return None
    if old is not None and origin == (old.git, old.commit, old.sdist):
        return old.archive
    if extension.sdist:
        name, _, version = extension.sdist.partition("==")
        return find_sdist(name, version, means)
    return export_commit(extension.git, extension.commit, store=means.store, runner=means.runner)


def _files(extension: Extension, folder: Path) -> Iterator[SourceFile]:
    if extension.form is Form.LOAD:
        paths = {*extension.sources, *_headers(extension, folder)}
    elif extension.git or extension.sdist:
        paths = set()
    else:
        paths = set(_project(folder / extension.path, folder, code_only=extension.form is Form.CAPTURE))
    for path in sorted(paths):
        file = folder / path
        yield SourceFile(path=path, sha256=sha256_file(file), size=file.stat().st_size)


def _headers(extension: Extension, folder: Path) -> Iterator[str]:
    """Headers that the sources may include.

    Which of them a compiler will read is not known before it runs, so the rule is simple and takes too many rather than
    too few: every file with a header's suffix in or below the folders of the sources and the include folders. Hidden files
    and folders are left out.
    """
    places = {(folder / source).parent for source in extension.sources} | {
        folder / include for include in extension.include
    }
    for place in sorted(places):
        yield from (path for path in _visible(place, folder) if Path(path).suffix.lower() in HEADERS)


def _project(place: Path, folder: Path, *, code_only: bool) -> Iterator[str]:
    """A project's files without what a build of it leaves behind."""
    for path in _visible(place, folder):
        file = Path(path)
        parents = file.relative_to(place.relative_to(folder)).parts[:-1]
        built = parents[:1] in (("build",), ("dist",)) or any(
            part == "__pycache__" or part.endswith(".egg-info") for part in parents
        )
        if not built and file.suffix not in MADE and (not code_only or file.suffix.lower() in CODE):
            yield path


def _visible(place: Path, folder: Path) -> Iterator[str]:
    """The files in or below `place`, relative to `folder`, without hidden ones."""
    for path in place.rglob("*"):
        relative = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            yield relative.as_posix()
