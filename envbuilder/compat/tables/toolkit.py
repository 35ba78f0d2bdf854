"""The CUDA toolkits that envbuilder can install: for each source, its releases and what is taken out of its packages.

A row says what is downloaded beside torch's own wheels, what is taken out of it, and what is linked to those wheels
instead of being copied. A row and the packages in a lock make a `Toolkit`. `envbuilder/steps/toolkit.py`
installs it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal, TypeVar, get_args

from pydantic import Field

from envbuilder.compat.tables.table import Span, in_span, pairs, reader, version_key
from envbuilder.core.cache import Sha256
from envbuilder.core.models import FieldRule, Flag, MajorMinor, Mistake, ReadAs, Shape
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
CudaPackage = Annotated[
    str, Shape(pattern=rf"[a-z0-9-]+-{re.escape(CUDA)}", expected=f"a name that ends with -{CUDA}")
]
Manifest = Annotated[Sha256, Shape(pattern=r"[0-9a-f]{64}", expected="64 hexadecimal digits")]
Word = Annotated[str, Shape(pattern=r"[a-z0-9][a-z0-9+.-]*", expected="a name in small letters")]
Folder = Annotated[str, Shape(pattern=r"\w+|\*", expected="the name of a folder below nvidia/, or `*`")]
Target = Annotated[
    str,
    Shape(pattern=r"(?!/)[^\x00-\x1f\x7f]+", expected=f"a relative target or one that begins with {SITE}"),
]
Text = Annotated[str, Shape(pattern=r"(?s:.*)", expected="text")]
_Answer = TypeVar("_Answer")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A package, named by the key of its kind, and what of it belongs to a toolkit. The lock has the versions."""

    deb: Word | None = None  # of Debian's `suite` and `component`
    wheel: Wheel | None = None  # of a version that the row or the lock names
    archive: Component | None = None  # of NVIDIA's redistributable archive
    apt: CudaPackage | None = None  # of NVIDIA's apt repositories, which a recipe or its image names
    suite: Word = ""
    component: Word = ""
    take: tuple[Annotated[Take, FieldRule(_check_take)], ...]
    span: Annotated[Span, Field(alias="for")] = ""  # the minor versions that need it; "" for all of the row's
    headers: Flag = False  # for its headers alone, where torch's wheels bring libraries without headers

    @property
    def name(self) -> str:
        return (self.deb or self.wheel or self.archive or self.apt or "").partition("==")[0]

    @property
    def version(self) -> str:
        """Return the version that the row asks for; "" where the lock's is right."""
        return (self.wheel or "").partition("==")[2]

    @property
    def kind(self) -> str:
        return "wheel" if self.wheel else "archive" if self.archive else "deb"

    def is_made_by(self, package: Wanted) -> bool:
        return package.kind == self.kind and self.version in ("", package.version)

    def of(self, minor: str) -> "Part":
        """Return the part of one toolkit, by its own name if each toolkit has another package."""
        take = tuple(replace(rule, source=rule.source.replace(CUDA, minor)) for rule in self.take)
        apt = self.apt and self.apt.replace(CUDA, minor.replace(".", "-"))
        return replace(self, apt=apt, take=take, span="", headers=False)

    def at(self, version: str) -> "Part":
        """Return the part in the version of the lock."""
        if not self.wheel or self.version:
            return self
        take = tuple(replace(rule, source=rule.source.replace(VERSION, version)) for rule in self.take)
        return replace(self, wheel=f"{self.wheel}=={version}", take=take)


