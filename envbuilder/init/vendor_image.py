"""Read an image of a vendor out of its registry: its settings, and the databases of packages in its layers.

The layers come as streams, the highest first, and nothing of them is written. A layer ends where all is known that a recipe
needs, so what is read is not compared with its digest: `lock` reads the image again, and compares all of it.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from envbuilder.artifacts.oci.model import Manifest, parse_configuration
from envbuilder.artifacts.oci.naming import Reference, parse_reference
from envbuilder.compat.image_facts import PLATFORM, Base, Name
from envbuilder.compat.inspect_image import OS_RELEASE, inspect_tree, is_wanted
from envbuilder.compat.tables.distribution import load_distributions
from envbuilder.core.errors import ContentError, UsageError
from envbuilder.init.requests import ImageBase, Requests
from envbuilder.layers.entry import Entry, Kind
from envbuilder.layers.overlay import DAMAGED, MOST_KEPT, read_members
from envbuilder.recipe.model import SHAPES
from envbuilder.registry.client import Client
from envbuilder.registry.download import read_blob, read_image, stream_blob

_LONGEST: Final = 400  # characters of a reference
_INFO: Final = re.compile(r".*/(?:site|dist)-packages/([^/]+)-([^/-]+)\.dist-info/METADATA")
_RECORD: Final = re.compile(r".*/conda-meta/(.+)-([^-]+)-([^-]+)\.json")
_BUILD: Final = re.compile(r".*-packages/torch/version\.py")
_CUDA: Final = re.compile(r"^cuda\b[^=\n]*= *(?:None|['\"](\d+\.\d+))", re.MULTILINE)
_OF_INDEX: Final = re.compile(r"\d+\.\d+\.\d+(\.post\d+)?(\+(cu\d+|cpu))?")  # a torch of PyTorch itself
_PYTHON: Final = re.compile(r"/python(3\.\d+)(?=/|$)")
_WHITEOUT: Final = ".wh."


def is_reference(text: str) -> bool:
    """Return whether a text names an image: with `docker://`, or as NAME:TAG or NAME@DIGEST."""
    name = text.removeprefix("docker://")
    is_named = name != text or ":" in name.rpartition("/")[2]
    return is_named and len(name) <= _LONGEST and re.fullmatch(SHAPES["image"].pattern, name) is not None


@dataclass(slots=True)
class _Content:
    """What the layers have that were read, the highest first."""

    paths: dict[str, Entry] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)  # what higher layers hide; a folder's content as `folder/`
    torch: str = ""
    cuda: str | None = None  # that torch was built for; "" for the CPU's
    read: int = 0  # bytes

    @property
    def has_torch(self) -> bool:
        return bool(self.torch) and self.cuda is not None

    @property
    def has_system(self) -> bool:
        return any(path in self.contents for path in OS_RELEASE)

    def add(self, layer: Iterable[bytes], *, until_system: bool) -> None:
        """Read a layer below the others, until what is sought is there."""
        hidden = set[str]()

        def counted() -> Iterator[bytes]:
            for piece in layer:
                self.read += len(piece)
                yield piece

        for member, read in read_members(counted()):
            entry, (folder, _, name) = member.entry, member.entry.path.rpartition("/")
            if name == ".wh..wh..opq":
                hidden.add(f"{folder}/")
            elif name.startswith(_WHITEOUT):
                hidden.add(f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/"))
            elif entry.path not in self.paths and not self._is_gone(entry.path):
                if entry.kind is Kind.FILE and not member.hard:
                    self._note(entry, read)
                self.paths[entry.path] = entry  # last, because an attempt that fails is made again
            if self.has_system if until_system else self.has_torch:
                break
        self.gone |= hidden

    def _is_gone(self, path: str) -> bool:
        above = [str(folder) for folder in PurePosixPath(path).parents]
        return path in self.gone or any(f in self.gone or f"{f}/" in self.gone for f in above)

    def _note(self, entry: Entry, read: Callable[[], bytes]) -> None:
        path = entry.path
        if entry.size <= MOST_KEPT and (is_wanted(path) or path in OS_RELEASE or _BUILD.fullmatch(path)):
            self.contents[path] = read()
        if (info := _INFO.fullmatch(path)) and info[1] == "torch":
            self.torch = info[2]
            if build := re.search(r"\+cu(\d+)(\d)$", info[2]):
                self.cuda = f"{build[1]}.{build[2]}"
        elif (record := _RECORD.fullmatch(path)) and record[1] == "pytorch":
            self.torch = self.torch or record[2]
            if build := re.search(r"cuda(\d+?)\.?(\d)(?=_|$)", record[3]):
                self.cuda = f"{build[1]}.{build[2]}"
        elif _BUILD.fullmatch(path):
            cuda = _CUDA.search(self.contents.get(path, b"").decode(errors="replace"))
            self.cuda = (cuda[1] or "") if cuda else self.cuda


def take_image(text: str, where: str, client: Client, requests: Requests, *, is_base: bool) -> None:
    """Request the torch of an image with its Python and CUDA, and with `is_base` the image itself.

    Raises RegistryError, and without `is_base` UsageError for a torch that no index has.
    """
    name = text.removeprefix("docker://")
    reference = parse_reference(name)
    manifest = read_image(client, reference, f"linux/{PLATFORM}")
    if manifest.config is None or not manifest.layers:
        raise ContentError(f"`{reference}` is no image: its manifest names no layers")
    try:
        configuration = parse_configuration(read_blob(client, reference, manifest.config))
        content, count = _read_layers(reference, manifest, client)
    except DAMAGED as error:
        raise ContentError(f"`{reference}` cannot be read: {error}") from error
    size = sum(layer.size for layer in manifest.layers)
    amount = f"{content.read / 1e6:,.1f} of {size / 1e6:,.1f} MB"
    requests.note(where, f"read {amount} of `{reference}`, in {count} of {len(manifest.layers)} layers")
    base = Base(facts=inspect_tree(content.paths, content.contents, configuration).facts)
    requests.suite = load_distributions().by_name.get(base.distribution, requests.suite)
    if python := _python(base):
        requests.pin("python", f"=={python}.*", where)
    torch = content.torch
    is_vendors = bool(torch) and not _OF_INDEX.fullmatch(torch)
    if is_vendors:
        message = f"torch {torch} of the image is its vendor's own build, which no index has"
        if not is_base:
            raise UsageError(message, hint="leave out `--without-image`: the image as base keeps its torch")
        requests.note(where, f"{message}: `pytorch: image` keeps it, without extensions of the recipe")
    elif torch:
        requests.pin("pytorch", f"=={torch.partition('+')[0]}", where)
        if content.cuda:
            requests.pin("cuda", f"=={content.cuda}", where)
    if is_base:
        pinned = f"{name.partition('@')[0]}@sha256:{manifest.digest}"
        requests.base = ImageBase(pinned, where, torch, is_vendors)
    names = sorted({match[1] for match in map(_INFO.fullmatch, content.paths) if match} - {"torch"})
    if names:
        hint = "add to `packages` those that your code imports"
        requests.note(where, f"the image has {len(names)} packages where torch is: {', '.join(names)}", hint=hint)  # fmt: skip


def _read_layers(reference: Reference, manifest: Manifest, client: Client) -> tuple[_Content, int]:
    """Read the layers from the highest down to that with torch, then the lowest one for the distribution. Returns how many."""
    content, left, count = _Content(), list(manifest.layers), 0
    while left and not (content.has_torch and content.has_system):
        until_system = content.has_torch
        layer, count = left.pop(0 if until_system else -1), count + 1
        stream_blob(client, reference, layer, functools.partial(content.add, until_system=until_system))
    return content, count


def _python(base: Base) -> str:
    """Return the minor version of the Python that has torch, otherwise of the first one; "" without any."""
    places = (fact.path for name in (Name.TORCH, Name.PYTHON) for fact in base.every(name))
    return next((match[1] for match in map(_PYTHON.search, places) if match), "")
