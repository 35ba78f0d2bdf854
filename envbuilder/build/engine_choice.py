"""Which engine makes the layers of a plan: the one that a person names, else the one that can."""

from dataclasses import dataclass, field

from envbuilder.build.buildkit.builder import Builder
from envbuilder.build.engine import Engine
from envbuilder.build.engine_names import EngineName
from envbuilder.core.cache import Store
from envbuilder.core.console import Console
from envbuilder.core.errors import UsageError
from envbuilder.core.limits import Limits
from envbuilder.core.process import Runner
from envbuilder.plan.model import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a person says of the engine; what they say of the builder goes to the docker engine as it is."""

    engine: EngineName | None = None
    builder: Builder = field(default_factory=Builder)

    def name_for(self, plan: Plan) -> EngineName:
        """The engine of this plan: for an image the docker engine, else assemble; raises UsageError for what does not fit it."""
        name = self.engine or (EngineName.DOCKER if plan.os.base else EngineName.ASSEMBLE)
        options = " and ".join(dict.fromkeys(f"`{option}`" for option, *_ in self.builder.given()))
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
        from envbuilder.build.assemble.engine import Assemble  # noqa: PLC0415 - one of both is enough

        return Assemble(store=store, runner=runner, console=console, limits=limits)
    from envbuilder.build.buildkit import Docker  # noqa: PLC0415 - as above

    return Docker(store=store, runner=runner, console=console, limits=limits, builder=choice.builder)
