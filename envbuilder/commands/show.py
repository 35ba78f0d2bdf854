"""`show`: the effective recipe, where each value came from, and what follows from the pins."""

import json

from pydantic import JsonValue

from envbuilder.commands.context import Name, Recipes, Session, command, open_store
from envbuilder.compat.check import load_tables
from envbuilder.compat.explain import Fact, brief, facts
from envbuilder.core.answer import Answer
from envbuilder.core.columns import columns
from envbuilder.lock.known_base import known_base
from envbuilder.recipe.load import find_recipe, load


class ShownRecipe(Answer):
    """The effective recipe. `places` says for each key's path in which file and line its value stands."""

    name: str
    recipe: dict[str, JsonValue]
    places: dict[str, str]
    facts: tuple[Fact, ...]


@command("show", ("envbuilder show a100",), ShownRecipe)
def show(session: Session, name: Name, *, recipes: Recipes) -> None:
    """Show the effective recipe, where each value came from, and what follows from the pins."""
    recipe = load(find_recipe(name, recipes))
    values = {key: value for key, value in json.loads(recipe.canonical()).items() if key != "format"}
    store = open_store(session, writes=False)
    base = known_base(recipe, store=store) if recipe.image else None
    found = facts(recipe, load_tables(), base)
    places = dict(recipe.places)
    session.data = ShownRecipe(name=recipe.name, recipe=values, places=places, facts=found)
    pins = [(key, brief(value), places.get(f"$.{key}", "-")) for key, value in values.items()]
    follows = [(one.name, one.value, one.source) for one in found]
    session.text = f"{columns(pins, session.width)}\n\n{columns(follows, session.width)}"
