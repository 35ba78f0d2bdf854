"""Read any image as one tree: an OCI layout, an OCI archive or the output of `docker save`.

`layers/overlay.py` lays its layers over each other. Nothing is unpacked to disk. Every blob is
compared with its digest, every layer's tar with its diff_id.
"""

import contextlib
import json
import os
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from envbuilder.artifacts.oci import model
from envbuilder.core.archive import BoundedTar
from envbuilder.core.beneath import open_beneath
from envbuilder.core.budget import read_within
from envbuilder.core.cache import Sha256, sha256_bytes
from envbuilder.core.errors import BuildError, VerifyError
from envbuilder.core.processor import PROCESSORS
from envbuilder.layers.entry import Entry, path_order
from envbuilder.layers.overlay import DAMAGED, FileScanner, Overlay

_MOST_DEPTH: Final = 4  # of indexes within indexes


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The files of a layout, in a folder or in a tar."""

    has: Callable[[str], bool]
    open: Callable[[str], IO[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    name: str  # of the file
    sha256: str  # of the file; "" where its name is not a digest
    diff_id: Sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image of a layout: its settings and where its layers are."""

    config: model.ImageConfig
    texts: tuple[tuple[str, str], ...]  # all but the variables, each with its place: history, labels, …
    manifest: str  # digest; "" where only `docker save` described it
    layers: tuple[_Layer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTree:
    image: Image
    entries: tuple[Entry, ...]  # sorted by path
    contents: Mapping[str, bytes]  # of the files that were asked for
    # What the scanner found in files that a later layer removed or replaced, by path.
    hidden: tuple[tuple[str, str], ...]


def read_image(place: Path) -> Image:
    """Read an image's settings, not its layers; raises VerifyError without one image for Linux on a processor of ours."""
    with _opened(place) as files:
        return _find(files)


def read_tree(place: Path, *, keep: Collection[str] = (), scanner: FileScanner | None = None) -> ImageTree:
    """Read every path as a container sees it, the contents of the files to `keep`, and what `scanner` finds.

    Raises VerifyError when a blob is damaged.
    """
    with _opened(place) as files:
        image = _find(files)
        tree = Overlay(lambda path: path in keep, scanner)
        for layer in image.layers:
            with files.open(layer.name) as stream:
                tree.lay_over(stream, name=layer.name, sha256=layer.sha256, diff_id=layer.diff_id)
        return ImageTree(
            image=image,
            entries=tuple(sorted(tree.values(), key=path_order)),
            contents=tree.contents(),
            hidden=tuple(dict.fromkeys(tree.hidden)),
        )


@contextlib.contextmanager
def _opened(place: Path) -> Iterator[Files]:
    try:
        if place.is_dir():
            yield _in_folder(place.resolve())
        else:
            with BoundedTar.open(place, "r:") as archive:
                yield _in_archive(archive)
    except (*DAMAGED, BuildError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        hint = "give an OCI layout, an unpacked OCI archive or the output of `docker save`"
        raise VerifyError(f"`{place}` is not an image that can be read: {reason}", hint=hint) from error


def _in_folder(place: Path) -> Files:
    def open_file(name: str) -> IO[bytes]:
        # `docker save` once wrote links between its layers. What they lead to must be a file of this folder.
        path = (place / name).resolve()
        if not path.is_relative_to(place):
            raise ValueError(f"`{name}` is not in its folder")
        return os.fdopen(open_beneath(place, str(path.relative_to(place))), "rb")

    return Files(has=lambda name: (place / name).is_file(), open=open_file)


def _in_archive(archive: tarfile.TarFile) -> Files:
    members = {member.name.removeprefix("./"): member for member in archive.getmembers()}

    def open_member(name: str) -> IO[bytes]:
        stream = archive.extractfile(members[name])
        if stream is None:
            raise ValueError(f"`{name}` is no file")
        return stream

    return Files(has=members.__contains__, open=open_member)


def _find(files: Files) -> Image:
    if files.has("index.json"):
        manifest = _manifest(files, model.parse_manifest(_read(files, "index.json")))
        assert manifest.config is not None, "`_manifests` gives manifests of images"
        text = _read_blob(files, manifest.config)
        blobs = [(_blob_name(blob), str(blob.digest)) for blob in manifest.layers]
        digest, annotations = str(manifest.digest), dict(manifest.annotations)
    elif files.has("manifest.json"):
        digest, annotations = "", {}
        (saved,) = json.loads(_read(files, "manifest.json"))
        text = _read(files, str(saved["Config"]))
        blobs = [(str(name), "") for name in saved["Layers"]]
    else:
        raise ValueError("it has neither `index.json` nor `manifest.json`")
    configuration = model.parse_configuration(text)
    layers = zip(blobs, configuration.diff_ids, strict=True)
    return Image(
        config=configuration.image,
        texts=(*_texts(_without_environment(json.loads(text))), *_texts(annotations, "annotations")),
        manifest=digest,
        layers=tuple(_Layer(name=name, sha256=sha256, diff_id=diff_id) for (name, sha256), diff_id in layers),
    )


def _without_environment(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration without variables and diff_ids."""
    settings = {name: value for name, value in (config.get("config") or {}).items() if name != "Env"}
    return {name: value for name, value in config.items() if name != "rootfs"} | {"config": settings}


def _texts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text of a JSON value with its place; a text with a key is spelled `key=text`, as in a shell."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            at = f"{place}.{name}" if place else str(name)
            yield from [(at, f"{name}={inner}")] if isinstance(inner, str) else _texts(inner, at)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _texts(inner, f"{place}[{number}]")
    elif isinstance(value, str):
        yield place, value


def _manifest(files: Files, index: model.Manifest) -> model.Manifest:
    """Return the manifest of the image for x86-64 if there is one, otherwise of that for another processor."""
    every = (_manifests(files, index, processor.platform, _MOST_DEPTH) for processor in PROCESSORS)
    manifests = next(filter(None, every), ())
    if len(manifests) != 1:
        titles = " or ".join(processor.title for processor in PROCESSORS)
        raise ValueError(f"it holds {len(manifests)} images for Linux on {titles}, expected one")
    return manifests[0]


def _manifests(files: Files, index: model.Manifest, platform: str, depth: int) -> tuple[model.Manifest, ...]:
    """Return the manifests of images for a platform, each once, from an index and its inner indexes."""
    manifests: dict[Sha256, model.Manifest] = {}
    for listed in index.manifests:
        if listed.platform and not f"{listed.platform}/".startswith(f"{platform}/"):
            continue  # another machine's, or an attestation
        inner = model.parse_manifest(_read_blob(files, listed), listed.media_type)
        if inner.is_index and depth:
            for manifest in _manifests(files, inner, platform, depth - 1):
                manifests[manifest.digest] = manifest
        elif inner.config:
            manifests[inner.digest] = inner
    return tuple(manifests.values())


def _blob_name(blob: model.Descriptor) -> str:
    return f"blobs/sha256/{blob.digest}"


def _read_blob(files: Files, blob: model.Descriptor) -> bytes:
    content = _read(files, _blob_name(blob))
    if sha256_bytes(content) != blob.digest:
        raise ValueError(f"`{_blob_name(blob)}` does not hold what its name says")
    return content


def _read(files: Files, name: str) -> bytes:
    with files.open(name) as stream:
        return read_within(stream, model.MOST_JSON, f"bytes of `{name}`")
