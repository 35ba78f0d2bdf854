"""`add`: packages in one more layer on top of a recipe that is there."""

from typing import Annotated

import typer

from envbuilder.builder.batch import BuiltRecipe
from envbuilder.commands._console import KEPT, build_context
from envbuilder.commands.context import Load, Name, Output, Recipes, Session, command
from envbuilder.core.answer import Reply
from envbuilder.lock.on_top import need_addable
from envbuilder.recipe.load import find_recipe


@command(
    "add",
    "envbuilder add a100 einops --as mine",
    "envbuilder add a100 einops 'hydra-core>=1.3' git+https://host/team/project@main --as mine",
)
def add(
    session: Session, name: Name,
    packages: Annotated[list[str], typer.Argument(metavar="PACKAGE",
                                                  help="requirements as pip knows them, or git+URL[@REVISION]")],
    *,
    new: Annotated[str, typer.Option("--as", metavar="NAME2", help="the name of the new recipe")],
    output: Output, loads: Load, recipes: Recipes,
) -> Reply[BuiltRecipe]:  # fmt: skip
    """Add packages to a locked recipe in one more layer: write the recipe NAME2, lock it and build it."""
    parent = find_recipe(name, recipes)
    need_addable(name, parent, packages, new)
    from envbuilder.builder.new_recipe import build_on_top  # noqa: PLC0415 - all of a build, which `--help` does without

    context = build_context(session, recipes, note=KEPT)
    path, result = build_on_top(parent, packages, new, context, output=output, load=loads)
    text = f"{result.text()}\n  recipe {path}  lock {path.with_suffix('.lock')}"
    return Reply(data=result.answer(), text=text, findings=result.findings)
