"""`show`: the effective recipe, where each value came from, and what follows from the pins; its extensions; its SBOM."""

import json
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from envbuilder.builder.extensions.compiled import HEAD, ListedExtension, cells, describe, find_extensions
from envbuilder.commands.context import Artifacts, Recipes, Session, command, open_store, recipe_argument
from envbuilder.compat.check import load_tables
from envbuilder.compat.explain import ExplainedFact, brief, facts
from envbuilder.core.answer import Answer, BareAnswer, Reply
from envbuilder.core.errors import UsageError
from envbuilder.core.plain import columns
from envbuilder.lock.file import known_base
from envbuilder.plan.make import make_plan
from envbuilder.recipe.load import find_recipe, load
from envbuilder.run.named import need_sif


class ShownRecipe(Answer):
    """The effective recipe. `places` says for each key's path in which file and line its value stands."""

    name: str
    recipe: dict[str, JsonValue]
    places: dict[str, str]
    facts: tuple[ExplainedFact, ...]


class ExtensionList(BareAnswer[tuple[ListedExtension, ...]]):
    """With `--extensions`: the compiled extensions of the recipe."""


class ShownDocument(BareAnswer[dict[str, JsonValue]]):
    """With `--sbom`: an SPDX document. With `--provenance`: an in-toto statement."""


@command(
    "show",
    "envbuilder show a100",
    "envbuilder show a100 --extensions",
    "envbuilder show a100 --sbom",
    "envbuilder show build/a100.sif --provenance",
)
def show(
    session: Session,
    name: Annotated[str, recipe_argument("a recipe, or a path to its file; a SIF has documents", "NAME|SIF")],
    *,
    extensions: Annotated[
        bool, typer.Option("--extensions", help="its compiled extensions: key, architectures, size, time, origin")
    ] = False,
    sbom: Annotated[bool, typer.Option("--sbom", help="the SBOM of what was built, in SPDX")] = False,
    provenance: Annotated[
        bool, typer.Option("--provenance", help="the provenance of what was built, an in-toto statement, instead of the SBOM")
    ] = False,
    artifacts: Artifacts, recipes: Recipes,
) -> Reply[ShownRecipe | ExtensionList | ShownDocument]:  # fmt: skip
    """Show the effective recipe, where each value came from, and what follows from the pins; or a part of what was built."""
    if extensions and (sbom or provenance):
        hint = "give one of them"
        raise UsageError("`--extensions` shows a recipe, and `--sbom` what was built", hint=hint)
    if extensions:
        return _extensions(session, name, recipes)
    if sbom or provenance:
        from envbuilder.artifacts.sif import read_documents  # noqa: PLC0415 - zstandard, for documents alone

        text = read_documents(need_sif(name, artifacts, recipes).sif)[provenance].rstrip("\n")
        return Reply(data=ShownDocument(json.loads(text)), text=text, is_document=True)
    recipe = load(find_recipe(name, recipes))
    values = {key: value for key, value in json.loads(recipe.canonical()).items() if key != "format"}
    store = open_store(session, writes=False)
    follows = facts(recipe, load_tables(), known_base(recipe, store=store) if recipe.image else None)
    places = dict(recipe.places)
    pins = [(key, brief(value), places.get(f"$.{key}", "-")) for key, value in values.items()]
    rows = [(fact.name, fact.value, fact.source) for fact in follows]
    return Reply(
        data=ShownRecipe(name=recipe.name, recipe=values, places=places, facts=follows),
        text=f"{columns(pins, session.width)}\n\n{columns(rows, session.width)}",
    )


def _extensions(session: Session, name: str, recipes: Path) -> Reply[ExtensionList]:
    store = open_store(session, writes=False)
    recipe, plan, _ = make_plan(name, recipes, store)
    extensions = tuple(find_extensions(plan, store))
    rows = [cells(extension, recipe.name) for extension in extensions]
    text = columns([HEAD, *rows], session.width) if rows else f"{name} has no extensions"
    return Reply(
        data=ExtensionList(tuple(describe(extension, recipe.name) for extension in extensions)), text=text
    )
