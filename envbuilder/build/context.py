"""What every verb works with."""

import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.core.cache import Store
from envbuilder.core.console import Console
from envbuilder.core.fetch import Fetcher
from envbuilder.core.fetch.request import Wanted
from envbuilder.core.http.transfer import Progress
from envbuilder.core.limits import Limits
from envbuilder.core.process import Runner
from envbuilder.core.sources import probe_sources

if TYPE_CHECKING:
    from envbuilder.lock.resolve import Means
    from envbuilder.registry.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What every verb works with: the store, the runner, the person at the terminal and this machine's settings."""

    store: Store
    runner: Runner
    console: Console
    environment: Mapping[str, str]
    recipes: Path
    limits: Limits

    def share(self, owner: str, parts: int) -> "Workshop":
        """The same for one of `parts` builds at a time: lines and programs of its own, and its part of the machine."""
        limits = replace(
            self.limits, threads=max(1, self.limits.threads // parts), memory=self.limits.memory // parts
        )
        return replace(
            self, limits=limits, console=self.console.named(owner), runner=self.runner.named(owner)
        )

    def means(self, *, offline: bool) -> "Means":
        """The hands to reach the world; where artefacts come from is looked up when the first one is needed."""
        from envbuilder.lock.resolve import Means  # noqa: PLC0415 - a build with nothing to do must say so at once

        sources = functools.cache(lambda: probe_sources(self.environment, self.runner))

        @functools.cache
        def client() -> "Client":
            from envbuilder.registry.client import open_client  # noqa: PLC0415 - few recipes stand on an image

            return open_client(self.environment, self.runner)

        def pull(artefact: Wanted, partial: Path, *, progress: Progress, stop: threading.Event) -> None:
            from envbuilder.registry.download import fetch_part  # noqa: PLC0415 - as above

            fetch_part(client(), artefact, partial, progress=progress, stop=stop)

        fetcher = Fetcher(self.store, sources, offline=offline, registry=pull)
        return Means(store=self.store, runner=self.runner, sources=sources, client=client, fetcher=fetcher)
