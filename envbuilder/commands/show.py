"""`show`: the effective recipe, where each value came from, and what follows from the pins."""

import json
from typing import Final

from pydantic import JsonValue

from envbuilder.commands.context import (
    RECIPES,
    Answer,
    Json,
    Name,
    NoColor,
    Recipes,
    Verbose,
    examples,
    new_app,
    open_session,
    open_store,
)
from envbuilder.compat.check import load_tables
from envbuilder.compat.explain import Fact, brief, facts
from envbuilder.compat.tables.toolkit import load_toolkits
from envbuilder.core.console import columns
from envbuilder.lock.known_base import known_base
from envbuilder.recipe.load import find_recipe, load

EXAMPLES: Final = ("envbuilder show a100",)
app = new_app()


class ShownRecipe(Answer):
    """The effective recipe. `places` says for each key's path in which file and line its value stands."""

    name: str
    recipe: dict[str, JsonValue]
    places: dict[str, str]
    facts: tuple[Fact, ...]


ANSWER: Final = ShownRecipe


@app.command(epilog=examples(EXAMPLES))
def show(
    name: Name,
    *,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Show the effective recipe, where each value came from, and what follows from the pins."""
    with open_session("show", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        recipe = load(find_recipe(name, recipes))
        values = {key: value for key, value in json.loads(recipe.canonical()).items() if key != "format"}
        store = open_store(session, writes=False)
        base = known_base(recipe, store=store) if recipe.image else None
        found = facts(recipe, load_tables(load_toolkits()), base)
        session.data = ShownRecipe(
            name=recipe.name, recipe=values, places=dict(recipe.places), facts=tuple(found)
        )
        pins = [(key, brief(value), recipe.place(f"$.{key}")) for key, value in values.items()]
        follows = [(one.name, one.value, one.source) for one in found]
        session.text = f"{columns(pins, session.width)}\n\n{columns(follows, session.width)}"
