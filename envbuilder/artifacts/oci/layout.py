"""Write and read an image as a folder, the OCI layout, and stream it as the tar that engines load.

The blobs of the layers are hard links into the cache, so an image takes no second copy of its bytes.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from envbuilder.artifacts.oci import model
from envbuilder.artifacts.oci.naming import parse_reference
from envbuilder.core.beneath import read_beneath
from envbuilder.core.cache import Sha256, beside, link_or_copy, sha256_bytes, sync_folder
from envbuilder.core.errors import BuildError, UsageError, VerifyError
from envbuilder.core.private import open_to_all
from envbuilder.layers.entry import BLOCK, CHUNK, END, Entry, Kind, make_header, padded
from envbuilder.layers.layer import Layer

_BLOBS: Final = "blobs/sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLayer:
    blob: model.Descriptor
    diff_id: Sha256  # of the tar


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """An OCI layout with one image. Its layers' blobs may be damaged: `verify` reads them."""

    folder: Path
    reference: str  # registry/repository:tag, or empty
    manifest: model.Manifest
    config: model.Configuration

    @property
    def layers(self) -> tuple[ImageLayer, ...]:
        pairs = zip(self.manifest.layers, self.config.diff_ids, strict=True)
        return tuple(ImageLayer(blob=blob, diff_id=diff_id) for blob, diff_id in pairs)

    @property
    def blobs(self) -> tuple[model.Descriptor, ...]:
        """The configuration and the layers."""
        return (self.config_blob, *self.manifest.layers)

    @property
    def config_blob(self) -> model.Descriptor:
        return _config_of(self.manifest)

    def path(self, blob: model.Descriptor) -> Path:
        return _blob_path(self.folder, blob.digest)


def write_layout(
    *, layers: Sequence[Layer], config: model.ImageConfig, epoch: int, platform: str, folder: Path, name: str
) -> Layout:
    """Write the image `name` (`repository:tag`) to `folder`.

    The folder appears when the layout is whole and replaces an earlier layout; raises UsageError
    when anything else is there.
    """
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    configuration = model.dump(
        model.platform_data(platform)
        | {
            "created": created,
            "config": model.data_of(config),
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.diff_id}" for layer in layers]},
            "history": [
                {"created": created, "created_by": f"envbuilder: {layer.name} layer"} for layer in layers
            ],
        }
    )
    config_blob = model.describe(configuration, model.CONFIG)
    blobs = [
        model.Descriptor(media_type=model.LAYER, digest=layer.digest, size=layer.size) for layer in layers
    ]
    return save_layout(
        folder,
        name=name,
        manifest=model.make_manifest(config=config_blob, layers=blobs),
        blobs={config_blob.digest: configuration, **{layer.digest: layer.blob for layer in layers}},
    )


def save_layout(
    folder: Path, *, name: str, manifest: model.Manifest, blobs: Mapping[Sha256, Path | bytes]
) -> Layout:
    """Write the layout of an image whose blobs are here, as `write_layout`. The caller has checked the blobs."""
    config = blobs[_config_of(manifest).digest]
    layout = Layout(
        folder=folder,
        reference=full_reference(name),
        manifest=manifest,
        config=model.parse_configuration(config if isinstance(config, bytes) else config.read_bytes()),
    )
    with _in_place_of(folder) as new:
        (new / _BLOBS).mkdir(parents=True)
        for digest, blob in (*blobs.items(), (manifest.digest, manifest.content)):
            if isinstance(blob, bytes):
                _blob_path(new, digest).write_bytes(blob)
            else:
                link_or_copy(blob, _blob_path(new, digest))
        (new / "index.json").write_bytes(_index(layout))
        (new / "oci-layout").write_bytes(model.LAYOUT)
        for path in (new, *new.rglob("*")):
            open_to_all(str(path))
    return layout


def read_layout(folder: Path) -> Layout:
    """Read a layout with one image; raises VerifyError when it is damaged or of another kind."""
    try:
        (listed,) = model.parse_manifest(_read(folder, "index.json")).manifests
        manifest = model.parse_manifest(_read_blob(folder, listed), listed.media_type)
        config = model.parse_configuration(_read_blob(folder, _config_of(manifest)))
        reference = dict(listed.annotations).get("io.containerd.image.name", "")
        layout = Layout(folder=folder, reference=reference, manifest=manifest, config=config)
        _ = layout.layers  # raises ValueError unless the configuration names as many
    except (OSError, ValueError, BuildError) as error:
        raise VerifyError(f"`{folder}` is not an OCI layout with one image: {error}") from error
    return layout


