"""Which engine makes the layers of a plan: the one that a person names, else the one that can."""

from dataclasses import dataclass

from envbuilder.capacity import Limits
from envbuilder.command import Runner
from envbuilder.console import Console
from envbuilder.engines.engine import Engine
from envbuilder.engines.names import EngineName
from envbuilder.errors import UsageError
from envbuilder.plan import OsStep, Plan
from envbuilder.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a person says of the engine; where BuildKit runs and what it may reuse goes to the docker engine as it is."""

    engine: EngineName | None = None
    builder: str = ""
    cache_from: tuple[str, ...] = ()
    cache_to: tuple[str, ...] = ()
    no_cache: bool = False

    def name_for(self, plan: Plan) -> EngineName:
        """The engine of this plan: for an image the docker engine, else assemble; raises UsageError for what does not fit it."""
        image = any(isinstance(step, OsStep) and step.base for step in plan.steps)
        name = self.engine or (EngineName.DOCKER if image else EngineName.ASSEMBLE)
        given = {
            "--builder": self.builder,
            "--cache-from": self.cache_from,
            "--cache-to": self.cache_to,
            "--no-cache": self.no_cache,
        }
        options = " and ".join(f"`{option}`" for option, value in given.items() if value)
        if options and name is not EngineName.DOCKER:
            raise UsageError(
                f"{options}: the engine `{name}` has no builder, and `{plan.name}` would be built by it",
                hint="add `--engine docker`",
            )
        return name


def open_engine(
    plan: Plan, choice: Choice, *, store: Store, runner: Runner, console: Console, limits: Limits
) -> Engine:
    """The engine that makes this plan's layers; raises UsageError for a choice that does not fit."""
    if choice.name_for(plan) is EngineName.ASSEMBLE:
        from envbuilder.engines.assemble import Assemble  # noqa: PLC0415 - one of both is enough

        return Assemble(store=store, runner=runner, console=console, limits=limits)
    from envbuilder.engines.buildkit import Docker, Settings  # noqa: PLC0415 - as above

    settings = Settings(
        builder=choice.builder,
        cache_from=choice.cache_from,
        cache_to=choice.cache_to,
        no_cache=choice.no_cache,
    )
    return Docker(store=store, runner=runner, console=console, limits=limits, settings=settings)
