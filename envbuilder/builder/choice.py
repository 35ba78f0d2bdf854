"""The choice of the engine, of BuildKit's builder, and of loading the image: what a user may name for a build."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from envbuilder.core.errors import UsageError
from envbuilder.core.processor import X86_64

if TYPE_CHECKING:
    from envbuilder.plan.model import Plan


class EngineName(StrEnum):
    """The engines, as `--engine` spells them."""

    ASSEMBLE = "assemble"
    DOCKER = "docker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """The BuildKit that makes layers, and its caches. It never decides the bytes of a layer."""

    name: str = ""  # of buildx; "" for its current builder
    cache_from: tuple[str, ...] = ()
    cache_to: tuple[str, ...] = ()
    no_cache: bool = False

    def given(self) -> tuple[tuple[str, ...], ...]:
        """Return the given options with their values, as `docker buildx build` and `envbuilder build` spell them."""
        return (
            *((("--builder", self.name),) if self.name else ()),
            *(("--cache-from", one) for one in self.cache_from),
            *(("--cache-to", one) for one in self.cache_to),
            *((("--no-cache",),) if self.no_cache else ()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """The engine and the builder that the user named, and whether the image goes into a Docker engine that is running."""

    engine: EngineName | None = None
    load: bool = True
    builder: Builder = field(default_factory=Builder)

    def name_for(self, plan: "Plan") -> EngineName:
        """Choose the engine for a plan: the one the user named, otherwise `assemble`.

        Raises UsageError for builder options that the engine does not have.
        """
        name = self.engine or EngineName.ASSEMBLE
        options = " and ".join(dict.fromkeys(f"`{option}`" for option, *_ in self.builder.given()))
        if options and name is not EngineName.DOCKER:
            raise UsageError(
                f"{options}: `{plan.name}` would be built by the engine `{name}`, which has no builder",
                hint="add `--engine docker`",
            )
        if plan.processor is not X86_64 and name is EngineName.DOCKER:
            raise UsageError(
                f"`{plan.name}` is for {plan.platform}, which the engine `{name}` does not build",
                hint=f"`--engine {EngineName.ASSEMBLE}` does",
            )
        return name