def layout_size(layout: Layout, *, without: Collection[Sha256] = ()) -> int:
    return sum(blob.size for blob in _all_blobs(layout) if blob.digest not in without)


def read_archive(
    layout: Layout,
    *,
    name: str,
    without: Collection[Sha256] = (),
    advance: Callable[[int], None] = lambda _: None,
) -> Iterator[bytes]:
    """Yield the layout as the tar that `docker load` reads, in pieces of a MiB at most; its image is called `name`.

    Blobs in `without`, which the reader has, are left out. `advance` gets the size of each piece of a blob.
    Raises VerifyError when a blob is cut off.
    """
    renamed = replace(layout, reference=full_reference(name))
    for path in ("blobs", "blobs/sha256"):
        yield make_header(Entry(path=path, kind=Kind.DIRECTORY, mode=0o755, mtime=0))
    for blob in _all_blobs(layout):
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
    for path, text in (("index.json", _index(renamed)), ("oci-layout", model.LAYOUT)):
        yield make_header(_file(path, len(text))) + padded(text)
    yield END


def full_reference(name: str) -> str:
    """Return `registry/repository:tag` of a short name; raises UsageError when it is not an image name."""
    try:
        reference = parse_reference(name)
    except ValueError:
        reference = None
    if reference is None or not reference.tag or reference.digest:
        raise UsageError(f"`{name}` is not an image name", hint="write it as `repository:tag`, in lower case")
    return str(reference)


def check_place(folder: Path) -> None:
    """Raise UsageError unless the place is free or holds an earlier layout, which may be damaged."""
    is_layout = (folder / "oci-layout").is_file() or (folder / _BLOBS).is_dir()
    if folder.is_symlink() or (folder.exists() and not is_layout):
        raise UsageError(
            f"`{folder}` exists and is not an OCI layout", hint="move it away, or choose another --output"
        )


def move_layout(layout: Layout, folder: Path) -> Layout:
    """Give a finished layout its final name, as `write_layout` does."""
    with _in_place_of(folder) as new:
        layout.folder.rename(new)
    return replace(layout, folder=folder)


@contextlib.contextmanager
def _in_place_of(folder: Path) -> Iterator[Path]:
    """Yield the path for a new layout, then give it the final name in place of an earlier one."""
    check_place(folder)
    with beside(folder) as work:
        yield work / "new"
        sync_folder(work / "new")
        if folder.exists():
            try:
                folder.rename(work / "old")
            except PermissionError as error:
                raise UsageError(
                    f"`{folder}` belongs to user {folder.lstat().st_uid} and cannot be replaced",
                    hint="choose another --output",
                ) from error
        (work / "new").rename(folder)


def _index(layout: Layout) -> bytes:
    annotations = {
        "io.containerd.image.name": layout.reference,
        "org.opencontainers.image.ref.name": layout.reference.rpartition(":")[2],
        "org.opencontainers.image.created": layout.config.created,
    }
    listed = model.Descriptor(
        media_type=layout.manifest.media_type,
        digest=layout.manifest.digest,
        size=len(layout.manifest.content),
        platform=layout.config.platform,
        annotations=tuple(annotations.items()),
    )
    return model.make_index([listed]).content


def _all_blobs(layout: Layout) -> list[model.Descriptor]:
    """Return every blob once, sorted by digest."""
    every = {blob.digest: blob for blob in (*layout.blobs, layout.manifest.descriptor())}
    return [blob for _, blob in sorted(every.items())]


def _config_of(manifest: model.Manifest) -> model.Descriptor:
    if manifest.config is None:
        raise ValueError("it is the manifest of an index, not of an image")
    return manifest.config


def _blob_path(folder: Path, digest: Sha256) -> Path:
    return folder / _BLOBS / digest


def _read_blob(folder: Path, blob: model.Descriptor) -> bytes:
    if blob.size > model.MOST_JSON:
        raise ValueError(f"a description of {blob.size} bytes")
    content = _read(folder, f"{_BLOBS}/{blob.digest}")
    if sha256_bytes(content) != blob.digest or len(content) != blob.size:
        raise ValueError(f"the blob {blob.digest} does not hold what its name says")
    return content


def _read(folder: Path, name: str) -> bytes:
    return read_beneath(folder.resolve(), name, limit=model.MOST_JSON)


def _file(path: str, size: int) -> Entry:
    return Entry(path=path, kind=Kind.FILE, mode=0o644, mtime=0, size=size)
