"""Prove what was built: image, SIF and plan hold the same files.

`compare` proves it, `pair` remembers the result. `alone` verifies a SIF by what it carries. `audit` finds faults in a
tree that both agree about. `diff` shows how two locks, images or SIFs differ. `report` writes the page with all of it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envbuilder.lock.model import Lock
    from envbuilder.lock.resolve.context import Task


def judge_locked(task: "Task", lock: "Lock") -> None:
    """Judge the wheels of a new lock. Raises IncompatibleError for those that cannot load."""
    from envbuilder.verify.wheels import judge_wheels  # noqa: PLC0415 - most locks are kept, and the audits take 0.1 s

    judge_wheels(task, lock)
