"""The types of a lock: a recipe with every choice made, each artifact named by its sha256.

A build reads only files that the lock names. It names them by a source and a path relative to it, never by a
host, so a mirror, a local folder or a vendored copy serves as well. `file.py` reads and writes these types.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal

from envbuilder.compat.image_facts import Base, Fact
from envbuilder.core.cache import Sha256, sha256_text
from envbuilder.core.findings import CodeEnum
from envbuilder.core.models import FieldRule, Line, LineOrEmpty, Mistake, ReadAs, Seconds, Shape, Whole
from envbuilder.core.places import shown
from envbuilder.core.processor import X86_64
from envbuilder.recipe.extension import Extension, Form
from envbuilder.recipe.model import Recipe
from envbuilder.sources.names import REGISTRY

PARTS: Final = {  # keys of Recipe.canonical() that each part is resolved from; some are not there while they have their default
    "debs": ("base", "python", "gcc", "libxcrypt", "apt", "apt_sources", "security"),
    "toolkit": ("base", "cuda", "apt_sources", "indexes"),
    "wheels": ("base", "python", "cuda", "pytorch", "packages", "indexes", "nccl.version"),
    "conda": ("conda", "base", "cuda"),
}

_SHA256: Final = Shape(pattern=r"[0-9a-f]{64}", expected="64 hexadecimal digits")
_MEDIA_TYPE: Final = Shape(pattern=r"[A-Za-z0-9.+/_-]*", expected="a media type")
_NAME: Final = Shape(pattern=r"[A-Za-z0-9_][A-Za-z0-9+._-]*", expected="the name of a package")
_VERSION: Final = Shape(pattern=r"[0-9A-Za-z][0-9A-Za-z.+:~!_-]*", expected="a version")
_SOURCE: Final = Shape(pattern=r"[a-z][a-z0-9-]*", expected="the name of a source")
_PLATFORM: Final = Shape(pattern=r"linux/[a-z0-9]+", expected=f"a platform such as {X86_64.platform}")
_PATH: Final = Shape(
    pattern=r"(?!(?:.*/)?\.{0,2}(?:/|$))[^\x00-\x1f\x7f\\]+",
    expected="a plain relative path with `/` and no `..`",
)
Digest = Annotated[Sha256, _SHA256]
Version = Annotated[str, _VERSION]
RelativePath = Annotated[str, _PATH]


class LockCode(CodeEnum):
    """The mistakes in a lock beyond the form of its values."""

    ORDER = "EB410", "entries that are doubled or not sorted"
    SOURCES = "EB411", "an extension whose sources have no digest"
    STALE = "EB415", "a lock that no longer fits its recipe, where that is no error"
    EDITED = "EB414", "an entry of a lock that is not as `lock` wrote it, or merge markers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One file to fetch. `source` is `debian`, `debian-security` or `ubuntu` (path below a mirror), `cuda` (path below NVIDIA's
    redistributable archive), `pypi` (path `project/filename` in a package index), `pytorch` (path `cu126/project/filename`
    below PyTorch's own indexes), `python-build-standalone` (path `release/filename` below its releases), `apt-NAME` (path
    below an apt repository of the recipe or of its image), `git` (the tree of a commit as a tar), `url-SHA256` (the file at
    the address of an extension or a wheel), `index-NAME` (path `project/filename` in an index of the recipe), `links-NAME`
    (path `filename` on a page of the recipe), `channel-NAME` (path `subdir/filename` below a conda channel of the recipe),
    `hub` (path below the Hugging Face hub), `recipe` (path below the recipe's folder) or `registry` (path `manifests/sha256:…` or `blobs/sha256:…` below the image
    `name`; never in a lockfile).
    """

    kind: Line  # deb | wheel | sdist | archive | blob | conda | kernel; an extension's archive: git | sdist
    name: Annotated[str, _NAME]
    version: Version
    sha256: Digest
    size: Whole  # bytes
    source: Annotated[str, _SOURCE]
    path: RelativePath

    @property
    def filename(self) -> str:
        return self.path.rpartition("/")[2]


