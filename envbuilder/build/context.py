"""What every command works with: the store, programs, the terminal, and the settings of this machine."""

import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from envbuilder.core.cache import Store
from envbuilder.core.console import Console
from envbuilder.core.fetch import Fetcher
from envbuilder.core.fetch.request import Wanted
from envbuilder.core.http.transfer import Progress
from envbuilder.core.limits import Limits
from envbuilder.core.process import Runner
from envbuilder.core.sources import probe_sources
from envbuilder.lock.resolve import ResolveContext
from envbuilder.registry.client import open_client
from envbuilder.registry.download import fetch_part


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """What every command works with."""

    store: Store
    runner: Runner
    console: Console
    environment: Mapping[str, str]
    recipes: Path
    limits: Limits

    def share(self, owner: str, parts: int) -> "BuildContext":
        """Return the context of one of `parts` concurrent builds: its own output and programs, and its share of the machine."""
        limits = replace(
            self.limits, threads=max(1, self.limits.threads // parts), memory=self.limits.memory // parts
        )
        return replace(
            self, limits=limits, console=self.console.named(owner), runner=self.runner.named(owner)
        )

    def means(self, *, offline: bool) -> ResolveContext:
        """Return what resolving and fetching need. Hosts and credentials are looked up when the first request needs them."""
        sources = functools.cache(lambda: probe_sources(self.environment, self.runner))
        client = functools.cache(lambda: open_client(self.environment, self.runner))

        def pull(artefact: Wanted, partial: Path, *, progress: Progress, stop: threading.Event) -> None:
            fetch_part(client(), artefact, partial, progress=progress, stop=stop)

        fetcher = Fetcher(self.store, sources, offline=offline, registry=pull)
        return ResolveContext(
            store=self.store, runner=self.runner, sources=sources, client=client, fetcher=fetcher
        )
