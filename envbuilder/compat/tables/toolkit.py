"""The CUDA toolkits that envbuilder can install, one typed row each.

A row says what is downloaded beside torch's own wheels, what is taken out of it, and what is linked to those wheels
instead of being copied. `envbuilder/runtime/kit/install_toolkit.py` does what a row says.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Final

from pydantic import Discriminator, Field, Tag

from envbuilder.compat.tables.table import TABLES, reader
from envbuilder.core.models import MajorMinor, Mistake, ReadAs, Rule, Shape

FILE: Final = "toolkits.yaml"
SITE: Final = "{site}"  # in a link's target: the site-packages folder of the image
_BELOW: Final = r"(?!/)(?!(.*/)?\.\.(/|$))[^\x00-\x1f\x7f\\]+"
Below = Annotated[str, Shape(pattern=_BELOW, expected="a path below the folder")]
Glob = Annotated[
    str,
    Shape(
        pattern=rf"(?!\*\*)(?!.*\*\*.)(?!.*[^/]\*\*){_BELOW}",
        expected="a path below the folder, `**` at the end only",
    ),
]
Pin = Annotated[str, Shape(pattern=r"[a-z0-9-]+==[0-9.]+", expected="`name==version`")]
Word = Annotated[str, Shape(pattern=r"[a-z0-9][a-z0-9+.-]*", expected="a name in small letters")]
Folder = Annotated[str, Shape(pattern=r"\w+", expected="the name of a folder below nvidia/")]
Target = Annotated[
    str,
    Shape(pattern=r"(?!/)[^\x00-\x1f\x7f]+", expected=f"a relative target or one that begins with {SITE}"),
]
Text = Annotated[str, Shape(pattern=r"(?s:.*)", expected="text")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """One rule: which paths of a package (`source`) go where below the toolkit folder (`target`)."""

    source: Annotated[Glob, Field(alias="from")]
    target: Annotated[Below, Field(alias="to")]
    exclude: tuple[Glob, ...] = ()


def _check_take(take: Take) -> Iterator[Mistake]:
    if any(wild in take.source for wild in "*?") and not take.target.endswith("/"):
        yield Mistake(
            message=f"`{take.source}` can match several files, so `to` must be a folder",
            hint=f"write `{take.target}/`",
        )


def _check_taken(rules: tuple[Take, ...]) -> Iterator[Mistake]:
    if not rules:
        yield Mistake(message="a part of which nothing is taken")


Takes = Annotated[tuple[Annotated[Take, Rule(_check_take)], ...], Rule(_check_taken)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DebPart:
    """A Debian package of one suite. The lock has its version."""

    name: Annotated[Word, Field(alias="deb")]
    suite: Word
    component: Word
    take: Takes


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelPart:
    """A wheel of exactly one version."""

    name: str
    version: str
    take: tuple[Take, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PinnedWheel:
    wheel: Pin  # name==version
    take: Takes


def _wheel_part(pinned: _PinnedWheel) -> WheelPart:
    name, _, version = pinned.wheel.partition("==")
    return WheelPart(name=name, version=version, take=pinned.take)


Part = DebPart | WheelPart
_PartOfFile = Annotated[
    Annotated[DebPart, Tag("a deb")]
    | Annotated[WheelPart, ReadAs(_PinnedWheel, _wheel_part), Tag("a wheel")],
    Discriminator(lambda part: "a deb" if isinstance(part, dict) and "deb" in part else "a wheel"),
]


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


def _links(found: Mapping[str, str]) -> tuple[ToolkitLink, ...]:
    return tuple(ToolkitLink(path=PurePosixPath(path), target=target) for path, target in found.items())


def _files(found: Mapping[str, str]) -> tuple[ToolkitFile, ...]:
    return tuple(ToolkitFile(path=PurePosixPath(path), text=text) for path, text in found.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """Everything that makes `usr/local/cuda-X.Y`. Build keys hold the `repr` of a row, so a field's name is part of them."""

    cuda: MajorMinor
    constraints: tuple[Pin, ...]  # on the Python environment, so that its headers fit this compiler
    parts: tuple[_PartOfFile, ...]
    header_wheels: tuple[Folder, ...]
    links: Annotated[tuple[ToolkitLink, ...], ReadAs(dict[Below, Target], _links)]
    files: Annotated[tuple[ToolkitFile, ...], ReadAs(dict[Below, Text], _files)]

    @property
    def folder(self) -> PurePosixPath:
        """Its folder, relative to the root of the tree."""
        return PurePosixPath("usr/local") / f"cuda-{self.cuda}"


def _check(toolkit: Toolkit) -> Iterator[Mistake]:
    if not toolkit.parts:
        yield Mistake(message="a toolkit without parts")
    names = [part.name for part in toolkit.parts]
    paths = [str(link.path) for link in toolkit.links] + [str(file.path) for file in toolkit.files]
    for found in (names, paths):
        for double in sorted({name for name in found if found.count(name) > 1}):
            yield Mistake(message=f"`{double}` is there twice")


_load = reader(FILE, Toolkit, key="cuda", check=_check)


def load_toolkits(path: Path = TABLES / FILE) -> Mapping[str, Toolkit]:
    """Return the rows by CUDA version, oldest first. Raises ValueError if the table breaks its own rules."""
    return _load(path).by_name
