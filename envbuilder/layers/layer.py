"""Layers: one canonical tar each, and a manifest with one line a path.

Artifacts are made from these tars, and proofs compare these manifests. So a tree has one spelling:
sorted paths, numeric owners, times clamped to the epoch, nothing that depends on the machine.
"""

import contextlib
import io
import json
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final

import zstandard

from envbuilder.core.cache import Sha256, parse_sha256, save_text, sha256_file, sha256_text, space_errors
from envbuilder.core.errors import BuildError, VerifyError
from envbuilder.layers.entry import Entry, Kind, from_bytes, parse_manifest, to_bytes, tree_digest
from envbuilder.layers.extract import unpack
from envbuilder.layers.import_tar import index_tar, plain_parts
from envbuilder.layers.tar import CHUNK, TarReader, is_normal
from envbuilder.layers.writer import Blocks, LayerWriter, parse_blocks

__all__ = [
    "Entry", "Kind", "Layer", "check_disjoint", "extract", "load_layer", "open_tar", "read_blocks",
    "read_files", "read_manifest", "tree_digest", "write_layer", "write_layer_from_tar",
]  # fmt: skip

_SHOWN: Final = 10  # how many paths an error names


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A finished layer in a store folder: `layer.tar.zst`, `manifest.txt`, `blocks.json` and `layer.json` (these fields)."""

    name: str  # os | cuda | python | extensions | runtime
    folder: Path
    digest: Sha256  # of layer.tar.zst
    size: int  # of layer.tar.zst, bytes
    diff_id: Sha256  # of the tar
    tar_size: int  # of the tar, bytes
    content_size: int  # sum of the sizes of its regular files, bytes
    tree: Sha256  # of manifest.txt, see `tree_digest`
    blocks: Sha256  # of blocks.json

    @property
    def blob(self) -> Path:
        return self.folder / "layer.tar.zst"

    @property
    def manifest(self) -> Path:
        return self.folder / "manifest.txt"

    @property
    def index(self) -> Path:
        """The places of the files' contents in the blob."""
        return self.folder / "blocks.json"


def write_layer(
    *, name: str, tree: Path, folder: Path, epoch: int, threads: int, omit: Collection[str] = ()
) -> Layer:
    """Make a layer of a folder that a step filled, without the root and the folders in `omit`.

    The layer does not depend on how the folder was filled: root owns everything, every time is the
    epoch, modes are 0755 and 0644, extended attributes are dropped, and each hard link is a file of
    its own (a cache may link where another machine copies). Raises BuildError with every path that
    a layer cannot hold.
    """
    entries = _scan(tree, omit=omit, epoch=epoch)

    def fill(writer: LayerWriter) -> None:
        root = os.fsencode(tree) + b"/"
        for entry in entries:
            if entry.size:
                with io.FileIO(root + to_bytes(entry.path)) as stream:
                    writer.add_file(entry, stream)
            else:
                writer.add(entry)

    return _write(name, folder, threads, fill)


def write_layer_from_tar(
    *,
    name: str,
    tar: Path,
    folder: Path,
    epoch: int,
    threads: int,
    drop: Collection[str] = (),
    omit: Collection[str] = (),
    plain: bool = False,
) -> Layer:
    """Make a layer of another program's tar of a root file system, root folder included; see `index_tar`.

    Owners and modes stay, times are clamped to the epoch, and files of container runtimes are
    dropped or emptied. With `plain`, owners, modes, times and links are those of `write_layer`.
    Folders in `omit` are left out.
    """
    parts = index_tar(tar, epoch=epoch, drop=drop)
    if plain:
        parts = plain_parts(parts, epoch=epoch)
    parts = tuple(part for part in parts if part.entry.path not in omit)

    def fill(writer: LayerWriter) -> None:
        written: dict[str, Entry] = {}
        with io.FileIO(tar) as stream:
            for part in parts:
                if part.first in written:
                    writer.add_hard_link(part.entry, written[part.first])
                elif part.entry.size:
                    stream.seek(part.offset)
                    written[part.first] = writer.add_file(part.entry, stream)
                else:
                    writer.add(part.entry)

    return _write(name, folder, threads, fill)


