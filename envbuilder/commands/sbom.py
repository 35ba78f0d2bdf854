"""`sbom`: the SBOM or the provenance of what was built."""

import json
from typing import Annotated

import typer
from pydantic import JsonValue

from envbuilder.builder.built import read_documents
from envbuilder.commands.context import Output, Session, command, recipe_argument
from envbuilder.core.answer import BareAnswer
from envbuilder.recipe.load import recipes_folder
from envbuilder.run.named import need_sif


class Document(BareAnswer[dict[str, JsonValue]]):
    """An SPDX document, or with `--provenance` an in-toto statement."""


@command("sbom", ("envbuilder sbom a100", "envbuilder sbom build/a100.sif --provenance"), Document)
def sbom(
    session: Session,
    name: Annotated[str, recipe_argument("a recipe that was built, or a SIF", "NAME|SIF")],
    *,
    provenance: Annotated[
        bool, typer.Option("--provenance", help="print the provenance instead: an in-toto statement")
    ] = False,
    output: Output,
) -> None:
    """Print the SBOM of what was built, in SPDX: every package with its version, license and hash."""
    sif = need_sif(name, output, recipes_folder(session.environment)).sif
    session.is_document = True
    session.text = read_documents(sif)[provenance].rstrip("\n")
    session.data = Document(json.loads(session.text))
