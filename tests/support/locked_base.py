"""The entry of a lock for a base image that the tests make."""

import io

from envbuilder.artifacts.oci.model import parse_configuration
from envbuilder.compat.image_facts import Base
from envbuilder.core.cache import Sha256
from envbuilder.layers.overlay import Overlay
from envbuilder.lock.inspect_image import Inside, inspect_tree, is_wanted
from envbuilder.lock.model import Blob, LockedBase
from tests.support import bases


def look(shape: bases.Shape) -> Inside:
    packed = bases.pack(shape)
    configuration = parse_configuration(packed.config)
    tree = Overlay(is_wanted)
    for data, diff_id in zip(packed.blobs, configuration.diff_ids, strict=True):
        digest = bases.sha256(data).removeprefix("sha256:")
        tree.lay_over(io.BytesIO(data), name="layer", sha256=digest, diff_id=diff_id)
    return inspect_tree(tree, tree.contents(), configuration)


def base(shape: bases.Shape) -> Base:
    found = look(shape)
    return Base(facts=found.facts, packages=found.packages)


def locked(shape: bases.Shape, reference: str = "site/base:1", registry: str = "") -> LockedBase:
    packed, inside = bases.pack(shape), look(shape)

    def blob(data: bytes, kind: str) -> Blob:
        return Blob(
            digest=Sha256(bases.sha256(data).removeprefix("sha256:")), size=len(data), media_type=kind
        )

    return LockedBase(
        reference=reference,
        registry=registry,
        repository="site/base",
        manifest=blob(packed.manifest, "application/vnd.oci.image.manifest.v1+json"),
        config=blob(packed.config, "application/vnd.oci.image.config.v1+json"),
        layers=tuple(blob(data, kind) for data, kind in zip(packed.blobs, packed.media_types, strict=True)),
        facts=inside.facts,
        packages=inside.packages,
    )


BASE = locked(bases.devel())
