"""Resolve a base image: the digest of its tag for our platform, its blobs, and the facts inside.

Each layer is downloaded into a file, read once and removed, so an image of 20 GB needs the space of its
largest layer. The cache keeps the facts by reference, so a second lock, or a `check` after a refused one,
downloads no layer again.
"""

import json
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Final

from envbuilder.artifacts.oci.model import Configuration, Descriptor, Manifest, parse_configuration
from envbuilder.artifacts.oci.naming import Reference, names_registry, parse_reference
from envbuilder.compat.image_facts import PLATFORM
from envbuilder.compat.inspect_image import Inside, inspect_tree, is_wanted
from envbuilder.core.cache import save_text, space_errors
from envbuilder.core.errors import ContentError, IncompatibleError
from envbuilder.layers.overlay import DAMAGED, Overlay
from envbuilder.lock.file import BASE, kept_folder, recall
from envbuilder.lock.model import Blob, LockedBase
from envbuilder.lock.resolve.context import LockOptions, ResolveContext
from envbuilder.recipe.model import Recipe
from envbuilder.registry.download import fetch_blob, read_blob, read_image

_STATUS: Final = "status"
_KEYS: Final = "keys"
_NAMES: Final = "names.json"  # path in the image → name in that folder


def resolve_image(
    recipe: Recipe, context: ResolveContext, *, old: LockedBase | None, options: LockOptions
) -> LockedBase:
    """Resolve the recipe's image reference, and inspect the image unless that was done before.

    A locked tag keeps its digest until an upgrade. Raises RegistryError, or IncompatibleError for a tag with
    `options.before`.
    """
    reference = parse_reference(recipe.image)
    if old and old.reference == recipe.image and not options.upgrade:
        return old
    if options.before and not reference.digest:
        raise IncompatibleError(
            f"{recipe.place('$.base.image')}: no registry records what `{recipe.image}` was on {options.before}",
            hint="write the digest of that day's image behind it: `@sha256:…`",
        )
    manifest = read_image(context.client(), reference, f"linux/{PLATFORM}")
    cached = recall(context.store, recipe.image)
    if cached and cached.manifest.digest == manifest.digest:
        return cached
    return _inspect_image(recipe.image, reference, manifest, context)


def read_kept(base: LockedBase, context: ResolveContext) -> tuple[str, dict[str, Path]]:
    """Return dpkg's status of a locked image, "" if it has none, and the files with the keys of its apt by their paths there.

    An image that was locked elsewhere is read again.
    """
    folder = kept_folder(context.store, base.reference)
    cached = recall(context.store, base.reference)
    if cached is None or cached.manifest != base.manifest or not (folder / _STATUS).is_file():
        reference = parse_reference(base.reference).with_digest(base.manifest.digest)
        manifest = read_image(context.client(), reference, f"linux/{PLATFORM}")
        _inspect_image(base.reference, reference, manifest, context)
    names = json.loads((folder / _KEYS / _NAMES).read_text(encoding="utf-8"))
    keys = {path: folder / _KEYS / name for path, name in names.items()}
    return (folder / _STATUS).read_text(encoding="utf-8"), keys


def _inspect_image(
    name: str, reference: Reference, manifest: Manifest, context: ResolveContext
) -> LockedBase:
    if manifest.config is None or not manifest.layers:
        raise ContentError(f"`{name}` is no image: its manifest names no layers")
    try:
        configuration = parse_configuration(read_blob(context.client(), reference, manifest.config))
    except ValueError as error:
        raise ContentError(f"`{name}` is no image that can be used: {error}") from error
    inside = _inside(name, reference, manifest, configuration, context)
    registry = reference.registry if names_registry(name) else ""
    base = LockedBase(
        reference=name, registry=registry, repository=reference.repository, manifest=_blob(manifest.descriptor()),
        config=_blob(manifest.config), layers=tuple(map(_blob, manifest.layers)),
        facts=inside.facts, packages=inside.packages,
    )  # fmt: skip
    with context.store.renewed(kept_folder(context.store, name)) as folder:
        keys = folder / _KEYS
        keys.mkdir(mode=0o700)
        names = {path: f"{number}-{path.rpartition('/')[2]}" for number, path in enumerate(inside.keys)}
        for path, filename in names.items():
            (keys / filename).write_bytes(inside.keys[path])
        save_text(keys / _NAMES, json.dumps(names))
        save_text(folder / _STATUS, inside.status)
        save_text(folder / BASE, json.dumps(asdict(base), ensure_ascii=False))
    return base


def _inside(
    name: str, reference: Reference, manifest: Manifest, configuration: Configuration, context: ResolveContext
) -> Inside:
    """Download the layers and apply them in order. For another processor, the config alone is enough."""
    if configuration.architecture != PLATFORM:
        return inspect_tree({}, {}, configuration)
    if len(configuration.diff_ids) != len(manifest.layers):
        raise ContentError(
            f"`{name}` is no image that can be used: its config names {len(configuration.diff_ids)} layers, "
            f"its manifest {len(manifest.layers)}"
        )
    tree = Overlay(is_wanted)
    size = sum(layer.size for layer in manifest.layers)
    with context.transfer(f"inspect {name}", size) as progress, context.store.lock("fetch"):
        for layer, diff_id in zip(manifest.layers, configuration.diff_ids, strict=True):
            path = context.store.partial(layer.digest)
            stop = threading.Event()
            with space_errors(path):
                fetch_blob(context.client(), reference, layer, path, progress=progress, stop=stop)
            try:
                with path.open("rb") as stream:
                    tree.lay_over(stream, name=f"sha256:{layer.digest}", sha256=layer.digest, diff_id=diff_id)
            except DAMAGED as error:
                raise ContentError(
                    f"a layer of `{reference}` cannot be read: {error}",
                    hint="the image has to be made again: its registry sends what the manifest names",
                ) from error
            finally:
                path.unlink(missing_ok=True)
    return inspect_tree(tree, tree.contents(), configuration)


def _blob(descriptor: Descriptor) -> Blob:
    return Blob(digest=descriptor.digest, size=descriptor.size, media_type=descriptor.media_type)
