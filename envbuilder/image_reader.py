"""Reads any image, whoever wrote it, as one tree: an OCI layout, an OCI archive or what `docker save` writes.

Layers may overlap, hide each other's files (whiteouts) and come packed by gzip or zstd; an index may name further indexes and
attestations. Nothing is unpacked to disk. Every blob is compared with the digest that it is named by, every layer's tar
with the one that the config names.
"""

import contextlib
import gzip
import hashlib
import json
import stat
import struct
import tarfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final, Protocol, cast

import zstandard

from envbuilder.entry import Entry, Kind, path_order
from envbuilder.errors import VerifyError
from envbuilder.tarball import CHUNK

PLATFORM: Final = ("linux", "amd64")
MOST_KEPT: Final = 64 << 20  # bytes of a file whose content is asked for
_MOST_JSON: Final = 4 << 20  # bytes of a manifest or config that is believed
_MOST_DEPTH: Final = 4  # of indexes within indexes
_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
_XATTR: Final = "SCHILY.xattr."
_REFUSED: Final = (
    OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, RecursionError,
    struct.error, tarfile.TarError, zlib.error, zstandard.ZstdError,
)  # fmt: skip


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
    manifest: str  # digest; "" where only `docker save` described it
    layers: tuple[tuple[_Blob, str], ...]  # with the digest of the tar that the config names


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTree:
    image: Image
    entries: tuple[Entry, ...]  # sorted by path
    contents: Mapping[str, bytes]  # of the files that were asked for


def read_image(place: Path) -> Image:
    """What an image says of itself; no layer is read. Raises VerifyError when there is no one image for Linux on x86-64."""
    with _opened(place) as files:
        return _find(place, files)


def read_tree(place: Path, *, keep: Collection[str] = ()) -> ImageTree:
    """Every path of the image as a container would see it, and the contents of those files to `keep`.

    Raises VerifyError for what is damaged or not what it is named.
    """
    with _opened(place) as files:
        image = _find(place, files)
        tree = _Tree(keep)
        for blob, diff_id in image.layers:
            with files.open(blob.name) as stream:
                _read_layer(stream, blob, diff_id, tree)
        return ImageTree(
            image=image,
            entries=tuple(sorted(tree.values(), key=path_order)),
            contents={path: tree.kept[path] for path in tree.kept if path in tree},
        )


@contextlib.contextmanager
def _opened(place: Path) -> Iterator[Files]:
    try:
        if place.is_dir():
            yield _Folder(place)
        else:
            with tarfile.open(place, "r:") as archive:
                yield _Archive(archive)
    except _REFUSED as error:
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
        config = _load(files, _blob(manifest["config"]["digest"]))
        layers = [_blob(layer["digest"]) for layer in manifest["layers"]]
    elif files.has("manifest.json"):
        digest = ""
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
        manifest=_digest(digest) if digest else "",
        layers=tuple(zip(layers, diff_ids, strict=True)),
    )


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


class _Tree(dict[str, Entry]):
    """The tree as it grows, with the contents of some files."""

    def __init__(self, keep: Collection[str]) -> None:
        super().__init__()
        self.keep = keep
        self.kept: dict[str, bytes] = {}


