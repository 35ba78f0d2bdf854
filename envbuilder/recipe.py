"""The recipe: what a person wishes, read from YAML with every mistake reported at once."""

from dataclasses import dataclass
from pathlib import Path

from envbuilder.store import Sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A torch `load()`-style extension: paths are relative to the recipe's folder, POSIX spelling."""

    name: str
    sources: tuple[str, ...]
    include: tuple[str, ...] = ()
    cflags: tuple[str, ...] = ()
    cuda_cflags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The effective recipe, after `extends`; empty text and empty tuples stand for what was not asked."""

    name: str
    path: Path  # of the recipe file; extension sources are relative to its folder
    summary: str
    gpus: tuple[str, ...]
    base: str  # distribution/suite, e.g. debian/bookworm
    python: str
    cuda: str  # "" without CUDA
    gcc: str
    libxcrypt: str
    pytorch: str
    packages: tuple[str, ...]  # PEP 508, requirement files folded in
    apt: tuple[str, ...]
    extensions: tuple[Extension, ...]
    env: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]  # commands run in both artefacts after a build
    places: tuple[tuple[str, str], ...]  # `$.cuda` → `recipes/a100.yaml:4:7`

    @property
    def digest(self) -> Sha256:
        """Of everything that decides a build: not the summary, the tests or where things were written."""
        raise NotImplementedError
