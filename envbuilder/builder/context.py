"""The context of a command: the store, programs, the terminal, and the settings of this machine."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from envbuilder.artifacts.outputs import Outputs
from envbuilder.core.cache import Store, sha256_text
from envbuilder.core.console import Console
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
