"""Count the bytes of an environment by layer and package, with the file lists of dpkg and pip inside it."""

import csv
import io
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from envbuilder.verify.audit import Tree

# The folders of each layer; all others belong to the os layer.
LAYERS: Final = (
    ("opt/python/", "interpreter"),
    ("opt/env/", "python"),
    ("usr/local/cuda", "cuda"),
    ("opt/envbuilder/extensions/", "extensions"),
    ("opt/envbuilder/", "envbuilder"),
    (".singularity.d/", "envbuilder"),
)
OS: Final = "os"
_DPKG: Final = re.compile(r"var/lib/dpkg/info/([^/:]+)(?::[^/]*)?\.list")
_RECORD: Final = re.compile(r"(.*/)([^/]+?)-[^/-]+\.dist-info/RECORD")
# Links into /usr, which dpkg's lists do not know.
_MERGED: Final = re.compile(r"(bin|sbin|lib|lib32|lib64|libx32)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The bytes of one package in one layer. Files of no package count under the layer's name."""

    layer: str
    name: str
    size: int  # bytes


def measure(tree: Tree) -> tuple[Part, ...]:
    """Count every byte of the tree once. The largest part of each layer comes first."""
    owners = _owners(tree)
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    for entry in tree.entries:
        if entry.size:
            layer = _layer(entry.path)
            sizes[layer, owners.get(entry.path) or _other(layer, entry.path, owners)] += entry.size
    parts = (Part(layer=layer, name=name, size=size) for (layer, name), size in sizes.items())
    return tuple(sorted(parts, key=lambda part: (part.layer, -part.size, part.name)))


def layer_sizes(parts: tuple[Part, ...]) -> dict[str, int]:
    """Return the bytes of each layer, the largest first."""
    sizes: dict[str, int] = defaultdict(int)
    for part in parts:
        sizes[part.layer] += part.size
    return dict(sorted(sizes.items(), key=lambda pair: -pair[1]))


def _layer(path: str) -> str:
    return next((layer for prefix, layer in LAYERS if path.startswith(prefix)), OS)


def _owners(tree: Tree) -> dict[str, str]:
    """Return the package of each file, and of each folder in site-packages: RECORD may not list its byte code."""
    owners: dict[str, str] = {}
    for entry in tree.entries:
        if found := _DPKG.fullmatch(entry.path):
            owners |= dict.fromkeys(_listed(tree, entry.path), found[1])
        elif found := _RECORD.fullmatch(entry.path):
            for path in _recorded(tree, entry.path, found[1]):
                owners[path] = found[2]
                below = path.removeprefix(found[1])
                if path.startswith(found[1]) and "/" in below:
                    owners.setdefault(found[1] + below.partition("/")[0], found[2])
    return owners


def _listed(tree: Tree, path: str) -> Iterator[str]:
    for line in _text(tree, path).splitlines():
        name = line.removeprefix("/")
        yield f"usr/{name}" if _MERGED.match(name) else name


def _recorded(tree: Tree, path: str, folder: str) -> Iterator[str]:
    for row in csv.reader(io.StringIO(_text(tree, path))):
        if row:
            yield posixpath.normpath(folder + row[0])


def _text(tree: Tree, path: str) -> str:
    with tree.open(path) as stream:
        return stream.read().decode("utf-8", "replace")


def _other(layer: str, path: str, owners: dict[str, str]) -> str:
    """Name the owner of an unlisted file by its folder: a Python package or a part of the toolkit."""
    parts = path.split("/")
    if layer == "python":
        folders = ("/".join(parts[:depth]) for depth in range(len(parts) - 1, 3, -1))
        return next((owners[folder] for folder in folders if folder in owners), "byte code and start-up")
    if layer == "cuda":
        return f"{parts[3]} of the toolkit" if len(parts) > 4 else "toolkit"
    if layer == "extensions":
        return parts[3] if len(parts) > 4 else "index"
    return "made while installing" if layer == OS else "lock, plan, start-up"
