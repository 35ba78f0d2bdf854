"""Everything that `check` reports of one environment: its pins, its lock, and what could not be looked at."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name
from pydantic import JsonValue

from envbuilder.compat.check import examine_file, load_tables, need_sound
from envbuilder.compat.context import make_context, parse_requirement
from envbuilder.compat.project_code import describe_layout
from envbuilder.compat.tables.cuda import late_packages, load_cuda_packages
from envbuilder.compat.tables.torch import index_build
from envbuilder.core.answer import Answer
from envbuilder.core.cache import Store
from envbuilder.core.errors import EnvbuilderError, LockError
from envbuilder.core.findings import Finding
from envbuilder.core.plain import pasted
from envbuilder.core.process import Runner
from envbuilder.lock.candidates import Verdicts
from envbuilder.lock.file import known_base, load_fresh, load_lock, lock_path, stale_warning
from envbuilder.lock.model import Lock
from envbuilder.lock.package_lists import MissedUpdates, check_packages, missed_finding, missed_updates
from envbuilder.recipe.model import Recipe
from envbuilder.recipe.warm import KINDS

JudgeCached = Callable[[Recipe, Lock], Verdicts]
_SHOWN: Final = 5  # packages that a line names


class CheckedRecipe(Answer):
    """The repairs of a recipe with errors, the nearest first: the keys to change with their new values.

    `torch_index` is `cpu` or `cu118` if that part of PyTorch's own index alone has the build, "" for the package index.
    `security` is null if it is not known: without a lock, or without package lists in the cache to compare it with.
    `apt_checked` is false if the names under `apt` were not looked at: without those lists, or with errors in the recipe.
    `at_start` has a line for each package that a job compiles, with when and where.
    `not_checked` has a line for each part of the recipe that was not looked at, with the reason.
    """

    name: str
    torch_index: str
    repairs: tuple[dict[str, JsonValue], ...]
    security: MissedUpdates | None
    apt_checked: bool
    at_start: tuple[str, ...]
    not_checked: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """An environment without errors: its warnings, and what else there is to say of it."""

    recipe: Recipe
    checked: CheckedRecipe
    findings: tuple[Finding, ...]

    def notes(self) -> list[str]:
        build, unseen = self.checked.torch_index, self.checked.not_checked
        return [
            *([f"torch {self.recipe.pytorch}+{build} comes from PyTorch's own index"] if build and self.recipe.pytorch else []),
            *describe_layout(self.recipe),
            *self.checked.at_start,
            *([f"not looked at: {'; '.join(unseen)}"] if unseen else []),
        ]  # fmt: skip


def examine_recipe(
    name: str, host: Path | None, recipes: Path, store: Store, runner: Runner, *, judge: JudgeCached
) -> Examined:
    """Examine one environment. An error carries the repairs as its data: IncompatibleError, RecipeError or LockError.

    `judge` gets a lock that fits its recipe.
    """
    recipe, report = examine_file(name, recipes, host, base_of=functools.partial(known_base, store=store))
    missed = missed_updates(recipe, store, runner, name)
    security = missed if isinstance(missed, MissedUpdates) else None
    unlisted = check_packages(recipe, store)
    unseen = tuple(_not_checked(recipe, missed, has_host=host is not None, has_names=unlisted is not None))
    torch_index = index_build(make_context(recipe, load_tables()).torch, recipe.cuda_minor)
    checked = CheckedRecipe.model_validate({
        "name": recipe.name, "torch_index": torch_index, "repairs": [repair.data() for repair in report.repairs],
        "security": security, "apt_checked": unlisted is not None and not report.has_errors, "not_checked": unseen,
        "at_start": tuple(_at_start(recipe)),
    })  # fmt: skip
    findings = (*report.findings, *(unlisted or ()))
    try:
        need_sound(recipe, report)
        lock, stale = _fresh_lock(recipe, name, findings)
        findings += stale
        if lock:
            verdicts = judge(recipe, lock)
            unseen += tuple(_not_judged(verdicts, name))
            checked = checked.model_copy(update={"not_checked": unseen})
            verdicts.need_fitting(lock, before=findings)
            findings += verdicts.findings
    except EnvbuilderError as error:
        error.data = checked
        raise
    lacking = (missed_finding(recipe, security, name),) if security and security.updates else ()
    return Examined(recipe=recipe, checked=checked, findings=(*findings, *lacking))


def _fresh_lock(
    recipe: Recipe, name: str, before: tuple[Finding, ...]
) -> tuple[Lock | None, tuple[Finding, ...]]:
    """Return the lock, or a warning if it no longer fits its recipe. Raises LockError for one that cannot be used."""
    path = lock_path(recipe)
    try:
        if path.exists():
            load_lock(path, recipe=name)
    except LockError as error:
        error.findings = (*before, *error.findings)
        raise
    try:
        return (load_fresh(recipe, name) if path.exists() else None), ()
    except LockError as error:
        return None, (stale_warning(error, str(path)),)


def _not_judged(verdicts: Verdicts, name: str) -> Iterator[str]:
    brings = f"`envbuilder build {pasted(name)}` fetches"
    for names, what, why in (
        (verdicts.absent, "what is compiled in", f"not in the cache; {brings} it"),
        (verdicts.in_part, "what of torch is needed by", f"torch is not in the cache; {brings} it"),
    ):
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            yield f"{what} {', '.join(f'`{each}`' for each in names[:_SHOWN])}{more} ({why})"


def _at_start(recipe: Recipe) -> Iterator[str]:
    """Yield a line for each package of the recipe that is compiled when a job starts."""
    requirements = filter(None, map(parse_requirement, recipe.packages))
    pins: dict[str, str] = {}
    for each in requirements:
        exact = (pin.version for pin in each.specifier if pin.operator == "==" and "*" not in pin.version)
        pins.setdefault(canonicalize_name(each.name), next(exact, ""))
    compiled = [" ".join((extension.sdist, *extension.capture)) for extension in recipe.extensions]
    compiled += ["triton"] if recipe.warm.run else []
    compiled += [
        kind for cache in recipe.warm.caches for kind in KINDS if (recipe.path.parent / cache / kind).is_dir()
    ]
    rows = load_cuda_packages().by_name
    # `lock` takes a wheel of these, or compiles them as the entry does.
    chosen = {name for name, row in rows.items() if recipe.pytorch and row.is_chosen and row.build}
    for row in late_packages(pins, compiled):
        if row.package not in chosen:
            advice = row.advice(pins[row.package])
        elif row.also:
            advice = replace(row, entry="").advice(pins[row.package])
        else:
            continue
        yield f"`{row.package}` is compiled {row.words}" + (
            f"; to have it before the job: {advice}" if advice else ""
        )


def _not_checked(
    recipe: Recipe, missed: MissedUpdates | str, *, has_host: bool, has_names: bool
) -> Iterator[str]:
    if isinstance(missed, str) and missed:
        yield f"security updates ({missed})"
    if not has_names:
        yield "the names under `apt` (`lock` brings the lists of the suite's packages)"
    if not lock_path(recipe).is_file():
        yield "whether the packages exist, fit each other and load beside torch (`lock` asks for them and judges them)"
    if remote := [f"`{extension.name}`" for extension in recipe.extensions if extension.is_remote]:
        yield f"the code of {', '.join(remote)} (it is not here)"
    if recipe.gpus and not has_host:
        yield "a machine's driver and GPUs (`--host` takes them)"
