"""The resolvers' input: the user's options, the tables' rows, and access to store, programs and network."""

import functools
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from envbuilder.compat.image_facts import Base
from envbuilder.compat.tables.distribution import Distribution, Standalone
from envbuilder.compat.tables.torch import Torch
from envbuilder.core.cache import Store
from envbuilder.core.console import Console
from envbuilder.core.process import Runner
from envbuilder.core.processor import X86_64, Processor
from envbuilder.lock.model import Artifacts, Lock, LockedBase
from envbuilder.recipe.model import Recipe
from envbuilder.runners.toolbox import make_toolbox
from envbuilder.sources.fetch import PATIENCE, Fetcher
from envbuilder.sources.http import Progress, Waiting, wait_silently
from envbuilder.sources.names import Sources, Wanted, probe_sources

if TYPE_CHECKING:
    from envbuilder.registry.client import Client

# Shows what is done, and for a download of how many bytes.
Transfer = Callable[[str, int | None], AbstractContextManager[Progress]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions:
    """The options of `lock`: what may be upgraded, and today's date."""

    today: date
    upgrade: bool = False  # resolve everything anew, whatever the old lock says
    upgrade_only: tuple[str, ...] = ()  # names of packages that may move
    security_only: bool = False  # packages that have a security update may move
    before: date | None = None  # as of 00:00 UTC of this day

    @property
    def is_anew(self) -> bool:
        """Whether every Python package is chosen anew."""
        return self.upgrade or (self.before is not None and not self.upgrade_only)

    @property
    def moving(self) -> set[str]:
        """The Python packages that may move."""
        return set(map(str, map(canonicalize_name, self.upgrade_only)))

    def to_keep(self, packages: Artifacts) -> Artifacts:
        """Return the packages whose versions stay where they fit."""
        return (
            () if self.is_anew else tuple(package for package in packages if package.name not in self.moving)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The tables' rows for one recipe, and its base image."""

    distribution: Distribution  # for a base image, the equivalent distribution
    torch: Torch | None  # None for a release newer than the tables
    base: LockedBase | None = None
    standalone: Standalone | None = None  # None if the suite or the image has the recipe's Python
    processor: Processor = X86_64  # that the lock is for; it need not be this machine's

    @property
    def inside(self) -> Base | None:
        return self.base.inside if self.base else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveContext:
    store: Store
    runner: Runner
    sources: Callable[[], Sources]  # asked only when something must be resolved
    client: "Callable[[], Client]"  # of registries; asked only for a base image
    fetcher: Fetcher
    transfer: Transfer
    waiting: Waiting = wait_silently
    patience: float = PATIENCE  # seconds for one call of apt or uv
    # The root whose apt and keys are used; by default this machine.
    toolbox: Callable[[], Path] = lambda: Path("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One recipe to lock, with all that decides its lock but an old one."""

    recipe: Recipe
    target: Target
    options: LockOptions
    context: ResolveContext


Judge = Callable[[Task, Lock], None]  # raises IncompatibleError for a lock whose wheels do not fit


def open_context(
    store: Store, runner: Runner, environment: Mapping[str, str], console: Console, *, offline: bool
) -> ResolveContext:
    """Make the context. Hosts and credentials are looked up when the first request needs them."""
    sources = functools.cache(lambda: probe_sources(environment, runner))

    @functools.cache
    def registries() -> "tuple[Client, Callable[[Wanted, Path, Progress, threading.Event], None]]":
        from envbuilder.registry import client, download  # noqa: PLC0415 - requests takes 0.15 s, for images alone

        opened = client.Client(environment, runner, console.waiting)
        return opened, functools.partial(download.fetch_part, opened)

    def fetch_blob(artifact: Wanted, partial: Path, progress: Progress, stop: threading.Event) -> None:
        registries()[1](artifact, partial, progress, stop)

    fetcher = Fetcher(store, sources, offline=offline, registry=fetch_blob, waiting=console.waiting)
    return ResolveContext(
        store=store, runner=runner, sources=sources, client=lambda: registries()[0], fetcher=fetcher, transfer=console.step,
        waiting=console.waiting, toolbox=functools.cache(lambda: make_toolbox(store, fetcher, console.step)),
    )  # fmt: skip
