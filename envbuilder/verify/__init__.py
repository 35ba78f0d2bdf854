"""Prove what was built: image, SIF and plan hold the same files.

`compare` proves it, `pair` remembers the result. `alone` verifies a SIF by what it carries. `audit` finds faults in a
tree that both agree about. `diff` shows how two locks, images or SIFs differ. `report` writes the page with all of it.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from envbuilder.core.cache import Store
from envbuilder.core.console import Console
from envbuilder.core.process import Runner
from envbuilder.lock.candidates import Verdicts, find_candidates
from envbuilder.lock.model import Lock
from envbuilder.recipe.model import Recipe

if TYPE_CHECKING:
    from envbuilder.lock.resolve.context import Task


def judge_locked(task: "Task", lock: Lock) -> None:
    """Judge the wheels of a new lock. Raises IncompatibleError for those that cannot load."""
    from envbuilder.verify.wheels import judge_wheels  # noqa: PLC0415 - most locks are kept, and the audits take 0.1 s

    judge_wheels(task, lock)


def examine_locked(recipe: Recipe, lock: Lock, *, store: Store, runner: Runner, console: Console) -> Verdicts:
    """Judge the wheels and kernels of a lock that are in the cache. Nothing is fetched."""
    candidates = tuple(find_candidates(recipe, lock, store))
    kernels = (store.artifact(file.sha256) for kernel in lock.kernels for file in kernel.files)
    if not (any(candidate.is_here for candidate in candidates) or any(path.is_file() for path in kernels)):
        names = [candidate.wheel.name for candidate in candidates]
        return Verdicts(absent=(*(kernel.name for kernel in lock.kernels), *names))
    from envbuilder.lock.resolve import make_target  # noqa: PLC0415 - as above
    from envbuilder.lock.resolve.context import LockOptions, Task, open_context  # noqa: PLC0415
    from envbuilder.verify.wheels import examine_wheels  # noqa: PLC0415

    context = open_context(store, runner, {}, console, offline=True)
    options = LockOptions(today=datetime.now(UTC).date())
    task = Task(recipe=recipe, target=make_target(recipe, lock.base), options=options, context=context)
    return examine_wheels(task, lock)
