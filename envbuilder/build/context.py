"""The context of a command: the store, programs, the terminal, and the settings of this machine."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from envbuilder.core.cache import Store
from envbuilder.core.console import Console
from envbuilder.core.limits import Limits
from envbuilder.core.process import Runner
from envbuilder.lock.resolve.context import ResolveContext, open_context


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """The store, the programs and the settings of a command."""

    store: Store
    runner: Runner
    console: Console
    environment: Mapping[str, str]
    recipes: Path
    limits: Limits

    def share(self, owner: str, parts: int) -> "BuildContext":
        """Return the context of one of `parts` parallel builds: with its own output, programs and share of the machine."""
        limits = replace(
            self.limits, threads=max(1, self.limits.threads // parts), memory=self.limits.memory // parts
        )
        return replace(
            self, limits=limits, console=self.console.named(owner), runner=self.runner.named(owner)
        )

    def resolve_context(self, *, offline: bool) -> ResolveContext:
        """Return the context of resolving and fetching."""
        return open_context(self.store, self.runner, self.environment, self.console, offline=offline)
