"""`check`: everything in a recipe that cannot work, before anything is downloaded."""

import functools
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from envbuilder.commands.context import Name, Recipes, Session, command, open_store
from envbuilder.compat.check import examine_file, need_sound
from envbuilder.core.answer import Answer
from envbuilder.lock.known_base import known_base


class CheckedRecipe(Answer):
    """The repairs of a recipe with errors, the nearest first: the keys to change with their new values."""

    name: str
    repairs: tuple[dict[str, JsonValue], ...]


@command("check", ("envbuilder check a100", "envbuilder check a100 --host node.json"), CheckedRecipe)
def check(
    session: Session,
    name: Name,
    *,
    host: Annotated[Path | None, typer.Option(help="facts of the target machine: `driver`, `gpus`")] = None,
    recipes: Recipes,
) -> None:
    """Report everything in the recipe that cannot work, before anything is downloaded."""
    base_of = functools.partial(known_base, store=open_store(session, writes=False))
    recipe, report = examine_file(name, recipes, host, base_of=base_of)
    session.data = CheckedRecipe.model_validate(
        {"name": recipe.name, "repairs": [repair.data() for repair in report.repairs]}
    )
    need_sound(recipe, report)
    session.findings = report.findings
    session.text = f"{name}: no problems found" if not report.findings else ""
