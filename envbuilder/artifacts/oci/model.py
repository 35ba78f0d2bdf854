"""OCI descriptors, manifests, indexes and image configurations: the JSON that names the blobs of an image.

The writer of layouts, the reader of foreign images, the registry client and base images all use these types.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Annotated, Any, Final, TypeVar, cast

from pydantic import ConfigDict, Field, PlainSerializer, ValidationError
from pydantic.alias_generators import to_camel, to_pascal

from envbuilder.core.budget import parse_json
from envbuilder.core.cache import Sha256, parse_sha256, sha256_bytes
from envbuilder.core.models import ReadAs, Whole, adapter

IMAGE: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX: Final = "application/vnd.oci.image.index.v1+json"
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
LAYER: Final = "application/vnd.oci.image.layer.v1.tar+zstd"
DOCKER_IMAGE: Final = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX: Final = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFESTS: Final = (IMAGE, INDEX, DOCKER_IMAGE, DOCKER_INDEX)
EMPTY: Final = "application/vnd.oci.empty.v1+json"  # of the config of an artifact that is not an image
EMPTY_CONTENT: Final = b"{}"
MOST_JSON: Final = 4 << 20  # bytes of a manifest or a configuration that a reader accepts
LAYOUT: Final = b'{"imageLayoutVersion":"1.0.0"}'  # of the file `oci-layout` in a folder of images

T = TypeVar("T")


def parse_digest(text: str) -> Sha256:
    algorithm, _, digest = text.partition(":")
    if algorithm != "sha256":
        raise ValueError(f"expected a sha256 digest, found {text!r}")
    return parse_sha256(digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Platform:
    os: str = ""
    architecture: str = ""
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, astuple(self)))


def platform_data(platform: str) -> dict[str, str]:
    """Return the JSON's keys for `os/architecture[/variant]`."""
    return dict(zip(_Platform.__slots__, platform.split("/"), strict=False))


