"""The image as a folder: an OCI layout of the layers, a config and a manifest, and the tar that engines load.

The layer blobs are hard links into the store, so that an image takes no second copy of its bytes.
"""

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from envbuilder.artifacts.oci.model import LAYOUT, JsonObject, Manifest, dump, parse_digest
from envbuilder.artifacts.oci.reference import default_registry, parse_reference
from envbuilder.core.cache import Sha256, beside, link_or_copy
from envbuilder.core.errors import UsageError, VerifyError
from envbuilder.layers.entry import Entry, Kind
from envbuilder.layers.layer import Layer
from envbuilder.layers.tar import BLOCK, CHUNK, END, make_header, padded

CONFIG_TYPE: Final = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"
LAYER_TYPE: Final = "application/vnd.oci.image.layer.v1.tar+zstd"
_MOST_JSON: Final = 4 << 20  # bytes of a manifest or config that a reader believes


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """What a container is started with."""

    env: tuple[tuple[str, str], ...] = ()
    cmd: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    workdir: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    digest: Sha256
    size: int  # bytes
    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLayer:
    blob: Blob
    diff_id: Sha256  # of the tar


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """An OCI layout as read: what it says, not yet whether its blobs agree (`verify` checks that)."""

    folder: Path
    reference: str  # registry/repository:tag, or empty
    platform: str
    created: str
    manifest: Blob
    config_blob: Blob
    config: ImageConfig
    layers: tuple[ImageLayer, ...]

    def path(self, blob: Blob) -> Path:
        return self.folder / "blobs" / "sha256" / blob.digest


def write_layout(
    *, layers: Sequence[Layer], config: ImageConfig, epoch: int, platform: str, folder: Path, name: str
) -> Sha256:
    """Write the image `name` (`repository:tag`) to `folder` and return its manifest's digest.

    The layout appears under its name when it is whole, in place of an earlier one; anything else there is left alone
    and is a UsageError.
    """
    reference = full_reference(name)
    with _in_place_of(folder) as new:
        manifest = _fill(
            new, layers=layers, config=config, epoch=epoch, platform=platform, reference=reference
        )
    return manifest.digest


def save_layout(
    folder: Path, *, name: str, platform: str, manifest: Manifest, blobs: Mapping[Sha256, Path]
) -> None:
    """Write a layout of a manifest and blobs that others made and the caller has checked; else as `write_layout`."""
    with _in_place_of(folder) as new:
        place = new / "blobs" / "sha256"
        place.mkdir(parents=True)
        new.chmod(0o755)
        for digest, path in blobs.items():
            link_or_copy(path, place / digest)
        (place / manifest.digest).write_bytes(manifest.content)
        blob = Blob(digest=manifest.digest, size=len(manifest.content), media_type=manifest.media_type)
        created = (
            JsonObject.load((place / manifest.config.digest).read_bytes()).text("created")
            if manifest.config
            else ""
        )
        (new / "index.json").write_bytes(_make_index(blob, platform, full_reference(name), created))
        (new / "oci-layout").write_bytes(LAYOUT)


def read_layout(folder: Path) -> Layout:
    """Read a layout with one image; raises VerifyError when it is damaged or of another kind."""
    try:
        index = JsonObject.load((folder / "index.json").read_bytes())
        (listed,) = index.objects("manifests")
        manifest = _blob(listed)
        described = JsonObject.load(_read_blob(folder, manifest))
        config_blob = _blob(described.child("config"))
        config = JsonObject.load(_read_blob(folder, config_blob))
        blobs = [_blob(layer) for layer in described.objects("layers")]
        diff_ids = [parse_digest(text) for text in config.child("rootfs").texts("diff_ids")]
        settings = config.child("config")
        return Layout(
            folder=folder,
            reference=dict(listed.pairs("annotations")).get("io.containerd.image.name", ""),
            platform="/".join(
                filter(None, (config.text("os"), config.text("architecture"), config.text("variant")))
            ),
            created=config.text("created"),
            manifest=manifest,
            config_blob=config_blob,
            config=ImageConfig(
                env=tuple(
                    (key, value) for key, _, value in (line.partition("=") for line in settings.texts("Env"))
                ),
                cmd=settings.texts("Cmd"),
                entrypoint=settings.texts("Entrypoint"),
                workdir=settings.text("WorkingDir"),
                labels=settings.pairs("Labels"),
                user=settings.text("User"),
            ),
            layers=tuple(ImageLayer(blob=b, diff_id=d) for b, d in zip(blobs, diff_ids, strict=True)),
        )
    except (OSError, ValueError) as error:
        raise VerifyError(f"`{folder}` is not an OCI layout with one image: {error}") from error


