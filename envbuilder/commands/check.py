"""`check`: everything in a recipe that cannot work, before anything is downloaded."""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from envbuilder.builder.extensions.list import find_twins
from envbuilder.commands._console import open_runner
from envbuilder.commands.context import Name, Recipes, Session, command, open_store
from envbuilder.compat.check import examine_file, load_tables, need_sound
from envbuilder.compat.context import make_context
from envbuilder.compat.project_code import describe_layout
from envbuilder.compat.tables.torch import index_build
from envbuilder.core.answer import Answer, BareAnswer
from envbuilder.core.cache import Store
from envbuilder.core.errors import LockError
from envbuilder.core.findings import Finding, Severity
from envbuilder.lock.file import load_lock
from envbuilder.lock.fresh import load_fresh, stale_warning
from envbuilder.lock.known_base import known_base, lock_path
from envbuilder.lock.package_lists import MissedUpdates, check_packages, missed_finding, missed_updates
from envbuilder.plan.make import make_plan
from envbuilder.recipe.load import expand
from envbuilder.recipe.model import Recipe


class CheckedRecipe(Answer):
    """The repairs of a recipe with errors, the nearest first: the keys to change with their new values.

    `torch_index` is `cpu` or `cu118` if that part of PyTorch's own index alone has the build, "" for the package index.
    `security` is null if it is not known: without a lock, or without package lists in the cache to compare it with.
    `apt_checked` is false if the names under `apt` were not looked at: without those lists, or with errors in the recipe.
    `not_checked` has a line for each part of the recipe that was not looked at, with the reason.
    """

    name: str
    torch_index: str
    repairs: tuple[dict[str, JsonValue], ...]
    security: MissedUpdates | None
    apt_checked: bool
    not_checked: tuple[str, ...]


class CheckedVariants(BareAnswer[tuple[CheckedRecipe, ...]]):
    """The answer for a recipe that stands for several environments, one row for each."""


@command(
    "check",
    ("envbuilder check a100", "envbuilder check a100 --host node.json"),
    CheckedRecipe | CheckedVariants,
)
def check(
    session: Session,
    name: Name,
    *,
    host: Annotated[Path | None, typer.Option(help="facts of the target machine: `driver`, `gpus`")] = None,
    recipes: Recipes,
) -> None:
    """Report everything in the recipe that cannot work, before anything is downloaded."""
    store = open_store(session, writes=False)
    variants = expand(name, recipes)
    found = tuple(_check(session, one, host, recipes, store) for one in variants)
    session.data = found[0] if len(found) == 1 else CheckedVariants(found)


def _check(session: Session, name: str, host: Path | None, recipes: Path, store: Store) -> CheckedRecipe:
    """Check one environment, and add to the session what it found."""
    recipe, report = examine_file(name, recipes, host, base_of=functools.partial(known_base, store=store))
    torch = make_context(recipe, load_tables()).torch
    build = index_build(torch, recipe.cuda_minor)
    missed = missed_updates(recipe, store, open_runner(session, store), name)
    security = missed if isinstance(missed, MissedUpdates) else None
    unlisted = check_packages(recipe, store)
    unseen = tuple(_not_checked(recipe, missed, has_host=host is not None, has_names=unlisted is not None))
    severities = {finding.severity for finding in report.findings}
    repairs = [repair.data() for repair in report.repairs]
    checked = CheckedRecipe.model_validate(
        {
            "name": recipe.name,
            "torch_index": build,
            "repairs": repairs,
            "security": security,
            "apt_checked": unlisted is not None and Severity.ERROR not in severities,
            "not_checked": unseen,
        }
    )
    session.data, findings = checked, (*report.findings, *(unlisted or ()))
    need_sound(recipe, report)
    try:
        findings += _stale(recipe, name)
    except LockError as error:
        error.findings = (*findings, *error.findings)
        raise
    lacking = (missed_finding(recipe, security, name),) if security and security.updates else ()
    findings += (*lacking, *_twins(name, recipe, recipes, store))
    session.findings += findings
    lines = [] if findings else [f"{name}: no problems found"]
    own = build and recipe.pytorch
    lines += [f"torch {recipe.pytorch}+{build} comes from PyTorch's own index"] if own else []
    lines += describe_layout(recipe)
    lines += [f"not looked at: {'; '.join(unseen)}"] if unseen else []
    session.text = "\n".join([*session.text.splitlines(), *lines])
    return checked


def _stale(recipe: Recipe, name: str) -> tuple[Finding, ...]:
    """Return a warning if there is a lock, and it no longer fits its recipe. Raises LockError for one that cannot be used."""
    path = lock_path(recipe)
    above = ((recipe.parent.with_suffix(".lock"), str(recipe.parent)),) if recipe.parent else ()
    for file, typed in ((path, name), *above):
        if file.exists():  # one that cannot be used is an error
            load_lock(file, recipe=typed)
    try:
        if path.exists():
            load_fresh(recipe, name)
    except LockError as error:
        return (stale_warning(error, str(path)),)
    return ()


def _not_checked(
    recipe: Recipe, missed: MissedUpdates | str, *, has_host: bool, has_names: bool
) -> Iterator[str]:
    """Yield what the check passes over, each with the reason."""
    if isinstance(missed, str) and missed:
        yield f"security updates ({missed})"
    if not has_names:
        yield "the names under `apt` (`lock` brings the lists of the suite's packages)"
    if not lock_path(recipe).is_file():
        yield "whether the packages exist and fit each other (`lock` asks the package index)"
    if remote := [f"`{one.name}`" for one in recipe.extensions if one.is_remote]:
        yield f"the code of {', '.join(remote)} (it is not here)"
    if recipe.gpus and not has_host:
        yield "a machine's driver and GPUs (`--host` takes them)"


def _twins(name: str, recipe: Recipe, recipes: Path, store: Store) -> tuple[Finding, ...]:
    """Return warnings for extensions of one name. The calls of a capture are known after a build."""
    if len(recipe.extensions) > 1 and any(one.capture for one in recipe.extensions):
        with contextlib.suppress(LockError):
            return tuple(find_twins(make_plan(name, recipes, store)[1], store))
    return ()
