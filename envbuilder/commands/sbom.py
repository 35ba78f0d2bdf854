"""`sbom`: the SBOM or the provenance of what was built."""

import json
from typing import Annotated, Final

import typer
from pydantic import JsonValue, RootModel

from envbuilder.build.built import read_documents
from envbuilder.commands.context import (
    OUTPUT,
    Json,
    NoColor,
    Output,
    Verbose,
    complete_recipe,
    examples,
    new_app,
    open_session,
)
from envbuilder.recipe.load import recipes_folder

EXAMPLES: Final = ("envbuilder sbom a100", "envbuilder sbom build/a100.sif --provenance")
app = new_app()


class Document(RootModel[dict[str, JsonValue]]):
    """An SPDX document, or with `--provenance` an in-toto statement."""


ANSWER: Final = Document


@app.command(epilog=examples(EXAMPLES))
def sbom(
    name: Annotated[
        str,
        typer.Argument(
            help="a recipe that was built, or a SIF", metavar="NAME|SIF", autocompletion=complete_recipe
        ),
    ],
    *,
    provenance: Annotated[
        bool, typer.Option("--provenance", help="how it was made instead: an in-toto statement")
    ] = False,
    output: Output = OUTPUT,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Print the SBOM of what was built, in SPDX: every package with its version, license and hash."""
    with open_session("sbom", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        recipes = recipes_folder(session.environment)
        session.text = read_documents(name, output, recipes)[provenance].rstrip("\n")
        session.data = Document(json.loads(session.text))