def layout_size(folder: Path, *, without: Collection[Sha256] = ()) -> int:
    """How many bytes of blobs `read_archive` gives."""
    return sum(blob.size for blob in _blobs(read_layout(folder)) if blob.digest not in without)


def read_archive(
    folder: Path,
    *,
    name: str,
    without: Collection[Sha256] = (),
    advance: Callable[[int], None] = lambda _: None,
) -> Iterator[bytes]:
    """The layout as a tar, its image named `name`, as `docker load` reads it: piece by piece, of a MiB at most.

    Blobs `without` which the reader has already are left out. Engines that keep images in containerd's store read `index.json`, older ones `manifest.json`. `advance` is told of
    each piece of a blob. Raises VerifyError when a blob is cut off.
    """
    layout = read_layout(folder)
    reference = full_reference(name)
    for path in ("blobs", "blobs/sha256"):
        yield make_header(Entry(path=path, kind=Kind.DIRECTORY, mode=0o755, uid=0, gid=0, mtime=0))
    for blob in _blobs(layout):
        if blob.digest in without:
            continue
        yield make_header(_file(f"blobs/sha256/{blob.digest}", blob.size))
        left = blob.size
        with layout.path(blob).open("rb") as stream:
            while left and (piece := stream.read(min(left, CHUNK))):
                left -= len(piece)
                yield piece
                advance(len(piece))
        if left:
            raise VerifyError(f"`{layout.path(blob)}` is shorter than its manifest says")
        if blob.size % BLOCK:
            yield bytes(-blob.size % BLOCK)
    for path, text in (
        ("index.json", _make_index(layout.manifest, layout.platform, reference, layout.created)),
        ("manifest.json", _classic_manifest(layout, reference)),
        ("oci-layout", LAYOUT),
    ):
        yield make_header(_file(path, len(text))) + padded(text)
    yield END


def full_reference(name: str) -> str:
    """`registry/repository:tag` of a name as people write it; raises UsageError for what is no name."""
    try:
        reference = parse_reference(name)
    except ValueError:
        reference = None
    if reference is None or not reference.tag or reference.digest:
        raise UsageError(f"`{name}` is not an image name", hint="write it as `repository:tag`, in lower case")
    return str(reference)


def check_place(folder: Path) -> None:
    """Raise UsageError where what is there is not a layout, whose place a new one may take."""
    if folder.is_symlink() or (folder.exists() and not (folder / "oci-layout").is_file()):
        raise UsageError(
            f"`{folder}` is there already and is not an OCI layout",
            hint="move it away, or choose another --output",
        )


def move_layout(source: Path, folder: Path) -> None:
    """Give a layout that is whole its final name; else as `write_layout`."""
    with _in_place_of(folder) as new:
        source.rename(new)


@contextlib.contextmanager
def _in_place_of(folder: Path) -> Iterator[Path]:
    """Where a new layout is to be written, which then takes the place of an earlier one."""
    check_place(folder)
    with beside(folder) as work:
        yield work / "new"
        if folder.exists():
            folder.rename(work / "old")
        (work / "new").rename(folder)


