"""Copy everything that a lock names into a folder. A machine without a network builds from that folder.

NAME.yaml, NAME.lock      the recipe with what it extends, and its lock
<path>                    the extensions' own files, where the recipe names them
files/                    packages and wheels, with the toolbox, flat: a folder for ENVBUILDER_FOLDERS
files/blobs/sha256/       the blobs of a base image; with `files/index.json`, an OCI layout
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from envbuilder.artifacts.oci.model import LAYOUT, Descriptor, make_index, parse_manifest
from envbuilder.core.beneath import pinned_folder
from envbuilder.core.cache import Store, beside, commit_path, save_text, sha256_file, space_errors
from envbuilder.core.errors import UsageError
from envbuilder.core.plain import pasted
from envbuilder.core.private import make_folder_for_all, open_to_all
from envbuilder.lock.file import lock_path
from envbuilder.lock.model import Lock, LockedBase, lock_artifacts
from envbuilder.recipe.model import SUFFIX, Recipe
from envbuilder.sources.names import BLOBS, HUB, REGISTRY, Wanted

FILES: Final = "files"
INDEX: Final = "index.json"
_REFERENCE: Final = "org.opencontainers.image.ref.name"  # by which other tools find one of several images


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendored:
    """What was copied, and the command that builds from it."""

    files: int
    bytes: int
    command: str


def vendor(recipe: Recipe, lock: Lock, folder: Path, store: Store, tools: Sequence[Wanted] = ()) -> Vendored:
    """Copy what the lock names from the store, `tools`, and the files of the recipe. The store must hold it all.

    Files that are there with the right digest stay. Raises UsageError when two artifacts have the same name.
    """
    wanted: dict[str, Wanted] = {_place(file): file for file in (*tools, *lock_artifacts(lock))}
    for artifact in lock_artifacts(lock):
        if wanted[_place(artifact)].sha256 != artifact.sha256:
            raise UsageError(f"the lock names two different files `{artifact.filename}`")
    copies = [(store.artifact(file.sha256), name, file.sha256) for name, file in wanted.items()]
    above = recipe.path.parent
    copies += [(above / file.path, file.path, file.sha256) for file in lock.own_files]
    recipes = _recipe_files(recipe)
    copies += [(path, path.relative_to(above).as_posix(), sha256_file(path)) for path in recipes]
    texts: dict[str, bytes] = {}
    if lock.base:
        index = folder / FILES / INDEX
        texts = layout_files(lock.base, index.read_bytes() if index.is_file() else b"")
    size = sum(map(len, texts.values()))
    with space_errors(folder):
        make_folder_for_all(str(folder))
        for source, name, digest in copies:
            target = folder / name
            size += source.stat().st_size
            if not (target.is_file() and sha256_file(target) == digest):
                parent = pinned_folder(folder, str(PurePosixPath(name).parent))
                with parent as inside, beside(inside / target.name) as work:
                    shutil.copyfile(source, work / target.name)
                    open_to_all(str(work / target.name))
                    commit_path(work / target.name, inside / target.name)
        with pinned_folder(folder, FILES) as inside:
            for name, content in texts.items():
                save_text(inside / name, content.decode())
    return Vendored(
        files=len(copies) + len(texts),
        bytes=size,
        command=f"ENVBUILDER_FOLDERS={pasted(folder / FILES)} "
        + pasted("envbuilder", "build", folder / f"{recipe.name}{SUFFIX}", "--offline"),
    )


def _place(artifact: Wanted) -> str:
    """Return the path in the folder: the digest for a blob of an image, otherwise the file name."""
    below = (
        f"{BLOBS}/{artifact.sha256}"
        if artifact.source in (REGISTRY, HUB)
        else artifact.path.rpartition("/")[2]
    )
    return f"{FILES}/{below}"


def layout_files(base: LockedBase, index: bytes = b"") -> dict[str, bytes]:
    """Return name → content of the files that make a folder with the image's blobs an OCI layout.

    `index` is the folder's index so far. An unreadable one is replaced: blobs are found by digest.
    """
    try:
        others = parse_manifest(index).manifests if index else ()
    except ValueError:
        others = ()
    manifest, names = base.manifest, ((_REFERENCE, base.reference),)
    image = Descriptor(
        media_type=manifest.media_type, digest=manifest.digest, size=manifest.size, annotations=names
    )
    listed = [image, *(descriptor for descriptor in others if descriptor.annotations != image.annotations)]
    listed.sort(key=lambda descriptor: (descriptor.annotations, descriptor.digest))
    return {"oci-layout": LAYOUT, INDEX: make_index(listed).content}


def _recipe_files(recipe: Recipe) -> Iterator[Path]:
    for path in recipe.files:
        yield path
        lock = lock_path(recipe) if path == recipe.path else path.with_suffix(".lock")
        if path.suffix == SUFFIX and lock.is_file():
            yield lock
