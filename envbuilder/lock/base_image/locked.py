"""The base image in a lock: its name, every blob by digest, and the facts found inside."""

from dataclasses import dataclass
from typing import Annotated, Final

from envbuilder.compat.image_facts import Base, Fact
from envbuilder.core.cache import Sha256
from envbuilder.core.models import STRICT, Line, LineOrEmpty, Shape, Whole

_SHA256: Final = Shape(pattern=r"[0-9a-f]{64}", expected="64 hexadecimal digits")
_MEDIA_TYPE: Final = Shape(pattern=r"[A-Za-z0-9.+/_-]*", expected="a media type")
Digest = Annotated[Sha256, _SHA256]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """One file of an image, named by its digest."""

    __pydantic_config__ = STRICT
    digest: Digest
    size: Whole  # bytes
    media_type: Annotated[str, _MEDIA_TYPE]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedBase:
    """The image that is a recipe's base, as it was when it was locked."""

    __pydantic_config__ = STRICT
    reference: Line  # as the recipe writes it
    registry: LineOrEmpty  # the source: as the recipe names it; "" for the one that engines take by default
    repository: Line  # the path there: site/cuda
    manifest: Blob  # of the lock's platform, never an index
    config: Blob
    layers: tuple[Blob, ...]  # the lowest first
    facts: tuple[Fact, ...]
    packages: tuple[Line, ...]  # name=version, sorted

    @property
    def pinned(self) -> str:
        """The reference for an engine: the repository at exactly this manifest."""
        place = f"{self.registry}/{self.repository}" if self.registry else self.repository
        return f"{place}@sha256:{self.manifest.digest}"

    @property
    def inside(self) -> Base:
        return Base(facts=self.facts, packages=self.packages)
