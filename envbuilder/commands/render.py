"""`render`: the whole build as text that needs no envbuilder."""

from enum import StrEnum
from typing import Annotated

import typer

from envbuilder.builder.render import print_recipe
from envbuilder.commands.context import Name, Recipes, Session, command, open_store
from envbuilder.core.answer import Answer, Reply


class PrintedForm(StrEnum):
    """What `render` writes."""

    DOCKERFILE = "dockerfile"
    APPTAINER = "apptainer"


class RenderedRecipe(Answer):
    """The Dockerfile or the definition file."""

    name: str
    form: PrintedForm
    text: str


@command("render", "envbuilder render cpu", "envbuilder render a100 --as apptainer")
def render(
    session: Session, name: Name, *,
    form: Annotated[PrintedForm, typer.Option("--as", help="a Dockerfile, or a definition file of Apptainer")] = PrintedForm.DOCKERFILE,
    recipes: Recipes,
) -> Reply[RenderedRecipe]:  # fmt: skip
    """Print the whole build as text for `docker buildx build` or `apptainer build`, which needs no envbuilder."""
    text = print_recipe(name, recipes, open_store(session, writes=False), form.value)
    data = RenderedRecipe(name=name, form=form, text=text)
    return Reply(data=data, text=text.removesuffix("\n"), is_document=True)
