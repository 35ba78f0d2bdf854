"""The lock: a recipe with every choice made, each artefact named by its sha256.

A build reads nothing that the lock does not name. Artefacts are named by a source and a path relative to it, never by
a host, so that a mirror, a local folder or a vendored copy serves as well.
"""

from dataclasses import dataclass

from envbuilder.store import Sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """One file to fetch. `source` is `debian` (path below a mirror), `pypi` (path `project/filename` in a package
    index) or `pytorch` (path `cu126/project/filename` below PyTorch's own indexes)."""

    kind: str  # deb | wheel
    name: str
    version: str
    sha256: Sha256
    size: int  # bytes
    source: str
    path: str

    @property
    def filename(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file of the recipe's own, by its path relative to the recipe's folder."""

    path: str
    sha256: Sha256
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedExtension:
    name: str
    sources: tuple[str, ...]  # what is compiled, in the recipe's order
    include: tuple[str, ...]
    cflags: tuple[str, ...]
    cuda_cflags: tuple[str, ...]
    files: tuple[SourceFile, ...]  # every file compiled or included from the recipe's folder, sorted by path


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Digests of what each part of the lock was resolved from: a part whose inputs stay is not resolved again."""

    debs: Sha256
    toolkit: Sha256
    wheels: Sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    recipe: Sha256  # digest of the effective recipe, see Recipe.digest
    epoch: int  # SOURCE_DATE_EPOCH of every build from this lock, seconds
    platform: str  # linux/amd64
    inputs: Inputs
    debs: tuple[Artefact, ...]  # the os layer, sorted by name
    toolkit: tuple[Artefact, ...]  # the cuda layer: .debs and wheels, sorted by name
    wheels: tuple[Artefact, ...]  # the python layer, sorted by name
    extensions: tuple[LockedExtension, ...]
