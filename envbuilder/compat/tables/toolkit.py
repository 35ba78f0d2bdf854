"""The CUDA toolkits that can be laid out here, one typed row each.

A row says what is downloaded beside torch's own wheels, what is taken out of it, and what is linked to those wheels
instead of being copied. `engines/cuda.py` does what a row says.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final

from envbuilder.compat.tables.table import Table, load_table
from envbuilder.core.decode import MAJOR_MINOR, Code, Fields, Kind, Mistakes, Node, Shape, read_text

FILE: Final = Path(__file__).with_name("toolkits.yaml")
SITE: Final = "{site}"  # in a link's target: the site-packages folder of the image
_KEYS: Final = ("cuda", "constraints", "parts", "header_wheels", "links", "files")
_BELOW: Final = Shape(
    pattern=r"(?!/)(?!(.*/)?\.\.(/|$))[^\x00-\x1f\x7f\\]+", expected="a path below the folder"
)
_GLOB: Final = Shape(
    pattern=rf"(?!\*\*)(?!.*\*\*.)(?!.*[^/]\*\*){_BELOW.pattern}",
    expected="a path below the folder, `**` at the end only",
)
_PIN: Final = Shape(pattern=r"[a-z0-9-]+==[0-9.]+", expected="`name==version`")
_WORD: Final = Shape(pattern=r"[a-z0-9][a-z0-9+.-]*", expected="a name in small letters")
_FOLDER: Final = Shape(pattern=r"\w+", expected="the name of a folder below nvidia/")
_TARGET: Final = Shape(
    pattern=r"(?!/)[^\x00-\x1f\x7f]+", expected=f"a relative target or one that begins with {SITE}"
)
_ANYTHING: Final = Shape(pattern=r"(?s:.*)", expected="text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """One rule: which paths of a package (`source`) go where below the toolkit folder (`target`)."""

    source: str
    target: str
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DebPart:
    """A Debian package of one suite; its version is the lock's to say."""

    name: str
    suite: str
    component: str
    take: tuple[Take, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelPart:
    """A wheel of exactly one version."""

    name: str
    version: str
    take: tuple[Take, ...]


Part = DebPart | WheelPart


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitLink:
    """A symbolic link below the toolkit folder; the target is relative or begins with `{site}`."""

    path: PurePosixPath
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitFile:
    """A small file below the toolkit folder."""

    path: PurePosixPath
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """Everything that makes `usr/local/cuda-X.Y`."""

    cuda: str
    constraints: tuple[str, ...]  # on the Python environment, so that its headers fit this compiler
    parts: tuple[Part, ...]
    header_wheels: tuple[str, ...]
    links: tuple[ToolkitLink, ...]
    files: tuple[ToolkitFile, ...]

    @property
    def folder(self) -> PurePosixPath:
        """Where it lies, relative to the root of the tree."""
        return PurePosixPath("usr/local") / f"cuda-{self.cuda}"


@functools.cache
def load_toolkits(path: Path = FILE) -> Mapping[str, Toolkit]:
    """The rows by CUDA version, oldest first; raises ValueError when the table breaks its own rules."""
    return MappingProxyType({row.cuda: row for row in read_toolkits(path).rows})


def read_toolkits(path: Path) -> Table[Toolkit]:
    return load_table(path, _KEYS, _toolkit, lambda row: tuple(map(int, row.cuda.split("."))))


def _toolkit(fields: Fields) -> Toolkit:
    mistakes = fields.mistakes
    toolkit = Toolkit(
        cuda=fields.text("cuda", MAJOR_MINOR),
        constraints=fields.texts("constraints", _PIN),
        parts=tuple(_part(node, mistakes) for node in fields.items("parts")),
        header_wheels=fields.texts("header_wheels", _FOLDER),
        links=tuple(ToolkitLink(path=path, target=text) for path, text in _by_path(fields, "links", _TARGET)),
        files=tuple(ToolkitFile(path=path, text=text) for path, text in _by_path(fields, "files", _ANYTHING)),
    )
    if not toolkit.parts and "parts" in fields:
        mistakes.at(fields.node, Code.VALUE, "a toolkit without parts")
    names = [part.name for part in toolkit.parts]
    paths = [str(link.path) for link in toolkit.links] + [str(file.path) for file in toolkit.files]
    for found in (names, paths):
        for double in sorted({name for name in found if name and found.count(name) > 1}):
            mistakes.at(fields.node, Code.VALUE, f"`{double}` is there twice")
    return toolkit


def _part(node: Node, mistakes: Mistakes) -> Part:
    if node.get("deb") is not None:
        fields = Fields(node, mistakes, required=("deb", "suite", "component", "take"))
        return DebPart(
            name=fields.text("deb", _WORD),
            suite=fields.text("suite", _WORD),
            component=fields.text("component", _WORD),
            take=_rules(fields),
        )
    fields = Fields(node, mistakes, required=("wheel", "take"))
    name, _, version = fields.text("wheel", _PIN).partition("==")
    return WheelPart(name=name, version=version, take=_rules(fields))


def _rules(part: Fields) -> tuple[Take, ...]:
    rules = part.items("take")
    if not rules and "take" in part:
        part.mistakes.at(part.node, Code.VALUE, "a part of which nothing is taken")
    return tuple(
        _take(Fields(rule, part.mistakes, required=("from", "to"), optional=("exclude",))) for rule in rules
    )


def _take(fields: Fields) -> Take:
    take = Take(
        source=fields.text("from", _GLOB),
        target=fields.text("to", _BELOW),
        exclude=fields.texts("exclude", _GLOB),
    )
    if any(wild in take.source for wild in "*?") and take.target and not take.target.endswith("/"):
        fields.mistakes.at(
            fields.node,
            Code.VALUE,
            f"`{take.source}` can match several files, so `to` must be a folder",
            hint=f"write `{take.target}/`",
        )
    return take


def _by_path(fields: Fields, key: str, shape: Shape) -> list[tuple[PurePosixPath, str]]:
    pairs: list[tuple[PurePosixPath, str]] = []
    for entry in fields.entries(key):
        key_node = Node(path=entry.node.path, where=entry.where, kind=Kind.TEXT, text=entry.key)
        path = read_text(key_node, fields.mistakes, _BELOW)
        pairs.append((PurePosixPath(path), read_text(entry.node, fields.mistakes, shape)))
    return pairs
