"""References to images, `registry/repository:tag@sha256:…`, and how artifacts look in a registry: media types, tags, annotations."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from envbuilder.artifacts.oci.model import Descriptor, Manifest, describe, parse_digest
from envbuilder.artifacts.outputs import VARIANT
from envbuilder.core.cache import Sha256, parse_sha256
from envbuilder.core.errors import ContentError, UsageError
from envbuilder.core.processor import X86_64, Processor

Form = Literal["image", "sif"]
FORMS: Final[tuple[Form, ...]] = ("image", "sif")
SIF_CONFIG: Final = "application/vnd.sylabs.sif.config.v1+json"
SIF_LAYER: Final = "application/vnd.sylabs.sif.layer.v1.sif"
SIF_FRAME: Final = "application/vnd.envbuilder.sif.frame.v1"  # a SIF without what its image's layers have
SBOM_TYPE: Final = "application/spdx+json"
TITLE: Final = "org.opencontainers.image.title"
IMAGE_KEY: Final = "io.envbuilder.image"  # annotations: the digests of the image and the lock
LOCK_KEY: Final = "io.envbuilder.lock"
_SIF_KEY: Final = "io.envbuilder.sif"  # annotations of a frame: digest and size of its SIF
_SIZE_KEY: Final = "io.envbuilder.sif.size"
LATEST: Final = "latest"
_VARIANT: Final = re.compile(f"{VARIANT}(?!sha256:)")  # a100@torch2.6.0 is pushed as a100:torch2.6.0
_SCHEMES: Final = ("oras://", "docker://")  # which Apptainer and skopeo put before a reference
_PART: Final = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
# The parts of a reference, as messages call them.
_PARTS: Final = {
    "host": re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)(:[0-9]{1,5})?"),
    "repository": re.compile(rf"{_PART}(?:/{_PART})*"),
    "tag": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One image or artifact of a registry. A digest takes precedence over the tag."""

    registry: str  # host, or host:port
    repository: str
    tag: str = ""
    digest: Sha256 | None = None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@sha256:{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.repository}{tag}{digest}"

    @property
    def key(self) -> str:
        """The part of a registry's URL that names the manifest: the digest, otherwise the tag."""
        return f"sha256:{self.digest}" if self.digest else self.tag or LATEST

    @property
    def name(self) -> str:
        """The last part of the repository: what a pull calls its files, and a signature its release."""
        return self.repository.rpartition("/")[2]

    def with_tag(self, tag: str) -> "Reference":
        return replace(self, tag=tag, digest=None)

    def with_digest(self, digest: Sha256) -> "Reference":
        return replace(self, digest=digest)


def parse_only(only: str) -> tuple[Form, ...]:
    """Return the forms that `--only` leaves; raises UsageError."""
    forms = tuple(form for form in FORMS if only in ("", form))
    if not forms:
        raise UsageError(f"there is no form `{only}`", hint=f"`--only` takes {' or '.join(FORMS)}")
    return forms


def default_registry() -> str:
    """Return the registry of names that name none, as the Docker SDK defines it."""
    return _docker_hub()[0]


def default_registry_url() -> str:
    """Return the URL of that registry; clients keep its credentials under this name."""
    return _docker_hub()[1]


def _docker_hub() -> tuple[str, str]:
    from docker import auth  # noqa: PLC0415 - the SDK takes 0.25 s, and `check` parses references without it

    return str(auth.INDEX_NAME), str(auth.INDEX_URL)


def names_registry(text: str) -> bool:
    """Whether a reference as typed names a registry."""
    first, slash, _ = _bare(text).partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")


def parse_reference(text: str) -> Reference:
    """Parse a reference; raises ValueError.

    As in engines, a name without a registry is in the default one, and one without a folder in its `library`.
    """
    bare = _bare(text)
    named, at, digest = bare.partition("@")
    registry, repository = default_registry(), named
    if names_registry(bare):
        registry, _, repository = named.partition("/")
    elif "/" not in named:
        repository = f"library/{named}"
    repository, colon, tag = repository.partition(":")
    parts = {"host": registry, "repository": repository} | ({"tag": tag} if colon else {})
    for what, part in parts.items():
        if not _PARTS[what].fullmatch(part):
            raise ValueError(f"`{text}` is no image reference: `{part}` is no {what}")
    if at and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ValueError(f"`{text}` is no image reference: a digest is sha256: and 64 hexadecimal digits")
    return Reference(
        registry=registry, repository=repository, tag=tag, digest=parse_sha256(digest[7:]) if at else None
    )  # fmt: skip


def _bare(text: str) -> str:
    return next((text.removeprefix(scheme) for scheme in _SCHEMES if text.startswith(scheme)), text)


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


def find_source(typed: str, prefix: str) -> tuple[Reference, str]:
    """Return the reference of what a user typed for `pull`, and the name of its files: a variant keeps its own, a100@torch2.6.0."""
    wanted = Path(typed).stem if typed.endswith((".yaml", ".yml")) else typed
    source = find_reference(wanted, prefix)
    name = source.name
    return source, wanted if f"{name}{VARIANT}{source.tag}" == wanted else name


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
    has_config = manifest.config is not None and manifest.config.media_type == SIF_CONFIG
    return has_config and len(manifest.layers) == 1


def sif_of(manifest: Manifest) -> Descriptor:
    """Return digest and size of the SIF that the manifest `is_sif` is of. Raises ContentError for a frame that names none."""
    layer = manifest.layers[0]
    if layer.media_type != SIF_FRAME:
        return layer
    marks = dict(layer.annotations)
    try:
        digest, size = parse_digest(marks.get(_SIF_KEY, "")), int(marks.get(_SIZE_KEY, ""))
    except ValueError as error:
        raise ContentError(f"the frame `sha256:{layer.digest}` names no SIF: {error}") from error
    return Descriptor(media_type=SIF_LAYER, digest=digest, size=size)


def describe_frame(content: bytes, sif: Descriptor) -> Descriptor:
    """Return the descriptor of a SIF's frame, from which `sif_of` reads that of the SIF."""
    marks = ((_SIF_KEY, f"sha256:{sif.digest}"), (_SIZE_KEY, str(sif.size)), *sif.annotations)
    return replace(describe(content, SIF_FRAME), annotations=marks)
