"""`check`: everything in a recipe that cannot work, before anything is downloaded."""

import functools
from typing import TYPE_CHECKING

from envbuilder.builder.extensions.compiled import twins_of
from envbuilder.commands._console import open_console, open_runner
from envbuilder.commands.context import Host, Name, Recipes, Session, command, open_store
from envbuilder.core.answer import BareAnswer, Reply
from envbuilder.plan.examine import CheckedRecipe, examine_recipe
from envbuilder.recipe.load import expand
from envbuilder.verify import examine_locked

if TYPE_CHECKING:
    from envbuilder.core.findings import Finding


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
    runner = open_runner(session, store)
    console = open_console(session, runner)
    judge = functools.partial(examine_locked, store=store, runner=runner, console=console)
    for variant in expand(name, recipes):
        examined = examine_recipe(variant, host, recipes, store, runner, judge=judge)
        warnings = (*examined.findings, *twins_of(variant, examined.recipe, recipes, store))
        lines += [*([] if warnings else [f"{variant}: no problems found"]), *examined.notes()]
        findings += warnings
        checked.append(examined.checked)
    return Reply(
        data=checked[0] if len(checked) == 1 else CheckedVariants(tuple(checked)),
        text="\n".join(lines), findings=tuple(findings),
    )  # fmt: skip
