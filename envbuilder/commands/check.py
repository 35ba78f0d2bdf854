"""`check`: everything in a recipe that cannot work, before anything is downloaded."""

import contextlib
from pathlib import Path

from envbuilder.builder.extensions.compiled import find_twins
from envbuilder.commands._console import open_runner
from envbuilder.commands.context import Host, Name, Recipes, Session, command, open_store
from envbuilder.core.answer import BareAnswer, Reply
from envbuilder.core.cache import Store
from envbuilder.core.errors import LockError
from envbuilder.core.findings import Finding
from envbuilder.lock.examine import CheckedRecipe, examine_recipe
from envbuilder.plan.make import make_plan
from envbuilder.recipe.load import expand
from envbuilder.recipe.model import Recipe


class CheckedVariants(BareAnswer[tuple[CheckedRecipe, ...]]):
    """The answer for a recipe that stands for several environments, one row for each."""


@command("check", "envbuilder check a100", "envbuilder check a100 --host node.json")
def check(
    session: Session, name: Name, *, host: Host, recipes: Recipes
) -> Reply[CheckedRecipe | CheckedVariants]:
    """Report everything in the recipe that cannot work, before anything is downloaded."""
    store = open_store(session, writes=False)
    checked: list[CheckedRecipe] = []
    findings: list[Finding] = []
    lines: list[str] = []
    for variant in expand(name, recipes):
        examined = examine_recipe(variant, host, recipes, store, open_runner(session, store))
        warnings = (*examined.findings, *_twins(variant, examined.recipe, recipes, store))
        lines += [*([] if warnings else [f"{variant}: no problems found"]), *examined.notes()]
        findings += warnings
        checked.append(examined.checked)
    return Reply(
        data=checked[0] if len(checked) == 1 else CheckedVariants(tuple(checked)),
        text="\n".join(lines), findings=tuple(findings),
    )  # fmt: skip


def _twins(name: str, recipe: Recipe, recipes: Path, store: Store) -> tuple[Finding, ...]:
    """Return warnings for extensions of one name. The calls of a capture are known after a build."""
    if len(recipe.extensions) > 1 and any(extension.capture for extension in recipe.extensions):
        with contextlib.suppress(LockError):
            return tuple(find_twins(make_plan(name, recipes, store)[1], store))
    return ()
