"""The context of a command: the store, programs, the terminal, the settings of this machine, and what a user may name for a build."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from envbuilder.artifacts.outputs import Outputs
from envbuilder.core.cache import Store, sha256_text
from envbuilder.core.console import Console
from envbuilder.core.errors import UsageError
from envbuilder.core.process import Runner
from envbuilder.core.system import Limits

LOCK: Final = "build-"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """The store, the programs and the settings of a command."""

    store: Store
    runner: Runner
    console: Console
    environment: Mapping[str, str]
    recipes: Path
    limits: Limits
    when_interrupted: list[Callable[[], None]] = field(default_factory=list)  # called before the process ends

    def share(self, owner: str, parts: int) -> "BuildContext":
        """Return the context of one of `parts` parallel builds: with its own output, programs and share of the machine."""
        limits = replace(
            self.limits, threads=max(1, self.limits.threads // parts), memory=self.limits.memory // parts
        )
        return replace(
            self, limits=limits, console=self.console.named(owner), runner=self.runner.named(owner)
        )


@contextlib.contextmanager
def build_lock(outputs: Outputs, context: BuildContext) -> Iterator[None]:
    """Let one process at a time write these artifacts. A second build waits, and then has nothing to do."""

    def report() -> None:
        context.console.say(f"another build of `{outputs.name}` is running; waiting for it")

    with context.store.lock(f"{LOCK}{build_identity(outputs)}", waiting=report):
        yield


def build_identity(outputs: Outputs) -> str:
    """Return what tells the builds of one machine apart: the place of their artifacts."""
    return sha256_text(str(outputs.sif))[:16]


@contextlib.contextmanager
def worker_threads(count: int, runner: Runner) -> Iterator[Executor]:
    """Yield a pool whose work ends with the block. A failure first stops the running programs."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="build")
    try:
        yield pool
    except BaseException as error:
        # After Ctrl-C, wait for nothing. After a failure, wait until running work has cleaned up.
        interrupted = not isinstance(error, Exception)
        runner.stop(for_good=interrupted)
        pool.shutdown(wait=not interrupted, cancel_futures=True)
        raise
    pool.shutdown()


class RunnerName(StrEnum):
    """The runners of steps, as `--runner` spells them."""

    SANDBOX = "sandbox"
    BUILDKIT = "buildkit"


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
            *(("--cache-from", cache) for cache in self.cache_from),
            *(("--cache-to", cache) for cache in self.cache_to),
            *((("--no-cache",),) if self.no_cache else ()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerChoice:
    """The runner and the builder that the user named, and whether the image goes into a Docker engine that is running."""

    runner: RunnerName | None = None
    load: bool = True
    builder: Builder = field(default_factory=Builder)

    def runner_for(self, recipe: str) -> RunnerName:
        """Return the runner that the user named, otherwise `sandbox`; raises UsageError for builder options that it does not have."""
        name = self.runner or RunnerName.SANDBOX
        options = " and ".join(dict.fromkeys(f"`{option}`" for option, *_ in self.builder.given()))
        if options and name is not RunnerName.BUILDKIT:
            raise UsageError(
                f"{options}: `{recipe}` would be built by the runner `{name}`, which has no builder",
                hint="add `--runner buildkit`",
            )
        return name
