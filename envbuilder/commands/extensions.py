"""`extensions`: what a recipe compiles, and what the cache has of it."""

from typing import Final

from pydantic import Field, RootModel

from envbuilder.build.extensions import table
from envbuilder.build.pipeline import list_extensions
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

EXAMPLES: Final = ("envbuilder extensions a100",)
app = new_app()


class ListedExtension(Answer):
    """An extension; one that was not compiled yet has no more than its name, form, key and origin."""

    name: str
    form: str
    key: str
    decided_by: dict[str, str]
    function: str = ""
    targets: tuple[str, ...] = ()
    size: int = 0
    seconds: float = 0
    files: dict[str, float] = Field(default={})
    compiled_for: str = ""
    torch: str = ""
    origin: str


class ExtensionList(RootModel[tuple[ListedExtension, ...]]):
    """The compiled extensions of the recipe."""


ANSWER: Final = ExtensionList


@app.command(epilog=examples(EXAMPLES))
def extensions(
    name: Name,
    *,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """List a recipe's compiled extensions: key, architectures, size, compile time, and where each came from."""
    with open_session("extensions", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        rows = list_extensions(name, build_context(session, recipes, writes=False))
        session.data = ExtensionList.model_validate(rows)
        session.text = table(rows, session.width) if rows else f"{name} has no extensions"
