"""The CUDA toolkits that envbuilder can install: for each source, its releases and what is taken out of its packages.

A row says what is downloaded beside torch's own wheels, what is taken out of it, and what is linked to those wheels
instead of being copied. A row and the packages in a lock make a `Toolkit`. `envbuilder/steps/toolkit.py`
installs it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal, TypeVar, get_args

from pydantic import Discriminator, Field, Tag

from envbuilder.compat.tables.table import Span, in_span, reader, version_key
from envbuilder.core.cache import Sha256
from envbuilder.core.models import Flag, MajorMinor, Mistake, ReadAs, Rule, Shape
from envbuilder.core.processor import X86_64, Processor
from envbuilder.sources.names import Wanted

SITE: Final = "{site}"  # in a link's target: the site-packages folder of the image
LIBRARIES: Final = "lib64/*"  # the path of the links to the libraries that torch's wheels bring
VERSION: Final = "{version}"  # in `from`: the version of the wheel
CUDA: Final = "{cuda}"  # in the name of a package of NVIDIA's apt repositories: 11-3; in its `from`: 11.3
Source = Literal["archive", "wheels", "debs", "apt"]
SOURCES: Final[tuple[Source, ...]] = get_args(Source)  # in order of preference
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
Wheel = Annotated[str, Shape(pattern=r"[a-z0-9-]+(==[0-9.]+)?", expected="`name==version` or `name`")]
Component = Annotated[str, Shape(pattern=r"[a-z0-9_]+", expected="the name of a component")]
Release = Annotated[str, Shape(pattern=r"[0-9]+\.[0-9]+\.[0-9]+", expected='a release such as "12.4.1"')]
Manifest = Annotated[Sha256, Shape(pattern=r"[0-9a-f]{64}", expected="64 hexadecimal digits")]
Word = Annotated[str, Shape(pattern=r"[a-z0-9][a-z0-9+.-]*", expected="a name in small letters")]
Folder = Annotated[str, Shape(pattern=r"\w+|\*", expected="the name of a folder below nvidia/, or `*`")]
Target = Annotated[
    str,
    Shape(pattern=r"(?!/)[^\x00-\x1f\x7f]+", expected=f"a relative target or one that begins with {SITE}"),
]
Text = Annotated[str, Shape(pattern=r"(?s:.*)", expected="text")]
_Found = TypeVar("_Found")


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


Takes = Annotated[
    tuple[Annotated[Take, Rule(_check_take)], ...],
    Rule(lambda rules: () if rules else (Mistake(message="a part of which nothing is taken"),)),
]


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
    version: str  # "" in a row whose versions are the lock's
    take: tuple[Take, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePart:
    """A component of NVIDIA's redistributable archive. The lock has its version."""

    name: str
    take: tuple[Take, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AptPart:
    """A package of NVIDIA's apt repositories, which a recipe or its image names. The lock has its version."""

    name: str
    take: tuple[Take, ...]


Part = DebPart | WheelPart | ArchivePart | AptPart


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPart:
    """A part as a row has it, with the toolkits that need it."""

    part: Part
    span: Span = ""  # of minor versions; "" for all of the row's
    headers: Flag = False  # for its headers alone, where torch's wheels bring libraries without headers


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowWheel:
    wheel: Wheel
    take: Takes
    span: Annotated[Span, Field(alias="for")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowArchive:
    archive: Component
    take: Takes
    span: Annotated[Span, Field(alias="for")] = ""
    headers: Flag = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowApt:
    apt: Annotated[
        str, Shape(pattern=rf"[a-z0-9-]+-{re.escape(CUDA)}", expected=f"a name that ends with -{CUDA}")
    ]
    take: Takes
    span: Annotated[Span, Field(alias="for")] = ""
    headers: Flag = False


def _apt_part(row: _RowApt) -> RowPart:
    return RowPart(part=AptPart(name=row.apt, take=row.take), span=row.span, headers=row.headers)


def _wheel_part(row: _RowWheel) -> RowPart:
    name, _, version = row.wheel.partition("==")
    return RowPart(part=WheelPart(name=name, version=version, take=row.take), span=row.span)


def _archive_part(row: _RowArchive) -> RowPart:
    return RowPart(part=ArchivePart(name=row.archive, take=row.take), span=row.span, headers=row.headers)


def _tag(part: object) -> str:
    kinds = {"deb": "a deb", "archive": "an archive", "apt": "an apt package"}
    found = part if isinstance(part, dict) else {}
    return next((kind for key, kind in kinds.items() if key in found), "a wheel")


_RowPart = Annotated[
    Annotated[RowPart, ReadAs(DebPart, lambda part: RowPart(part=part)), Tag("a deb")]
    | Annotated[RowPart, ReadAs(_RowWheel, _wheel_part), Tag("a wheel")]
    | Annotated[RowPart, ReadAs(_RowArchive, _archive_part), Tag("an archive")]
    | Annotated[RowPart, ReadAs(_RowApt, _apt_part), Tag("an apt package")],
    Discriminator(_tag),
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
    """Everything that makes `usr/local/cuda-X.Y`. Build keys hold its `repr`, so a field's name is part of them."""

    cuda: MajorMinor
    constraints: tuple[Pin, ...]  # on the Python environment, so that its headers fit this compiler
    parts: tuple[Part, ...]
    header_wheels: tuple[Folder, ...]
    links: tuple[ToolkitLink, ...]
    files: tuple[ToolkitFile, ...]

    def on(self, processor: Processor) -> "Toolkit":
        """Return the toolkit for a processor, whose folder below `targets` has another name."""
        names = (f"targets/{X86_64.cuda_target}/", f"targets/{processor.cuda_target}/")
        links = tuple(replace(one, path=PurePosixPath(str(one.path).replace(*names))) for one in self.links)
        return replace(self, links=links)

    @property
    def folder(self) -> PurePosixPath:
        """Its folder, relative to the root of the tree."""
        return PurePosixPath("usr/local") / f"cuda-{self.cuda}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One row: how toolkits of one source are made of its packages."""

    source: Source
    releases: tuple[Release, ...]  # oldest first
    # Releases that are newer than the listed ones are asked for as well.
    further: Flag = False
    # For locks that hold these packages; a new lock takes another row.
    kept: Flag = False
    manifests: Annotated[Mapping[str, Sha256], ReadAs(dict[Release, Manifest], dict)] = field(
        default_factory=dict
    )
    constraints: tuple[Pin, ...] = ()
    parts: tuple[_RowPart, ...]
    header_wheels: tuple[Folder, ...]
    links: Annotated[tuple[ToolkitLink, ...], ReadAs(dict[Below, Target], _links)]
    libraries: tuple[Glob, ...] = ()  # of torch's wheels
    files: Annotated[tuple[ToolkitFile, ...], ReadAs(dict[Below, Text], _files)]

    def releases_of(self, cuda: str) -> tuple[str, ...]:
        """Return the listed releases that a recipe's `cuda` allows, newest first: of "12.4" all, of "12.4.1" that one."""
        return tuple(one for one in reversed(self.releases) if f"{one}.".startswith(f"{cuda}."))

    def may_have(self, cuda: str) -> bool:
        """Return whether the source is to be asked for a recipe's `cuda`."""
        if self.kept:
            return False
        newer = self.further and version_key(cuda) > version_key(self.releases[0])
        return newer or bool(self.releases_of(cuda))

    def parts_of(self, minor: str, *, headers: bool = False) -> tuple[Part, ...]:
        """Return the parts of a toolkit, or those that only bring `headers`."""
        return tuple(
            _of(one.part, minor)
            for one in self.parts
            if one.headers == headers and (not one.span or in_span(version_key(minor), one.span))
        )

    def toolkit(self, minor: str, locked: Iterable[Wanted]) -> Toolkit | None:
        """Return the toolkit that this row makes of the locked packages, None if they are not its parts."""
        have = {one.name: one for one in locked}
        headers = self.parts_of(minor, headers=True)
        parts = (*self.parts_of(minor), *(part for part in headers if part.name in have))
        if set(have) != {part.name for part in parts} or not all(
            _is_part(part, have[part.name]) for part in parts
        ):
            return None
        found = (
            ToolkitLink(path=PurePosixPath(LIBRARIES), target=f"{SITE}/{glob}") for glob in self.libraries
        )
        return Toolkit(
            cuda=minor,
            constraints=self.constraints,
            parts=tuple(_at(part, have[part.name].version) for part in parts),
            header_wheels=self.header_wheels,
            links=(*self.links, *found),
            files=self.files,
        )


def _is_part(part: Part, locked: Wanted) -> bool:
    match part:
        case WheelPart():
            return locked.kind == "wheel" and part.version in ("", locked.version)
        case DebPart() | AptPart():
            return locked.kind == "deb"
        case ArchivePart():
            return locked.kind == "archive"


def _of(part: Part, minor: str) -> Part:
    """Return the part of a toolkit, by its own name if each toolkit has another package."""
    if not isinstance(part, AptPart):
        return part
    take = tuple(replace(one, source=one.source.replace(CUDA, minor)) for one in part.take)
    return AptPart(name=part.name.replace(CUDA, minor.replace(".", "-")), take=take)


def _at(part: Part, version: str) -> Part:
    """Return the part in the version of the lock."""
    if not isinstance(part, WheelPart) or part.version:
        return part
    take = tuple(replace(one, source=one.source.replace(VERSION, version)) for one in part.take)
    return replace(part, version=version, take=take)


def _check(layout: Layout) -> Iterator[Mistake]:
    if not layout.parts:
        yield Mistake(message="a toolkit without parts")
    if unknown := sorted(set(layout.manifests) - set(layout.releases)):
        yield Mistake(message=f"a manifest of {', '.join(unknown)}, which is not among the releases")
    spans = [(one.part.name, one.span) for one in layout.parts]
    names = [name for at, (name, span) in enumerate(spans) if (name, span) in spans[:at]]
    paths = [str(link.path) for link in layout.links] + [str(file.path) for file in layout.files]
    for double in (*names, *(path for at, path in enumerate(paths) if path in paths[:at])):
        yield Mistake(message=f"`{double}` is there twice")


load_toolkits = reader(
    "toolkits.yaml", Layout, key="source", check=_check, order=lambda row: (SOURCES.index(row.source), version_key(row.releases[-1]))
)  # fmt: skip


def newer_releases(
    minor: str, known: Iterable[str], ask: Callable[[str], _Found | None]
) -> Iterator[tuple[str, _Found]]:
    """Yield the releases of a minor version after the known ones, with what `ask` finds.

    NVIDIA's archive has no list, so they are asked for one by one, until it lacks two in a row.
    """
    number = max((version_key(one)[2] for one in known if one.startswith(f"{minor}.")), default=-1)
    misses = 0
    while misses < 2:
        number += 1
        if found := ask(f"{minor}.{number}"):
            yield f"{minor}.{number}", found
        misses = 0 if found else misses + 1


def toolkit_of(
    minor: str, locked: Iterable[Wanted], layouts: Iterable[Layout]
) -> tuple[Layout, Toolkit] | None:
    """Return the toolkit that a lock's packages make, with its row; None if they are of no row."""
    have = tuple(locked)
    found = ((layout, layout.toolkit(minor, have)) for layout in layouts if have)
    return next(((layout, toolkit) for layout, toolkit in found if toolkit), None)


def all_releases(layouts: Iterable[Layout]) -> tuple[str, ...]:
    """Return every release that a source is known to have, oldest first."""
    return tuple(sorted({one for layout in layouts for one in layout.releases}, key=version_key))