class _Hashing:
    """A stream whose bytes are hashed as they are read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()

    def read(self, size: int = CHUNK) -> bytes:
        data = self._stream.read(size)
        self._digest.update(data)
        return data

    def finish(self) -> str:
        """Read to the end; returns the digest of everything."""
        while self.read():
            pass
        return self._digest.hexdigest()


def _read_layer(stream: IO[bytes], blob: _Blob, diff_id: str, tree: _Tree) -> None:
    """Lay one layer over the tree."""
    magic = stream.read(4)
    stream.seek(0)
    packed = _Hashing(stream)
    tar = _Hashing(_unpacked(cast("IO[bytes]", packed), magic))
    with tarfile.open(fileobj=cast("IO[bytes]", tar), mode="r|", bufsize=CHUNK) as archive:
        _lay_over(tree, archive)
    found, whole = tar.finish(), packed.finish()
    if blob.sha256 and whole != blob.sha256:
        raise ValueError(f"`{blob.name}` does not hold what its name says; its sha256 is {whole}")
    if found != diff_id:
        raise ValueError(
            f"the tar in `{blob.name}` is not the one that the config names; its sha256 is {found}"
        )


def _unpacked(stream: IO[bytes], magic: bytes) -> IO[bytes]:
    if magic[:2] == b"\x1f\x8b":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=stream, mode="rb"))
    if magic == b"\x28\xb5\x2f\xfd":
        return zstandard.ZstdDecompressor().stream_reader(stream, read_size=CHUNK, read_across_frames=True)
    return stream


def _lay_over(tree: _Tree, archive: tarfile.TarFile) -> None:
    """Change the tree as a layer's tar says. A whiteout hides what lower layers have, wherever in the tar it stands."""
    own: set[str] = set()
    for member in archive:
        path = member.name.removeprefix("./").rstrip("/")
        path = "" if path == "." else path
        if path and not {"", ".", ".."}.isdisjoint(path.split("/")):
            raise ValueError(f"the path {member.name!r} is not plain")
        folder, _, name = path.rpartition("/")
        if name == _OPAQUE:
            _hide_below(tree, folder, own)
        elif name.startswith(_WHITEOUT):
            hidden = f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/")
            if hidden not in own:
                _hide(tree, hidden, own)
        else:
            entry = _entry(path, member, archive, tree)
            if entry.kind is not Kind.DIRECTORY:
                _hide(tree, path, own)
            tree[path] = entry
            own.add(path)


def _hide(tree: dict[str, Entry], path: str, own: Collection[str]) -> None:
    entry = tree.pop(path, None)
    if entry is not None and entry.kind is Kind.DIRECTORY:
        _hide_below(tree, path, own)


def _hide_below(tree: dict[str, Entry], folder: str, own: Collection[str]) -> None:
    begin = f"{folder}/" if folder else ""
    for path in [path for path in tree if path and path.startswith(begin) and path not in own]:
        del tree[path]


def _entry(path: str, member: tarfile.TarInfo, archive: tarfile.TarFile, tree: _Tree) -> Entry:
    xattrs = tuple(
        (name.removeprefix(_XATTR), value.encode("utf-8", "surrogateescape"))
        for name, value in sorted(member.pax_headers.items())
        if name.startswith(_XATTR)
    )
    if member.islnk():
        first = tree[member.linkname.removeprefix("./").lstrip("/")]
        return replace(first, path=path)
    plain = Entry(
        path=path,
        kind=Kind.DIRECTORY,
        mode=stat.S_IMODE(member.mode),
        uid=member.uid,
        gid=member.gid,
        mtime=int(member.mtime),
        xattrs=xattrs,
    )
    if member.isdir():
        return plain
    if member.issym():
        return replace(plain, kind=Kind.LINK, mode=0o777, target=member.linkname)
    if member.isreg():
        content = archive.extractfile(member)
        digest = hashlib.sha256()
        pieces: list[bytes] = []
        while content and (chunk := content.read(CHUNK)):
            digest.update(chunk)
            if path in tree.keep and member.size <= MOST_KEPT:
                pieces.append(chunk)
        if path in tree.keep:
            tree.kept[path] = b"".join(pieces)
        return replace(plain, kind=Kind.FILE, size=member.size, sha256=digest.hexdigest())
    return replace(plain, kind=Kind.SPECIAL, target=_special(member))


def _special(member: tarfile.TarInfo) -> str:
    kind = (
        "block" if member.isblk() else "char" if member.ischr() else "fifo" if member.isfifo() else "special"
    )
    return f"{kind} {member.devmajor}:{member.devminor}" if kind in ("block", "char") else kind