def _check_part(part: Part) -> Iterator[Mistake]:
    if sum(name is not None for name in (part.deb, part.wheel, part.archive, part.apt)) != 1:
        yield Mistake(message="a part has one of the keys deb, wheel, archive and apt")
    if bool(part.deb) != bool(part.suite and part.component):
        yield Mistake(message="a deb, and nothing else, has a suite and a component")
    if not part.take:
        yield Mistake(message="a part of which nothing is taken")


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """Everything that makes `usr/local/cuda-X.Y`. Build keys hold its `repr`, so a field's name is part of them."""

    cuda: MajorMinor
    constraints: tuple[Pin, ...]  # on the Python environment, so that its headers fit this compiler
    parts: tuple[Part, ...]
    header_wheels: tuple[Folder, ...]
    links: tuple[tuple[str, str], ...]  # path below the toolkit folder, and target: relative or with `{site}`
    files: tuple[tuple[str, str], ...]  # path below the toolkit folder, and text

    def on(self, processor: Processor) -> "Toolkit":
        """Return the toolkit for a processor, whose folder below `targets` has another name."""
        names = (f"targets/{X86_64.cuda_target}/", f"targets/{processor.cuda_target}/")
        return replace(self, links=tuple((path.replace(*names), target) for path, target in self.links))

    @property
    def folder(self) -> PurePosixPath:
        return PurePosixPath("usr/local") / f"cuda-{self.cuda}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitLayout:
    """One row: how toolkits of one source are made of its packages."""

    source: Source
    releases: tuple[Release, ...]  # oldest first
    further: Flag = False  # releases that are newer than the listed ones are asked for as well
    kept: Flag = False  # for locks that hold these packages; a new lock takes another row
    manifests: dict[Release, Manifest] = field(default_factory=dict)
    constraints: tuple[Pin, ...] = ()
    parts: tuple[Annotated[Part, FieldRule(_check_part)], ...]
    header_wheels: tuple[Folder, ...]
    links: Annotated[tuple[tuple[str, str], ...], ReadAs(dict[Below, Target], pairs)]
    libraries: tuple[Glob, ...] = ()  # of torch's wheels
    files: Annotated[tuple[tuple[str, str], ...], ReadAs(dict[Below, Text], pairs)]

    def releases_of(self, cuda: str) -> tuple[str, ...]:
        """Return the listed releases that a recipe's `cuda` allows, newest first: of "12.4" all, of "12.4.1" that one."""
        return tuple(release for release in reversed(self.releases) if f"{release}.".startswith(f"{cuda}."))

    def may_have(self, cuda: str) -> bool:
        """Return whether the source is to be asked for a recipe's `cuda`."""
        if self.kept:
            return False
        newer = self.further and version_key(cuda) > version_key(self.releases[0])
        return newer or bool(self.releases_of(cuda))

    def parts_of(self, minor: str, *, headers: bool = False) -> tuple[Part, ...]:
        """Return the parts of a toolkit, or those that only bring `headers`."""
        return tuple(
            part.of(minor)
            for part in self.parts
            if part.headers == headers and (not part.span or in_span(version_key(minor), part.span))
        )

    def toolkit(self, minor: str, locked: Iterable[Wanted]) -> Toolkit | None:
        """Return the toolkit that this row makes of the locked packages, None if they are not its parts."""
        have = {package.name: package for package in locked}
        headers = [part for part in self.parts_of(minor, headers=True) if part.name in have]
        parts = (*self.parts_of(minor), *headers)
        if have.keys() != {part.name for part in parts} or not all(
            part.is_made_by(have[part.name]) for part in parts
        ):
            return None
        return Toolkit(
            cuda=minor,
            constraints=self.constraints,
            parts=tuple(part.at(have[part.name].version) for part in parts),
            header_wheels=self.header_wheels,
            links=(*self.links, *((LIBRARIES, f"{SITE}/{glob}") for glob in self.libraries)),
            files=self.files,
        )


def _check(layout: ToolkitLayout) -> Iterator[Mistake]:
    if not layout.parts:
        yield Mistake(message="a toolkit without parts")
    if unknown := sorted(set(layout.manifests) - set(layout.releases)):
        yield Mistake(message=f"a manifest of {', '.join(unknown)}, which is not among the releases")
    names = Counter((part.name, part.span) for part in layout.parts)
    paths = Counter((path, "") for path, _ in (*layout.links, *layout.files))
    for (name, _), count in (*names.items(), *paths.items()):
        if count > 1:
            yield Mistake(message=f"`{name}` is there twice")


load_toolkits = reader(
    "toolkits.yaml", ToolkitLayout, key="source", check=_check, order=lambda row: (SOURCES.index(row.source), version_key(row.releases[-1]))
)  # fmt: skip


def newer_releases(
    minor: str, known: Iterable[str], ask: Callable[[str], _Answer | None]
) -> Iterator[tuple[str, _Answer]]:
    """Yield the releases of a minor version after the known ones, with what `ask` finds.

    NVIDIA's archive has no list, so they are asked for one by one, until it lacks two in a row.
    """
    patches = (version_key(release)[2] for release in known if release.startswith(f"{minor}."))
    number = max(patches, default=-1)
    misses = 0
    while misses < 2:
        number += 1
        if answer := ask(f"{minor}.{number}"):
            yield f"{minor}.{number}", answer
        misses = 0 if answer else misses + 1


def toolkit_of(
    minor: str, locked: Iterable[Wanted], layouts: Iterable[ToolkitLayout]
) -> tuple[ToolkitLayout, Toolkit] | None:
    """Return the toolkit that a lock's packages make, with its row; None if they are of no row."""
    have = tuple(locked)
    for layout in layouts if have else ():
        if toolkit := layout.toolkit(minor, have):
            return layout, toolkit
    return None


def all_releases(layouts: Iterable[ToolkitLayout]) -> tuple[str, ...]:
    """Return every release that a source is known to have, oldest first."""
    return tuple(sorted({release for layout in layouts for release in layout.releases}, key=version_key))
