"""Recipe → lock → plan: check the recipe, read its lock, and put the steps in order."""

import functools
from collections.abc import Iterator
from pathlib import Path

from envbuilder import runtime
from envbuilder.compat.check import examine_file, need_sound
from envbuilder.compat.tables.gpu import capabilities, load_gpus
from envbuilder.compat.tables.toolkit import Toolkit, load_toolkits, toolkit_of
from envbuilder.core.cache import Store
from envbuilder.core.errors import LockError
from envbuilder.core.findings import Finding
from envbuilder.core.plain import pasted
from envbuilder.core.processor import X86_64, processor_of
from envbuilder.lock.file import known_base, load_fresh, lock_text
from envbuilder.lock.model import Lock, needs_toolkit
from envbuilder.plan import model, shell
from envbuilder.plan.model import LIB, OWN, SITE_PACKAGES, Plan
from envbuilder.plan.site import need_files, site_files
from envbuilder.recipe.model import Recipe


def load_locked(
    name: str, recipes: Path, store: Store, host: Path | None = None
) -> tuple[Recipe, Lock, tuple[Finding, ...]]:
    """Check the recipe and read its lock. Returns the warnings of `check` as well.

    Raises IncompatibleError for a recipe that cannot work, LockError for a lock that is missing or no longer fits the recipe.
    """
    recipe, report = examine_file(name, recipes, host, base_of=functools.partial(known_base, store=store))
    need_sound(recipe, report)
    return recipe, load_fresh(recipe, name), report.findings


def make_plan(
    name: str, recipes: Path, store: Store, host: Path | None = None
) -> tuple[Recipe, Plan, tuple[Finding, ...]]:
    """Make the plan of a locked recipe. `host` is a profile of the site. Raises what `load_locked` raises."""
    recipe, lock, findings = load_locked(name, recipes, store, host)
    return recipe, plan_of(recipe, lock, host), findings


def plan_of(recipe: Recipe, lock: Lock, host: Path | None = None) -> Plan:
    """Put the steps of a lock that fits the recipe in order. Raises LockError for a toolkit that is not known."""
    return model.make(
        recipe,
        lock,
        toolkit=toolkit_for(recipe, lock),
        architectures=capabilities(recipe.gpus, load_gpus().rows),
        lock_text=lock_text(lock),
        start=(
            *_below(SITE_PACKAGES.format(python=recipe.python), runtime.files("start")),
            *_below(LIB, (*runtime.files("lib"), *runtime.modules("node/nccl"))),
        ),
        more=(
            *_below(OWN, runtime.files("entry")),
            (shell.SCRIPT, shell.script()),
            *site_files(recipe, host),
            *need_files(recipe),
        ),
    )


def need_buildable(plan: Plan) -> None:
    """Raise LockError for a plan for another processor whose lock was made before locks named the tools for that."""
    if plan.processor is not X86_64 and plan.tools is None:
        raise LockError(
            f"the lock of `{plan.name}` for {plan.platform} does not name the tools that build it",
            hint=f"`envbuilder lock {plan.name}` adds them",
        )


def toolkit_for(recipe: Recipe, lock: Lock) -> Toolkit | None:
    """Return the toolkit of the lock's packages, None if the recipe needs none. Raises LockError if they make none."""
    if not needs_toolkit(recipe, lock.base):
        return None
    found = toolkit_of(recipe.cuda_minor, lock.toolkit, load_toolkits().rows)
    if found is None:
        raise LockError(
            f"the packages in `toolkit` of the lock make no CUDA {recipe.cuda} that this envbuilder knows",
            hint=f"`envbuilder lock {pasted(recipe.path)}` chooses them anew",
        )
    return found[1].on(processor_of(lock.platform) or X86_64)


def _below(folder: str, files: tuple[tuple[str, str], ...]) -> Iterator[tuple[str, str]]:
    return ((f"{folder[1:]}/{path}", text) for path, text in files)
