"""`pull`: image and SIF from an OCI registry."""

from pathlib import Path
from typing import Annotated, Final

import typer

from envbuilder.artifacts.oci.naming import Form, find_reference
from envbuilder.artifacts.outputs import Outputs
from envbuilder.commands._console import open_console
from envbuilder.commands._registry import Only, make_client, parse_only
from envbuilder.commands.context import (
    OUTPUT,
    Answer,
    Json,
    NoColor,
    Output,
    Verbose,
    examples,
    new_app,
    open_session,
)
from envbuilder.recipe.model import SUFFIX
from envbuilder.registry import pull as registry

EXAMPLES: Final = ("envbuilder pull a100", "envbuilder pull registry.site.org/team/a100:latest --only sif")
app = new_app()


class PulledFile(Answer):
    """An artifact that was pulled."""

    form: Form
    path: Path
    digest: str


class Pulled(Answer):
    """What was pulled, and whether its signature was checked."""

    files: tuple[PulledFile, ...]
    signature_verified: bool
    bytes: int
    bytes_resumed: int


ANSWER: Final = Pulled


@app.command(epilog=examples(EXAMPLES))
def pull(
    reference: Annotated[
        str,
        typer.Argument(
            help="a reference, or a recipe's name below ENVBUILDER_REGISTRY", metavar="REFERENCE|NAME[:TAG]"
        ),
    ],
    *,
    only: Only = "",
    key: Annotated[
        Path | None,
        typer.Option("--key", help="a public key: pull only what it signed", envvar="ENVBUILDER_KEY"),
    ] = None,
    output: Output = OUTPUT,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Pull image and SIF from an OCI registry and verify them, without Docker or Apptainer: `envbuilder pull --only sif a100`."""
    with open_session("pull", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        forms, client, shown = parse_only(only), make_client(session), open_console(session)
        is_recipe = reference.endswith((SUFFIX, ".yml"))
        source = find_reference(Path(reference).stem if is_recipe else reference, client.settings.prefix)
        outputs = Outputs(folder=output.absolute(), name=source.repository.rpartition("/")[2])
        with shown.group(f"pull {outputs.name}"):
            done = registry.pull(source, client, outputs=outputs, forms=forms, key=key, console=shown)
        session.data, session.text = Pulled.model_validate(done.data()), done.text()
