"""How artifacts look in a registry: their media types, tags and annotations."""

import re
from typing import Final, Literal

from envbuilder.artifacts.oci.model import Descriptor, Manifest, load_json
from envbuilder.artifacts.oci.reference import LATEST, Reference, names_registry, parse_reference
from envbuilder.artifacts.outputs import VARIANT
from envbuilder.core.cache import Sha256, parse_sha256
from envbuilder.core.errors import UsageError
from envbuilder.core.processor import X86_64, Processor

LOCK: Final = "opt/envbuilder/lock.json"
Form = Literal["image", "sif"]
FORMS: Final[tuple[Form, ...]] = ("image", "sif")
SIF_CONFIG: Final = "application/vnd.sylabs.sif.config.v1+json"
SIF_LAYER: Final = "application/vnd.sylabs.sif.layer.v1.sif"
SBOM_TYPE: Final = "application/spdx+json"
PROVENANCE_TYPE: Final = "application/vnd.in-toto+json"
BUNDLE_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
TITLE: Final = "org.opencontainers.image.title"
IMAGE_KEY: Final = "io.envbuilder.image"  # annotations: the digests of the image and the lock
LOCK_KEY: Final = "io.envbuilder.lock"
ENTRY_TYPE: Final = "application/vnd.envbuilder.entry.v1"  # of a store that machines share
ENTRY_KEY: Final = "io.envbuilder.key"  # annotation: the build key of the entry


_VARIANT: Final = re.compile(f"{VARIANT}(?!sha256:)")  # a100@torch2.6.0 is pushed as a100:torch2.6.0


def find_reference(text: str, prefix: str) -> Reference:
    """Return the reference that a user typed, or that of a recipe below ENVBUILDER_REGISTRY; raises UsageError."""
    is_reference = names_registry(text)
    if not is_reference and not prefix:
        raise UsageError(
            f"`{text}` is no name of an image in a registry",
            hint="write REGISTRY/REPOSITORY:TAG, or set ENVBUILDER_REGISTRY to the registry and folder of your recipes",
        )
    try:
        return parse_reference(text if is_reference else f"{prefix}/{_VARIANT.sub(':', text)}")
    except ValueError as error:
        hint = "write REGISTRY/REPOSITORY:TAG in lower-case letters, without `https://`"
        raise UsageError(str(error), hint=hint) from error


def sif_reference(image: Reference, processor: Processor = X86_64) -> Reference:
    """Return the reference of the SIF of an image: the same repository, the tag with `-sif`, or `-arm64-sif` for Arm.

    Apptainer pulls no SIF out of an index, so each processor's has a tag of its own.
    """
    suffix = "" if processor is X86_64 else f"-{processor.debian}"
    return image.with_tag(f"{image.tag or LATEST}{suffix}-sif")


def digest_that_is_signed(form: Form, manifest: Manifest) -> Sha256:
    """Return the digest that a signature covers: of an image the manifest's, of a SIF the file's."""
    return manifest.digest if form == "image" else sif_of(manifest).digest


def is_sif(manifest: Manifest) -> bool:
    """Whether the manifest is that of a SIF."""
    has_config = manifest.config is not None and manifest.config.media_type == SIF_CONFIG
    return has_config and len(manifest.layers) == 1


def sif_of(manifest: Manifest) -> Descriptor:
    """Return digest and size of the SIF that the manifest `is_sif` is of."""
    return manifest.layers[0]


def locked_in(provenance: bytes) -> Sha256:
    """Return the sha256 of the lock that the provenance names; raises ValueError when it names none."""
    try:
        files = load_json(provenance)["predicate"]["buildDefinition"]["externalParameters"]["files"]
        return next(parse_sha256(one["digest"]["sha256"]) for one in files if one["name"] == LOCK)
    except (LookupError, TypeError, StopIteration) as error:
        raise ValueError("it names no lock") from error
