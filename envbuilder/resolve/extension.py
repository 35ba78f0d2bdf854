"""The recipe's own files that an extension is compiled from, with their digests."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from envbuilder.errors import RecipeError
from envbuilder.lock import LockedExtension, SourceFile
from envbuilder.recipe import Extension, Recipe
from envbuilder.store import Sha256, Store, sha256_file

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


def lock_extensions(recipe: Recipe) -> tuple[LockedExtension, ...]:
    """Read and hash what the extensions are made of; raises RecipeError with every file that is not there.

    Which headers a compiler will read is not known before it runs, so the rule is simple and takes too many rather than
    too few: every file with a header's suffix in or below the folders of the sources and the include folders. Hidden files
    and folders are left out.
    """
    folder = recipe.path.parent
    missing = [
        f"{recipe.place(f'$.extensions[{index}]')}: the extension `{extension.name}` names `{source}`, which is not there"
        for index, extension in enumerate(recipe.extensions)
        for source in extension.sources
        if not (folder / source).is_file()
    ]
    if missing:
        raise RecipeError("\n".join(missing), hint=f"sources are relative to `{folder}`")
    return tuple(_lock_extension(extension, folder) for extension in recipe.extensions)


def source_digests(extensions: tuple[LockedExtension, ...]) -> Mapping[str, Sha256]:
    """Path below the recipe's folder → digest, of every file of every extension."""
    return {file.path: file.sha256 for extension in extensions for file in extension.files}


def store_sources(recipe: Recipe, extensions: tuple[LockedExtension, ...], store: Store) -> None:
    """Take the extensions' files into the store, where a build reads them."""
    for path, digest in source_digests(extensions).items():
        store.add_artefact(digest, recipe.path.parent / path)


def _lock_extension(extension: Extension, folder: Path) -> LockedExtension:
    paths = sorted({*extension.sources, *_headers(extension, folder)})
    return LockedExtension(
        name=extension.name,
        sources=extension.sources,
        include=extension.include,
        cflags=extension.cflags,
        cuda_cflags=extension.cuda_cflags,
        files=tuple(
            SourceFile(path=path, sha256=sha256_file(folder / path), size=(folder / path).stat().st_size)
            for path in paths
        ),
    )


def _headers(extension: Extension, folder: Path) -> Iterator[str]:
    places = {(folder / source).parent for source in extension.sources} | {
        folder / include for include in extension.include
    }
    for place in sorted(places):
        for path in place.rglob("*"):
            relative = path.relative_to(folder)
            hidden = any(part.startswith(".") for part in relative.parts)
            if path.suffix.lower() in HEADERS and not hidden and path.is_file():
                yield relative.as_posix()
