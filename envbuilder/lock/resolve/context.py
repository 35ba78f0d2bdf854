"""Input of the resolvers: the user's options, the rows of the tables, and access to store, programs and network."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

from envbuilder.compat.tables.distribution import Distribution
from envbuilder.compat.tables.toolkit import Toolkit
from envbuilder.compat.tables.torch import Torch
from envbuilder.core.cache import Store
from envbuilder.core.fetch import Fetcher
from envbuilder.core.process import Runner
from envbuilder.core.sources import Sources
from envbuilder.lock.base_image.locked import LockedBase
from envbuilder.registry.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions:
    """The options of `lock`: what may be upgraded, and today's date."""

    today: date
    upgrade: bool = False  # resolve everything anew, whatever the old lock says
    upgrade_only: tuple[str, ...] = ()  # names of packages that may move
    before: date | None = None  # as of 00:00 UTC of this day


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The tables' rows for one recipe, and its base image."""

    distribution: Distribution  # for a base image, the distribution that it is equal to
    torch: Torch | None  # None for a release newer than the tables
    toolkit: Toolkit | None  # None without CUDA, or if the base image has it
    base: LockedBase | None = None
    status: Callable[[], str] = (
        str  # dpkg's note of what the image holds; asked only when packages are resolved
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveContext:
    store: Store
    runner: Runner
    sources: Callable[[], Sources]  # asked only when something must be resolved
    client: Callable[[], Client]  # of registries; asked only for a base image
    fetcher: Fetcher
