"""Layers: one canonical tar each, and a manifest with a line for each path.

Artifacts are made from these tars, and proofs compare these manifests. So a tree has one spelling: sorted
paths, numeric owners, times clamped to the epoch, nothing that depends on the machine.
"""

import contextlib
import functools
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import zstandard

from envbuilder.core.cache import Sha256, sha256_file, space_errors
from envbuilder.core.errors import BuildError
from envbuilder.core.models import adapter
from envbuilder.core.system import NO_LINKS
from envbuilder.layers.blob import BlobReader, unpack
from envbuilder.layers.entry import Entry, Kind, Readable, TarMember, parse_manifest, to_bytes, tree_digest
from envbuilder.layers.import_tree import Owner, Owners, index_root, index_tar, index_tree, some_lines
from envbuilder.layers.writer import Blocks, Layer, LayerWriter, parse_blocks

if TYPE_CHECKING:
    from envbuilder.core.console import Step

__all__ = [
    "Entry", "Kind", "Layer", "Owner", "Owners", "Streamed", "check_disjoint", "damage_of", "extract", "load_layer", "read_blocks",
    "read_files", "read_manifest", "tree_digest", "write_layer", "write_layer_from_root", "write_layer_from_tar",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """The content of a file that a tree has empty."""

    size: int  # bytes
    sha256: str
    stream: Callable[[], AbstractContextManager[Readable]]


def write_layer(
    *, name: str, tree: Path, folder: Path, epoch: int, threads: int, omit: Collection[str] = (), step: "Step | None" = None,
    contents: Mapping[str, Streamed] | None = None,
) -> Layer:  # fmt: skip
    """Make a layer of a folder that a step filled, without the root and the folders in `omit`. `step` shows the bytes.

    The layer does not depend on how the folder was filled: root owns everything, every time is the epoch,
    modes are 0755 and 0644, extended attributes are dropped, and each hard link is a file of its own (a cache
    may link where another machine copies). `contents` are those of files that the tree has empty, by path. Raises
    BuildError with every path that a layer cannot hold, and for a content that differs from its digest.
    """
    contents, files = contents or {}, _files_of(tree)
    parts = tuple(_with_content(part, contents) for part in index_tree(tree, epoch=epoch, omit=omit))
    if missing := contents.keys() - {part.entry.path for part in parts}:
        raise BuildError(
            "files were not installed:\n" + some_lines([f"`{path}`" for path in sorted(missing)])
        )
    if step:
        step.expect(sum(part.entry.size for part in parts))

    def content(part: TarMember) -> AbstractContextManager[Readable]:
        given = contents.get(part.entry.path)
        return given.stream() if given else files(part)

    return _write_parts(name, folder, parts, content, threads=threads, step=step)


def _with_content(part: TarMember, contents: Mapping[str, Streamed]) -> TarMember:
    if (content := contents.get(part.entry.path)) is None:
        return part
    return replace(part, entry=replace(part.entry, size=content.size, sha256=content.sha256))


def write_layer_from_tar(
    *, name: str, tar: Path, folder: Path, epoch: int, threads: int,
    drop: Collection[str] = (), omit: Collection[str] = (), plain: bool = False, owners: Owners | None = None,
) -> Layer:  # fmt: skip
    """Make a layer of another program's tar of a root file system, root folder included; see `index_tar`.

    Modes stay, and owners unless others are given; times are clamped to the epoch, and files of container runtimes are
    dropped or emptied. With `plain`, owners, modes, times and links are those of `write_layer`.
    Folders in `omit` are left out.
    """
    parts = index_tar(tar, epoch=epoch, drop=drop, owners=owners, plain=plain)
    parts = tuple(part for part in parts if part.entry.path not in omit)
    with tar.open("rb") as stream:

        def content(part: TarMember) -> AbstractContextManager[IO[bytes]]:
            stream.seek(part.offset)
            return contextlib.nullcontext(stream)

        return _write_parts(name, folder, parts, content, threads=threads)


def write_layer_from_root(
    *, name: str, root: Path, owners: Owners, folder: Path, epoch: int, threads: int, drop: Collection[str] = ()
) -> Layer:  # fmt: skip
    """Make a layer of a root file system in a folder, root folder included, as `write_layer_from_tar` does of a tar.

    A file that `owners` does not name is root's.
    """
    parts = index_root(root, owners, epoch=epoch, drop=drop)
    return _write_parts(name, folder, parts, _files_of(root), threads=threads)


def _files_of(tree: Path) -> Callable[[TarMember], IO[bytes]]:
    """Open files of a tree. Each was a regular file when the tree was listed; a link is not followed."""
    top = os.fsencode(tree) + b"/"
    return lambda part: os.fdopen(os.open(top + to_bytes(part.entry.path), os.O_RDONLY | NO_LINKS), "rb")


def _write_parts(
    name: str, folder: Path, parts: Sequence[TarMember], content: Callable[[TarMember], AbstractContextManager[Readable]],
    *, threads: int, step: "Step | None" = None,
) -> Layer:  # fmt: skip
    """Write indexed parts. `content` opens the file of a part, at its beginning."""
    written: dict[str, Entry] = {}
    with space_errors(folder), LayerWriter(name, folder, threads=threads) as writer:
        for part in parts:
            if part.hard in written:
                writer.add_hard_link(part.entry, written[part.hard])
            elif part.entry.size:
                with content(part) as stream:
                    written[part.entry.path] = writer.add_file(part.entry, stream)
                if step:
                    step.advance(part.entry.size)
            else:
                writer.add(part.entry)
        return writer.finish()


def load_layer(folder: Path) -> Layer | None:
    """Load the layer in a folder, or return None when it is missing, incomplete or damaged.

    The blob's own digest is not checked here (it would cost a second per GB); `verify` does that.
    """
    layer = _load(folder)
    return layer if isinstance(layer, Layer) else None


def damage_of(folder: Path) -> str:
    """Return how a layer that cannot be loaded is damaged, "" if it is missing or of an earlier format."""
    damage = _load(folder)
    return damage if isinstance(damage, str) else ""


def _load(folder: Path) -> Layer | str:
    """Return the layer in a folder, otherwise how it is damaged."""
    try:
        text = (folder / "layer.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError):
        return "`layer.json` cannot be read"
    try:
        facts = json.loads(text)
        if isinstance(facts, dict) and "sha256" not in facts:
            return ""
        del facts["sha256"]
        layer: Layer = adapter(Layer).validate_python(facts | {"folder": folder})
    except (ValueError, TypeError):
        return "`layer.json` differs"
    if text != layer.to_json():
        return "`layer.json` differs"
    for path, is_right in (
        (layer.blob, lambda path: path.stat().st_size == layer.size),
        (layer.manifest, lambda path: sha256_file(path) == layer.tree),
        (layer.index, lambda path: sha256_file(path) == layer.blocks),
    ):
        try:
            if not is_right(path):
                return f"`{path.name}` differs"
        except OSError as error:
            return f"`{path.name}` cannot be read: {error.strerror}"
    return layer


def find_blobs(folders: Iterable[Path], digests: Collection[Sha256]) -> dict[Sha256, Path]:
    """Return the blobs with these digests among layers in folders. The bytes are not read."""
    blobs = {}
    for folder in folders:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            digest = json.loads((folder / "layer.json").read_text(encoding="utf-8"))["digest"]
            if digest in digests:
                blobs[Sha256(digest)] = folder / "layer.tar.zst"
    return blobs


@contextlib.contextmanager
def _open_blob(layer: Layer) -> Iterator[BlobReader]:
    """Open the contents of the layer's files; raises BuildError when they cannot be read or used."""
    try:
        with layer.blob.open("rb") as blob:
            yield BlobReader(blob, read_blocks(layer))
    except (ValueError, LookupError, zstandard.ZstdError) as error:
        raise BuildError(
            f"the {layer.name} layer in `{layer.folder}` cannot be unpacked: {error}",
            hint="remove that folder and build again",
        ) from error


@functools.lru_cache(maxsize=64)
def read_manifest(layer: Layer) -> tuple[Entry, ...]:
    """Return every path of the layer, sorted. `load_layer` has compared the file with the layer's digest of it."""
    return parse_manifest(layer.manifest.read_text(encoding="ascii"))


def read_blocks(layer: Layer) -> Blocks:
    return parse_blocks(layer.index.read_text(encoding="ascii"))


def read_files(layer: Layer, wanted: Collection[str]) -> dict[str, bytes]:
    """Return the contents of the wanted files that exist."""
    files = [entry for entry in read_manifest(layer) if entry.kind is Kind.FILE and entry.path in wanted]
    with _open_blob(layer) as reader:
        return {entry.path: b"".join(reader.content(entry)) for entry in files}


def extract(layer: Layer, destination: Path, without: Collection[str] = ()) -> set[str]:
    """Write the layer's files below `destination` for a build to use; owners are kept when we are root.

    Files of the paths `without`, which an upper layer has, are left out. Returns all paths of the layer. Raises BuildError, and
    writes nothing outside, when the layer is damaged or does not fit what is there.
    """
    entries = read_manifest(layer)
    shown = (entry for entry in entries if entry.kind is Kind.DIRECTORY or entry.path not in without)
    with space_errors(destination), _open_blob(layer) as reader:
        unpack(shown, reader, destination)
    return {entry.path for entry in entries}


def check_disjoint(layers: Sequence[Layer], *, among: Collection[str] = ()) -> None:
    """Raise BuildError with paths that are in two layers, or whose folder is in no layer up to theirs.

    Layers may share a folder that is the same in each. So a layer need not know what others have.
    Of the layers `among`, an upper one may replace files of a lower one.
    """
    owners: dict[str, tuple[str, Entry]] = {}
    mistakes: list[str] = []
    for layer in layers:
        for entry in read_manifest(layer):
            if entry.path in owners:
                owner, lower = owners[entry.path]
                path, both = f"`{entry.path or '/'}`", f"the {owner} and the {layer.name} layer"
                if Kind.DIRECTORY not in (entry.kind, lower.kind) and {owner, layer.name} <= {*among}:
                    owners[entry.path] = (layer.name, entry)
                elif entry.kind is not Kind.DIRECTORY:
                    mistakes.append(f"{path} is in {both}")
                elif lower != entry:
                    mistakes.append(f"the folder {path} differs in {both}")
            owners.setdefault(entry.path, (layer.name, entry))
            folder = owners.get(entry.parent)
            if entry.path and (folder is None or folder[1].kind is not Kind.DIRECTORY):
                mistakes.append(
                    f"`{entry.path}` is in the {layer.name} layer, and its folder is in no layer up to it"
                )
    if mistakes:
        raise BuildError("the layers do not fit together:\n" + some_lines(mistakes))
