"""The data of a rendered text: the plan, the programs that run in the container, and the extensions."""

from collections.abc import Mapping
from dataclasses import dataclass

from envbuilder.compat.tables.distribution import load_distributions
from envbuilder.core.processor import X86_64
from envbuilder.plan.model import Plan
from envbuilder.plan.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """The data of one rendered text."""

    plan: Plan
    summary: str
    programs: Mapping[str, str]  # name → text; they run inside the container
    uv: str  # the version of uv that installs the wheels
    pytorch_index: str
    labels: tuple[tuple[str, str], ...]  # of the image
    extensions: Program | None  # that makes the layer of the extensions
    wheel_env: tuple[tuple[str, str], ...]  # of the builds of source distributions; empty without one
    repositories: Mapping[str, str]  # source of packages → address of the apt repository

    @property
    def machine(self) -> str:
        """Return a line of the comment that says which machine builds it, unless that is x86-64."""
        own = self.plan.processor
        return (
            ""
            if own is X86_64
            else f"\n# It is for {own.title} and builds on such a machine, without an emulator."
        )

    @property
    def base(self) -> str:
        """Return the name of the distribution's official image."""
        suite = self.plan.os.suite
        names = (row.name for row in load_distributions().rows if row.suite == suite)
        return next(names).replace("/", ":")