Artifacts = tuple[Artifact, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file of the recipe's folder. `path` is relative to that folder."""

    path: RelativePath
    sha256: Digest
    size: Whole


def _check_order(key: str) -> Callable[[tuple[object, ...]], Iterator[Mistake]]:
    def check(entries: tuple[object, ...]) -> Iterator[Mistake]:
        names = [getattr(entry, key) for entry in entries]
        for at, (before, name) in enumerate(itertools.pairwise(names), start=1):
            if not before < name:
                message = f"`{name}` follows `{before}`: expected each once, sorted"
                yield Mistake(message=message, code=LockCode.ORDER, at=(at,))

    return check


def _check_kind(*kinds: str) -> Callable[[Artifact], Iterator[Mistake]]:
    def check(artifact: Artifact) -> Iterator[Mistake]:
        if artifact.kind not in kinds:
            message = f"expected {' or '.join(kinds)}, found {shown(artifact.kind)}"
            yield Mistake(message=message, at=("kind",))

    return check


def _pair(texts: tuple[str, ...]) -> tuple[str, ...]:
    if len(texts) != 2:
        raise Mistake(message="expected a name and a value").error()
    return texts


_SORTED: Final = FieldRule(_check_order("name"))
Debs = Annotated[tuple[Annotated[Artifact, FieldRule(_check_kind("deb"))], ...], _SORTED]
Parts = Annotated[tuple[Annotated[Artifact, FieldRule(_check_kind("deb", "wheel", "archive"))], ...], _SORTED]
Wheels = Annotated[tuple[Annotated[Artifact, FieldRule(_check_kind("wheel"))], ...], _SORTED]
Packages = Annotated[tuple[Annotated[Artifact, FieldRule(_check_kind("wheel", "sdist"))], ...], _SORTED]
Condas = Annotated[tuple[Annotated[Artifact, FieldRule(_check_kind("conda"))], ...], _SORTED]
Variable = Annotated[tuple[str, str], ReadAs(tuple[LineOrEmpty, ...], _pair)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedExtension:
    name: Line
    sources: tuple[RelativePath, ...]  # compiled in this order, the recipe's
    include: tuple[RelativePath, ...]
    cflags: tuple[Line, ...]
    cuda_cflags: tuple[Line, ...]
    # The files of the recipe's folder that its build reads, sorted by path.
    files: Annotated[tuple[SourceFile, ...], FieldRule(_check_order("path"))]
    path: RelativePath | Literal[".", ""] = ""  # this and the next eight as in the recipe, see `Extension`
    git: Line = ""
    commit: Line = ""
    sdist: Line = ""
    url: Line = ""
    sha256: Line = ""
    capture: tuple[Line, ...] = ()
    env: tuple[Variable, ...] = ()
    options: tuple[Line, ...] = ()
    patch: RelativePath = ""  # one of `files`
    # The content of `git`, `sdist` or `url` as one file.
    archive: Annotated[Artifact, FieldRule(_check_kind("git", "sdist"))] | None = None

    @property
    def form(self) -> Form:
        if self.capture:
            return Form.CAPTURE
        return Form.LOAD if self.sources else Form.PROJECT


def _check_digests(extension: LockedExtension) -> Iterator[Mistake]:
    if missing := sorted(set(extension.sources) - {file.path for file in extension.files}):
        message = f"no digest of {', '.join(missing)} among the files"
        yield Mistake(message=message, code=LockCode.SOURCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedKernel:
    """A kernel of the Hugging Face hub: the build that fits the lock's torch."""

    name: Line  # owner/name
    revision: Line  # the commit
    variant: Line  # the folder of `build` with its files: torch27-cxx11-cu126-x86_64-linux
    files: Annotated[
        tuple[Annotated[Artifact, FieldRule(_check_kind("kernel"))], ...], FieldRule(_check_order("path"))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedWarm:
    """The programs of `warm`, and the files of the recipe's folder that they read. The files in the folders `caches` are among them."""

    run: tuple[Line, ...]
    files: Annotated[tuple[SourceFile, ...], FieldRule(_check_order("path"))]
    caches: tuple[Line, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedBuild:
    """The packages with which the wheel of a source distribution is built."""

    name: Annotated[str, _NAME]  # of the source distribution among the Python packages
    wheels: Wheels


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Where a package with CUDA code comes from that `packages` names alone."""

    name: Annotated[str, _NAME]
    wheel: LineOrEmpty = (
        ""  # the requirement on a wheel of its project: by its address, or by its whole version
    )
    extension: LineOrEmpty = ""  # otherwise the name of the extension that compiles it
    needs: tuple[Line, ...] = ()  # packages that this build imports
    why: Line

    @property
    def requirements(self) -> tuple[str, ...]:
        return (self.wheel, *self.needs) if self.wheel else self.needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """One file of an image, named by its digest."""

    digest: Digest
    size: Whole  # bytes
    media_type: Annotated[str, _MEDIA_TYPE]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedBase:
    """A recipe's base image, as locked."""

    reference: Line  # as the recipe writes it
    registry: LineOrEmpty  # as the recipe names it; "" for the default of engines
    repository: Line  # below the registry: site/cuda
    manifest: Blob  # of the lock's platform, never an index
    config: Blob
    layers: tuple[Blob, ...]  # the lowest first
    facts: tuple[Fact, ...]
    packages: tuple[Line, ...]  # name=version, sorted

    @property
    def pinned(self) -> str:
        """Return the reference for an engine: `registry/repository@sha256:…`."""
        place = f"{self.registry}/{self.repository}" if self.registry else self.repository
        return f"{place}@sha256:{self.manifest.digest}"

    @property
    def inside(self) -> Base:
        return Base(facts=self.facts, packages=self.packages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The programs for x86-64 that build an environment for another processor, wherever it is built."""

    emulator: Annotated[Artifact, FieldRule(_check_kind("deb"))]  # qemu
    debs: Debs  # the suite's cross compiler, its own compiler and its Python, with all that these need
    toolkit: Parts  # the toolkit of the lock for x86-64

    @property
    def artifacts(self) -> Artifacts:
        return (self.emulator, *self.debs, *self.toolkit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Digests of the inputs of each part of the lock. A part with unchanged inputs is not resolved again."""

    debs: Digest
    toolkit: Digest
    wheels: Digest
    conda: Digest | Literal[""] = ""  # "" for a recipe without the key


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    recipe: Digest  # digest of the effective recipe, see Recipe.digest
    epoch: Seconds  # SOURCE_DATE_EPOCH of every build from this lock, seconds
    platform: Annotated[str, _PLATFORM]  # linux/amd64
    inputs: Inputs
    debs: Debs  # the os layer, sorted by name
    toolkit: Parts  # the cuda layer: .debs, wheels or archives, sorted by name
    # The python layer, sorted by name; an sdist is a package without a wheel for this Python.
    wheels: Packages
    extensions: tuple[Annotated[LockedExtension, FieldRule(_check_digests)], ...]
    # None if the recipe's base is a suite; otherwise `debs` are installed on top of the image.
    base: LockedBase | None = None
    # The standalone Python; None if the suite or the image has the recipe's.
    interpreter: Annotated[Artifact, FieldRule(_check_kind("archive"))] | None = None
    # Those of other tools that the recipe names.
    locks: Annotated[tuple[SourceFile, ...], FieldRule(_check_order("path"))] = ()
    # Of the sdists in `wheels` whose build needs packages.
    builds: Annotated[tuple[LockedBuild, ...], FieldRule(_check_order("name"))] = ()
    tools: Tools | None = None  # None for x86-64
    chosen: Annotated[tuple[Chosen, ...], FieldRule(_check_order("name"))] = ()
    conda: Condas = ()  # sorted by name
    warm: LockedWarm | None = None
    kernels: Annotated[tuple[LockedKernel, ...], FieldRule(_check_order("name"))] = ()

    @property
    def own_files(self) -> tuple[SourceFile, ...]:
        """Return the files of the recipe's folder that extensions and `warm` read."""
        warm = self.warm.files if self.warm else ()
        return (*(file for extension in self.extensions for file in extension.files), *warm)

    def settle(self, recipe: Recipe) -> Recipe:
        """Return the recipe with what this lock chose for it."""
        names = {choice.extension for choice in self.chosen} - {""}
        builds = tuple(
            Extension(name=extension.name, sdist=extension.sdist, env=extension.env)
            for extension in self.extensions
            if extension.name in names
        )
        chosen = tuple(text for choice in self.chosen for text in choice.requirements)
        return replace(recipe, chosen=chosen, implied=builds)

    @property
    def interpreters(self) -> Artifacts:
        """The standalone Python, or nothing."""
        return (self.interpreter,) if self.interpreter else ()


def needs_toolkit(recipe: Recipe, base: LockedBase | None) -> bool:
    """Return whether a recipe with CUDA needs a toolkit beside that of its base image."""
    return bool(recipe.cuda and not (base and base.inside.toolkit(recipe.cuda)))


def lock_artifacts(lock: Lock) -> Artifacts:
    """Return every file that a build from this lock fetches, or packs from a git repository."""
    archives = (extension.archive for extension in lock.extensions if extension.archive is not None)
    return (
        *lock.debs, *lock.interpreters, *lock.toolkit, *lock.wheels, *lock.conda,
        *dict.fromkeys(wheel for build in lock.builds for wheel in build.wheels), *archives,
        *(file for kernel in lock.kernels for file in kernel.files),
        *(lock.tools.artifacts if lock.tools else ()), *(blobs(lock.base) if lock.base else ()),
    )  # fmt: skip


def blobs(base: LockedBase) -> Artifacts:
    """Return every file of an image: manifest, config, and layers from the lowest up."""
    layers = ((layer, f"layer {at} of {len(base.layers)}") for at, layer in enumerate(base.layers, 1))
    return tuple(
        Artifact(
            kind="blob", name=base.reference, version=part, sha256=blob.digest, size=blob.size, source=REGISTRY,
            path=f"{'manifests' if blob is base.manifest else 'blobs'}/sha256:{blob.digest}",
        )
        for blob, part in ((base.manifest, "manifest"), (base.config, "config"), *layers)
    )  # fmt: skip


def recipe_inputs(recipe: Recipe) -> Inputs:
    """Return, for each part of a lock, the digest of the recipe's values that decide it (`PARTS`)."""
    values = json.loads(recipe.canonical())
    parts = {
        part: {key: values[key] for key in keys if key in values}
        for part, keys in PARTS.items()
        if part != "conda" or part in values
    }
    return Inputs(**{part: sha256_text(json.dumps(given, sort_keys=True)) for part, given in parts.items()})