def _fill(
    folder: Path, *, layers: Sequence[Layer], config: ImageConfig, epoch: int, platform: str, reference: str
) -> Blob:
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    folder.chmod(0o755)
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    described = []
    for layer in layers:
        if not (blobs / layer.digest).exists():
            link_or_copy(layer.blob, blobs / layer.digest)
        described.append({"mediaType": LAYER_TYPE, "digest": f"sha256:{layer.digest}", "size": layer.size})
    settings: dict[str, object] = {
        "Env": [f"{key}={value}" for key, value in config.env],
        "Cmd": list(config.cmd),
        "Entrypoint": list(config.entrypoint),
        "WorkingDir": config.workdir,
        "Labels": dict(config.labels),
        "User": config.user,
    }
    config_blob = _write_blob(
        blobs,
        _platform(platform)
        | {
            "created": created,
            "config": {key: value for key, value in settings.items() if value},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.diff_id}" for layer in layers]},
            "history": [
                {"created": created, "created_by": f"envbuilder: {layer.name} layer"} for layer in layers
            ],
        },
        CONFIG_TYPE,
    )
    manifest = _write_blob(
        blobs,
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": _descriptor(config_blob),
            "layers": described,
        },
        MANIFEST_TYPE,
    )
    (folder / "index.json").write_bytes(_make_index(manifest, platform, reference, created))
    (folder / "oci-layout").write_bytes(LAYOUT)
    return manifest


def _make_index(manifest: Blob, platform: str, reference: str, created: str) -> bytes:
    annotations = {
        "io.containerd.image.name": reference,
        "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
        "org.opencontainers.image.created": created,
    }
    listed = _descriptor(manifest) | {"platform": _platform(platform), "annotations": annotations}
    return dump({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [listed]})


def _platform(platform: str) -> dict[str, str]:
    return dict(zip(("os", "architecture", "variant"), platform.split("/"), strict=False))


def _blobs(layout: Layout) -> list[Blob]:
    """Every blob once, in the order of their digests."""
    every = (layout.manifest, layout.config_blob, *(layer.blob for layer in layout.layers))
    return [blob for _, blob in sorted({blob.digest: blob for blob in every}.items())]


def _descriptor(blob: Blob) -> dict[str, object]:
    return {"mediaType": blob.media_type, "digest": f"sha256:{blob.digest}", "size": blob.size}


def _write_blob(blobs: Path, value: Mapping[str, object], media_type: str) -> Blob:
    content = dump(value)
    digest = Sha256(hashlib.sha256(content).hexdigest())
    (blobs / digest).write_bytes(content)
    return Blob(digest=digest, size=len(content), media_type=media_type)


def _blob(value: JsonObject) -> Blob:
    return Blob(digest=value.digest(), size=value.size(), media_type=value.text("mediaType"))


def _read_blob(folder: Path, blob: Blob) -> bytes:
    if blob.size > _MOST_JSON:
        raise ValueError(f"a description of {blob.size} bytes")
    content = (folder / "blobs" / "sha256" / blob.digest).read_bytes()
    if hashlib.sha256(content).hexdigest() != blob.digest or len(content) != blob.size:
        raise ValueError(f"the blob {blob.digest} does not hold what its name says")
    return content


def _classic_manifest(layout: Layout, reference: str) -> bytes:
    """`manifest.json` of `docker save`, which engines read that keep images in their own store."""
    place = "blobs/sha256/"
    short = reference.removeprefix(f"{default_registry()}/").removeprefix("library/")
    image = {
        "Config": place + layout.config_blob.digest,
        "RepoTags": [short],
        "Layers": [place + layer.blob.digest for layer in layout.layers],
    }
    return dump([image])


def _file(path: str, size: int) -> Entry:
    return Entry(path=path, kind=Kind.FILE, mode=0o644, uid=0, gid=0, mtime=0, size=size)
