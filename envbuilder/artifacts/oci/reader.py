"""Reads any image, whoever wrote it, as one tree: an OCI layout, an OCI archive or what `docker save` writes.

`overlay` lays its layers over each other; an index may name further indexes and attestations. Nothing is unpacked to disk.
Every blob is compared with the digest that it is named by, every layer's tar with the one that the config names.
"""

import contextlib
import hashlib
import json
import tarfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Protocol

from envbuilder.core.errors import VerifyError
from envbuilder.layers.entry import Entry, path_order
from envbuilder.layers.overlay import DAMAGED, Look, Overlay

PLATFORM: Final = ("linux", "amd64")
_MOST_JSON: Final = 4 << 20  # bytes of a manifest or config that is believed
_MOST_DEPTH: Final = 4  # of indexes within indexes


class Files(Protocol):
    """The files of a layout, in a folder or in a tar."""

    def has(self, name: str) -> bool: ...
    def open(self, name: str) -> IO[bytes]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blob:
    name: str  # of the file
    sha256: str  # "" where the name promises nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image of a layout: its settings and where its layers are."""

    place: Path
    env: tuple[tuple[str, str], ...]
    labels: tuple[tuple[str, str], ...]
    texts: tuple[
        tuple[str, str], ...
    ]  # all others that everybody gets with it, each with its place: history, labels, …
    manifest: str  # digest; "" where only `docker save` described it
    layers: tuple[tuple[_Blob, str], ...]  # with the digest of the tar that the config names


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTree:
    image: Image
    entries: tuple[Entry, ...]  # sorted by path
    contents: Mapping[str, bytes]  # of the files that were asked for
    hidden: tuple[
        tuple[str, str], ...
    ]  # what was found in files that a later layer removed or replaced, by path


def read_image(place: Path) -> Image:
    """What an image says of itself; no layer is read. Raises VerifyError when there is no one image for Linux on x86-64."""
    with _opened(place) as files:
        return _find(place, files)


def read_tree(place: Path, *, keep: Collection[str] = (), look: Look | None = None) -> ImageTree:
    """Every path of the image as a container would see it, the contents of those files to `keep`, and what `look` finds below.

    Raises VerifyError for what is damaged or not what it is named.
    """
    with _opened(place) as files:
        image = _find(place, files)
        tree = Overlay(lambda path: path in keep, look)
        for blob, diff_id in image.layers:
            with files.open(blob.name) as stream:
                tree.lay_over(stream, name=blob.name, sha256=blob.sha256, diff_id=diff_id)
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
            yield _Folder(place)
        else:
            with tarfile.open(place, "r:") as archive:
                yield _Archive(archive)
    except DAMAGED as error:
        said = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise VerifyError(
            f"`{place}` is not an image that can be read: {said}",
            hint="an OCI layout, an unpacked OCI archive or what `docker save` wrote serves",
        ) from error


class _Folder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, name: str) -> bool:
        return (self._folder / name).is_file()

    def open(self, name: str) -> IO[bytes]:
        return (self._folder / name).open("rb")


class _Archive:
    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._members = {member.name.removeprefix("./"): member for member in archive.getmembers()}

    def has(self, name: str) -> bool:
        return name in self._members

    def open(self, name: str) -> IO[bytes]:
        stream = self._archive.extractfile(self._members[name])
        if stream is None:
            raise ValueError(f"`{name}` is no file")
        return stream


def _find(place: Path, files: Files) -> Image:
    if files.has("index.json"):
        index = _load(files, _Blob(name="index.json", sha256=""))
        (digest,) = _manifests(files, index, _MOST_DEPTH)
        manifest = _load(files, _blob(digest))
        annotations = manifest.get("annotations") or {}
        config = _load(files, _blob(manifest["config"]["digest"]))
        layers = [_blob(layer["digest"]) for layer in manifest["layers"]]
    elif files.has("manifest.json"):
        digest, annotations = "", {}
        (saved,) = _load(files, _Blob(name="manifest.json", sha256=""))
        config = _load(files, _Blob(name=str(saved["Config"]), sha256=""))
        layers = [_Blob(name=str(name), sha256="") for name in saved["Layers"]]
    else:
        raise ValueError("it has neither `index.json` nor `manifest.json`")
    diff_ids = [_digest(text) for text in config["rootfs"]["diff_ids"]]
    settings = config.get("config") or {}
    pairs = (str(line).partition("=") for line in settings.get("Env") or ())
    return Image(
        place=place,
        env=tuple((key, value) for key, _, value in pairs),
        labels=tuple(sorted((str(k), str(v)) for k, v in (settings.get("Labels") or {}).items())),
        texts=(*_texts(_without_environment(config)), *_texts(annotations, "annotations")),
        manifest=_digest(digest) if digest else "",
        layers=tuple(zip(layers, diff_ids, strict=True)),
    )


def _without_environment(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without what is read on its own."""
    settings = {name: value for name, value in (config.get("config") or {}).items() if name != "Env"}
    return {name: value for name, value in config.items() if name != "rootfs"} | {"config": settings}


def _texts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a JSON value with its place; one that has a name is `name=text`, as in a shell."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            at = f"{place}.{name}" if place else str(name)
            yield from [(at, f"{name}={inner}")] if isinstance(inner, str) else _texts(inner, at)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _texts(inner, f"{place}[{number}]")
    elif isinstance(value, str):
        yield place, value


def _manifests(files: Files, index: Mapping[str, Any], depth: int) -> tuple[str, ...]:
    """The digests of the manifests for our platform, each once, in an index and those that it names."""
    found: dict[str, None] = {}
    for listed in index["manifests"]:
        digest = str(listed["digest"])
        platform = listed.get("platform")
        if platform and (platform.get("os"), platform.get("architecture")) != PLATFORM:
            continue  # another machine's, or an attestation
        inner = _load(files, _blob(digest))
        if "manifests" in inner and depth:
            found |= dict.fromkeys(_manifests(files, inner, depth - 1))
        elif "layers" in inner:
            found[digest] = None
    if len(found) != 1 and depth == _MOST_DEPTH:
        raise ValueError(f"it holds {len(found)} images for Linux on x86-64, expected one")
    return tuple(found)


def _digest(text: object) -> str:
    algorithm, _, digits = str(text).partition(":")
    if algorithm != "sha256" or len(digits) != 64 or not set(digits) <= set("0123456789abcdef"):
        raise ValueError(f"expected a sha256, found {text!r}")
    return digits


def _blob(digest: object) -> _Blob:
    return _Blob(name=f"blobs/sha256/{_digest(digest)}", sha256=_digest(digest))


def _load(files: Files, blob: _Blob) -> Any:
    with files.open(blob.name) as stream:
        content = stream.read(_MOST_JSON + 1)
    if len(content) > _MOST_JSON:
        raise ValueError(f"`{blob.name}` is larger than any description")
    if blob.sha256 and hashlib.sha256(content).hexdigest() != blob.sha256:
        raise ValueError(f"`{blob.name}` does not hold what its name says")
    return json.loads(content)
