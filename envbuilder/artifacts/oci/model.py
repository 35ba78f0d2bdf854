"""OCI descriptors, manifests, indexes and image configurations: the JSON that names the blobs of an image.

The writer of layouts, the reader of foreign images, the registry client and base images all use
these types.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from envbuilder.core.cache import Sha256, parse_sha256

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

_PLATFORM: Final = ("os", "architecture", "variant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """The type, digest and size of a blob or of a manifest, as a manifest or an index names it."""

    media_type: str
    digest: Sha256
    size: int  # bytes
    artifact_type: str = ""
    platform: str = ""  # os/architecture[/variant]
    annotations: tuple[tuple[str, str], ...] = ()

    def data(self) -> dict[str, object]:
        data: dict[str, object] = {
            "mediaType": self.media_type,
            "digest": f"sha256:{self.digest}",
            "size": self.size,
        }
        if self.artifact_type:
            data["artifactType"] = self.artifact_type
        if self.platform:
            data["platform"] = platform_data(self.platform)
        return data | ({"annotations": dict(self.annotations)} if self.annotations else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest and its bytes, which the digest covers. An index has `manifests`, an image `config` and `layers`."""

    content: bytes
    media_type: str
    digest: Sha256
    artifact_type: str = ""
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] = ()
    manifests: tuple[Descriptor, ...] = ()
    subject: Descriptor | None = None
    annotations: tuple[tuple[str, str], ...] = ()

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
    """What a container is started with."""

    env: tuple[tuple[str, str], ...] = ()
    cmd: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    workdir: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    user: str = ""

    def data(self) -> dict[str, object]:
        data: dict[str, object] = {
            "Env": [f"{name}={value}" for name, value in self.env],
            "Cmd": list(self.cmd),
            "Entrypoint": list(self.entrypoint),
            "WorkingDir": self.workdir,
            "Labels": dict(self.labels),
            "User": self.user,
        }
        return {name: value for name, value in data.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The blob that `config` of an image's manifest names."""

    platform: str  # os/architecture[/variant]
    created: str
    image: ImageConfig
    diff_ids: tuple[Sha256, ...]  # of the layers' tars, the lowest first

    @property
    def architecture(self) -> str:
        return self.platform.partition("/")[2].partition("/")[0]


def parse_configuration(content: bytes) -> Configuration:
    """Raises ValueError for what is not the configuration of an image."""
    try:
        return _configuration(JsonObject.load(content))
    except ValueError as error:
        raise ValueError(f"its config is not an image's: {error}") from error


def parse_manifest(content: bytes, media_type: str = "") -> Manifest:
    """Read a manifest or an index; raises ValueError for other JSON and for schema version 1."""
    value = JsonObject.load(content)
    if value.values.get("schemaVersion") != 2:
        raise ValueError(
            f"a manifest of schema version {value.values.get('schemaVersion')!r}, which only registries before 2017 have"
        )
    kind = value.text("mediaType") or media_type or (INDEX if "manifests" in value.values else IMAGE)
    if kind not in MANIFESTS:
        raise ValueError(f"a manifest of the unknown type {kind!r}")
    whole = kind in (IMAGE, DOCKER_IMAGE)
    if ("config" in value.values) != whole or ("manifests" in value.values) == whole:
        raise ValueError(f"a manifest that is not what its type {kind!r} says")
    return Manifest(
        content=content,
        media_type=kind,
        digest=digest_of(content),
        artifact_type=value.text("artifactType"),
        config=_descriptor(value.child("config")) if whole else None,
        layers=tuple(_descriptor(one) for one in value.objects("layers")),
        manifests=tuple(_descriptor(one) for one in value.objects("manifests")),
        subject=_descriptor(value.child("subject")) if "subject" in value.values else None,
        annotations=value.pairs("annotations"),
    )


def make_manifest(
    *, config: Descriptor, layers: Sequence[Descriptor], artifact_type: str = "", subject: Descriptor | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:  # fmt: skip
    """Write a manifest; the same parts give the same bytes."""
    value: dict[str, object] = {
        "schemaVersion": 2,
        "mediaType": IMAGE,
        "config": config.data(),
        "layers": [layer.data() for layer in layers],
    }
    if artifact_type:
        value["artifactType"] = artifact_type
    if subject:
        bare = Descriptor(media_type=subject.media_type, digest=subject.digest, size=subject.size)
        value["subject"] = bare.data()
    if annotations:
        value["annotations"] = dict(annotations)
    return parse_manifest(dump(value))


def make_index(manifests: Sequence[Descriptor]) -> Manifest:
    value = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [one.data() for one in manifests]}
    return parse_manifest(dump(value))


def platform_data(platform: str) -> dict[str, str]:
    """The keys of `os/architecture[/variant]`."""
    return dict(zip(_PLATFORM, platform.split("/"), strict=False))


def describe(content: bytes, media_type: str) -> Descriptor:
    """The descriptor of a blob with this content."""
    return Descriptor(media_type=media_type, digest=digest_of(content), size=len(content))


def digest_of(content: bytes) -> Sha256:
    return Sha256(hashlib.sha256(content).hexdigest())


def dump(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class JsonObject:
    """A JSON object from outside. Each method returns one value by its type, or raises ValueError."""

    values: Mapping[str, object]

    @classmethod
    def load(cls, text: bytes) -> "JsonObject":
        try:
            return cls.make(json.loads(text))
        except RecursionError as error:
            raise ValueError("JSON that is nested too deeply") from error

    @classmethod
    def make(cls, value: object) -> "JsonObject":
        if not isinstance(value, dict):
            raise ValueError(f"expected a JSON object, found {type(value).__name__}")  # noqa: TRY004  # foreign input
        return cls(value)

    def child(self, key: str) -> "JsonObject":
        value = self.values.get(key)
        return self.make({} if value is None else value)

    def objects(self, key: str) -> tuple["JsonObject", ...]:
        return tuple(self.make(value) for value in self._list(key))

    def text(self, key: str) -> str:
        value = self.values.get(key)
        return "" if value is None else self._text(value)

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(self._text(value) for value in self._list(key))

    def pairs(self, key: str) -> tuple[tuple[str, str], ...]:
        values = self.make(self.values.get(key) or {}).values
        return tuple((name, self._text(value)) for name, value in values.items())

    def size(self) -> int:
        size = self.values.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ValueError(f"expected a size, found {size!r}")
        return size

    def digest(self) -> Sha256:
        return parse_digest(self.text("digest"))

    def _list(self, key: str) -> list[object]:
        value = self.values.get(key) or []
        if not isinstance(value, list):
            raise ValueError(f"expected a list at {key!r}")  # noqa: TRY004  # foreign input
        return value

    @staticmethod
    def _text(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"expected text, found {value!r}")  # noqa: TRY004  # foreign input
        return value


def parse_digest(text: str) -> Sha256:
    algorithm, _, digest = text.partition(":")
    if algorithm != "sha256":
        raise ValueError(f"expected a sha256 digest, found {text!r}")
    return parse_sha256(digest)


def _configuration(value: JsonObject) -> Configuration:
    if "rootfs" not in value.values:
        raise ValueError("it has no `rootfs`")
    image = value.child("config")
    return Configuration(
        platform=_parse_platform(value),
        created=value.text("created"),
        image=ImageConfig(
            env=tuple((name, text) for name, _, text in (one.partition("=") for one in image.texts("Env"))),
            cmd=image.texts("Cmd"),
            entrypoint=image.texts("Entrypoint"),
            workdir=image.text("WorkingDir"),
            labels=image.pairs("Labels"),
            user=image.text("User"),
        ),
        diff_ids=tuple(map(parse_digest, value.child("rootfs").texts("diff_ids"))),
    )


def _descriptor(value: JsonObject) -> Descriptor:
    return Descriptor(
        media_type=value.text("mediaType"),
        digest=value.digest(),
        size=value.size(),
        artifact_type=value.text("artifactType"),
        platform=_parse_platform(value.child("platform")),
        annotations=value.pairs("annotations"),
    )


def _parse_platform(value: JsonObject) -> str:
    return "/".join(filter(None, map(value.text, _PLATFORM)))
