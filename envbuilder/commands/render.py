"""`render`: the whole build as text that needs no envbuilder."""

from enum import StrEnum
from typing import Annotated, Final

import typer

from envbuilder.build.pipeline import render_recipe
from envbuilder.commands._build_context import build_context
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
)

EXAMPLES: Final = ("envbuilder render cpu", "envbuilder render a100 --as apptainer")
app = new_app()


class Form(StrEnum):
    """What `render` writes."""

    DOCKERFILE = "dockerfile"
    APPTAINER = "apptainer"


class RenderedRecipe(Answer):
    """The Dockerfile or the definition file."""

    name: str
    form: Form
    text: str


ANSWER: Final = RenderedRecipe


@app.command(epilog=examples(EXAMPLES))
def render(
    name: Name,
    *,
    form: Annotated[
        Form, typer.Option("--as", help="a Dockerfile, or a definition file of Apptainer")
    ] = Form.DOCKERFILE,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Print the whole build as text for `docker buildx build` or `apptainer build`, which needs no envbuilder."""
    with open_session("render", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        text = render_recipe(name, build_context(session, recipes, writes=False), form.value)
        session.data = RenderedRecipe(name=name, form=form, text=text)
        session.text = text.removesuffix("\n")