def load_layer(folder: Path) -> Layer | None:
    """Load the layer in a folder, or return None when it is missing or incomplete.

    The blob's own digest is not checked here (it would cost a second per GB); `verify` does that.
    """
    try:
        with (folder / "layer.json").open(encoding="utf-8") as stream:
            facts = json.load(stream)
        layer = Layer(
            name=str(facts["name"]),
            folder=folder,
            digest=parse_sha256(facts["digest"]),
            size=int(facts["size"]),
            diff_id=parse_sha256(facts["diff_id"]),
            tar_size=int(facts["tar_size"]),
            content_size=int(facts["content_size"]),
            tree=parse_sha256(facts["tree"]),
            blocks=parse_sha256(facts["blocks"]),
        )
        whole = layer.blob.stat().st_size == layer.size
        whole = (
            whole and sha256_file(layer.manifest) == layer.tree and sha256_file(layer.index) == layer.blocks
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return layer if whole else None


@contextlib.contextmanager
def open_tar(layer: Layer) -> Iterator[IO[bytes]]:
    """Open the layer's tar, `tar_size` bytes long. Reading raises VerifyError when it is damaged."""
    try:
        with (
            layer.blob.open("rb") as blob,
            zstandard.ZstdDecompressor().stream_reader(
                blob, read_size=CHUNK, read_across_frames=True
            ) as stream,
        ):
            yield stream
    except zstandard.ZstdError as error:
        raise VerifyError(
            f"the {layer.name} layer in `{layer.folder}` is damaged: {error}",
            hint="remove that folder and build again",
        ) from error


def read_manifest(layer: Layer) -> tuple[Entry, ...]:
    """Every path of the layer, sorted."""
    return parse_manifest(layer.manifest.read_text(encoding="ascii"))


def read_blocks(layer: Layer) -> Blocks:
    """Where in the blob the contents of the layer's files are."""
    return parse_blocks(layer.index.read_text(encoding="ascii"))


def read_files(layer: Layer, wanted: Collection[str], tree: Path | None = None) -> dict[str, bytes]:
    """Return the contents of the wanted paths that exist, read from the folder `tree` if it is given, otherwise from the tar."""
    if tree is not None and tree.is_dir():
        paths = [one.path for one in read_manifest(layer) if one.kind is Kind.FILE and one.path in wanted]
        return {path: (tree / path).read_bytes() for path in paths}
    found: dict[str, bytes] = {}
    links: dict[str, str] = {}  # hard links to earlier members
    with open_tar(layer) as stream:
        reader = TarReader(iter(lambda: stream.read(CHUNK), b""))
        for member in reader:
            path = member.entry.path
            if member.hard and path in wanted:
                links[path] = member.hard
            elif member.entry.kind is Kind.FILE and path in wanted:
                found[path] = b"".join(reader.content())
    if missing := set(links.values()) - found.keys():
        found |= read_files(layer, missing)
    return {path: found[links.get(path, path)] for path in wanted if path in found or path in links}


def extract(layer: Layer, destination: Path) -> None:
    """Write the layer's files below `destination` for a build to use; owners are kept when we are root.

    Raises BuildError, and writes nothing outside, when the layer is damaged or does not fit what is
    there.
    """
    with space_errors(destination), open_tar(layer) as stream:
        try:
            unpack(TarReader(iter(lambda: stream.read(CHUNK), b"")), destination)
        except ValueError as error:
            raise BuildError(
                f"the {layer.name} layer in `{layer.folder}` cannot be unpacked: {error}",
                hint="remove that folder and build again",
            ) from error


def check_disjoint(layers: Sequence[Layer]) -> None:
    """Raise BuildError with paths that are in two layers, or whose folder is in no layer up to theirs."""
    owners: dict[str, tuple[str, Kind]] = {}
    mistakes: list[str] = []
    for layer in layers:
        for entry in read_manifest(layer):
            if entry.path in owners:
                mistakes.append(
                    f"`{entry.path or '/'}` is in the {owners[entry.path][0]} and the {layer.name} layer"
                )
            elif entry.path and owners.get(entry.parent, ("", None))[1] is not Kind.DIRECTORY:
                mistakes.append(
                    f"`{entry.path}` is in the {layer.name} layer, and its folder is in no layer up to it"
                )
            owners[entry.path] = (layer.name, entry.kind)
    if mistakes:
        raise BuildError("the layers do not fit together:\n" + _some(mistakes))


def _write(name: str, folder: Path, threads: int, fill: Callable[[LayerWriter], None]) -> Layer:
    with space_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        blob = folder / "layer.tar.zst"
        blob.unlink(missing_ok=True)
        with LayerWriter(blob, threads=threads) as writer:
            fill(writer)
            written = writer.finish()
        blob.chmod(0o444)  # OCI layouts hold hard links to it
        blocks = written.blocks.to_json()
        (folder / "manifest.txt").write_text(written.manifest, encoding="ascii")
        (folder / "blocks.json").write_text(blocks, encoding="ascii")
        layer = Layer(
            name=name,
            folder=folder,
            digest=written.digest,
            size=written.size,
            diff_id=written.diff_id,
            tar_size=written.tar_size,
            content_size=written.content_size,
            tree=written.tree,
            blocks=sha256_text(blocks),
        )
        facts = {key: value for key, value in asdict(layer).items() if key != "folder"}
        save_text(folder / "layer.json", json.dumps(facts, indent=1, sort_keys=True) + "\n")
    return layer


def _scan(tree: Path, *, omit: Collection[str], epoch: int) -> list[Entry]:
    """Return the entries of a folder, sorted. Contents are not read yet."""
    entries: list[Entry] = []
    mistakes: list[str] = []
    for path, status in sorted(_walk(os.fsencode(tree), b"")):
        name = from_bytes(path)
        if name in omit:
            if not stat.S_ISDIR(status.st_mode):
                mistakes.append(f"`{name}` is not a folder, and another layer has it as one")
            continue
        try:
            entries.append(_make_entry(name, status, os.fsencode(tree) + b"/" + path, epoch))
        except ValueError as error:
            mistakes.append(f"`{name}`: {error}")
    if mistakes:
        raise BuildError(f"`{tree}` cannot become a layer:\n" + _some(mistakes))
    return entries


def _walk(root: bytes, below: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    with os.scandir(root + b"/" + below) as found:
        for item in found:
            path = below + item.name
            yield path, item.stat(follow_symlinks=False)
            if item.is_dir(follow_symlinks=False):
                yield from _walk(root, path + b"/")


def _make_entry(path: str, status: os.stat_result, full: bytes, epoch: int) -> Entry:
    mode = status.st_mode
    if not is_normal(path):
        raise ValueError("a name like this would delete files of lower layers")
    if stat.S_ISLNK(mode):
        target = from_bytes(os.readlink(full))  # noqa: PTH115  # names are bytes
        return Entry(path=path, kind=Kind.LINK, mode=0o777, uid=0, gid=0, mtime=epoch, target=target)
    if stat.S_ISDIR(mode):
        return Entry(path=path, kind=Kind.DIRECTORY, mode=0o755, uid=0, gid=0, mtime=epoch)
    if not stat.S_ISREG(mode):
        raise ValueError("it is neither a file nor a folder nor a link")
    if mode & (stat.S_ISUID | stat.S_ISGID):
        raise ValueError("it would run with the rights of another user (set-id bit)")
    kept = 0o755 if mode & stat.S_IXUSR else 0o644
    return Entry(path=path, kind=Kind.FILE, mode=kept, uid=0, gid=0, mtime=epoch, size=status.st_size)


def _some(lines: Sequence[str]) -> str:
    more = f"\n… and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "\n".join(lines[:_SHOWN]) + more