# Each of these types also says how the JSON spells its values.
Digest = Annotated[Sha256, ReadAs(str, parse_digest), PlainSerializer(lambda digest: f"sha256:{digest}")]
Platform = Annotated[str, ReadAs(_Platform, str), PlainSerializer(platform_data)]  # os/architecture[/variant]
Pairs = Annotated[
    tuple[tuple[str, str], ...],
    ReadAs(dict[str, str], lambda pairs: tuple(pairs.items())),
    PlainSerializer(dict),
]
Variables = Annotated[
    tuple[tuple[str, str], ...],
    ReadAs(tuple[str, ...], lambda texts: tuple(text.partition("=")[::2] for text in texts)),
    PlainSerializer(lambda pairs: [f"{name}={value}" for name, value in pairs]),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """The type, digest and size of a blob or of a manifest, as a manifest or an index names it."""

    __pydantic_config__ = ConfigDict(alias_generator=to_camel)
    media_type: str = ""
    digest: Digest
    size: Whole  # bytes
    artifact_type: str = ""
    platform: Platform = ""
    annotations: Pairs = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest and its bytes, which the digest covers. An index has `manifests`, an image `config` and `layers`."""

    __pydantic_config__ = ConfigDict(alias_generator=to_camel)
    content: bytes
    media_type: str
    digest: Digest
    artifact_type: str = ""
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] = ()
    manifests: tuple[Descriptor, ...] = ()
    subject: Descriptor | None = None
    annotations: Pairs = ()

    @property
    def is_index(self) -> bool:
        return self.media_type in (INDEX, DOCKER_INDEX)

    @property
    def kind(self) -> str:
        """Return the type of the artifact: its own type, otherwise that of its config."""
        return self.artifact_type or (self.config.media_type if self.config else "")

    def descriptor(self) -> Descriptor:
        """Return the descriptor by which other manifests and indexes name this one."""
        return Descriptor(
            media_type=self.media_type,
            digest=self.digest,
            size=len(self.content),
            artifact_type=self.kind,
            annotations=self.annotations,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """The settings with which a container starts."""

    __pydantic_config__ = ConfigDict(alias_generator=to_pascal)
    env: Variables = ()
    cmd: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    workdir: Annotated[str, Field(alias="WorkingDir")] = ""
    labels: Pairs = ()
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RootFiles:
    diff_ids: tuple[Digest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The blob that `config` of an image's manifest names."""

    platform: Platform
    created: str = ""
    image: Annotated[ImageConfig, Field(alias="config")] = ImageConfig()
    # Of the layers' tars, the lowest first.
    diff_ids: Annotated[
        tuple[Digest, ...], Field(alias="rootfs"), ReadAs(_RootFiles, lambda root: root.diff_ids)
    ]

    @property
    def architecture(self) -> str:
        return self.platform.partition("/")[2].partition("/")[0]


def parse_configuration(content: bytes) -> Configuration:
    """Raises ValueError for what is not the configuration of an image."""
    try:
        value = load_json(content)
        return _read(Configuration, value | {"platform": value})
    except ValueError as error:
        raise ValueError(f"its config is not an image's: {error}") from error


def parse_manifest(content: bytes, media_type: str = "") -> Manifest:
    """Read a manifest or an index; raises ValueError for other JSON and for schema version 1."""
    value = load_json(content)
    if (version := value.get("schemaVersion")) != 2:
        raise ValueError(
            f"a manifest of schema version {_brief(version)}, which only registries before 2017 have"
        )
    kind = value.get("mediaType") or media_type or (INDEX if "manifests" in value else IMAGE)
    if kind not in MANIFESTS:
        raise ValueError(f"a manifest of the unknown type {_brief(kind)}")
    whole = kind in (IMAGE, DOCKER_IMAGE)
    if ("config" in value) != whole or ("manifests" in value) == whole:
        raise ValueError(f"a manifest that is not what its type {kind!r} says")
    if b"\\ud" in content.lower():  # perhaps half a character, which no lock and no file can hold
        _need_text(value)
    facts = {"content": content, "mediaType": kind, "digest": f"sha256:{sha256_bytes(content)}"}
    return _read(Manifest, value | facts)


def _need_text(value: object) -> None:
    """Raise ValueError for a value with a text that is no Unicode."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error


def _brief(value: object) -> str:
    """Return a foreign value for a message. What it holds is not shown: it may be nested deeply."""
    return repr(value) if isinstance(value, str | int | None) else f"of {type(value).__name__}"


def make_manifest(
    *, config: Descriptor, layers: Sequence[Descriptor], artifact_type: str = "", subject: Descriptor | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:  # fmt: skip
    """Write a manifest; the same parts give the same bytes."""
    value: dict[str, object] = {
        "schemaVersion": 2,
        "mediaType": IMAGE,
        "config": data_of(config),
        "layers": [data_of(layer) for layer in layers],
    }
    if artifact_type:
        value["artifactType"] = artifact_type
    if subject:
        bare = Descriptor(media_type=subject.media_type, digest=subject.digest, size=subject.size)
        value["subject"] = data_of(bare)
    if annotations:
        value["annotations"] = dict(annotations)
    return parse_manifest(dump(value))


def make_index(manifests: Sequence[Descriptor]) -> Manifest:
    value = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [data_of(manifest) for manifest in manifests],
    }
    return parse_manifest(dump(value))


def describe(content: bytes, media_type: str) -> Descriptor:
    return Descriptor(media_type=media_type, digest=sha256_bytes(content), size=len(content))


def dump(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def data_of(value: Descriptor | ImageConfig) -> dict[str, object]:
    """Return the JSON of a value under the specification's names, without empty keys."""
    kind: Any = type(value)
    return cast("dict[str, object]", adapter(kind).dump_python(value, by_alias=True, exclude_defaults=True))


def load_json(text: str | bytes) -> dict[str, Any]:
    """Read a JSON object from outside, in which null is as good as no key; raises ValueError."""
    value = parse_json(text, lambda pairs: {key: item for key, item in pairs if item is not None})
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type(value).__name__}")  # noqa: TRY004  # foreign input
    return value


def _read(kind: type[T], value: Mapping[str, object]) -> T:
    try:
        return cast("T", adapter(cast("Any", kind)).validate_python(value))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg'].removeprefix('Value error, ')}") from error
