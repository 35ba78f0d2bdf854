"""`sign`: sign image and SIF with the user's own key."""

from pathlib import Path
from typing import Annotated, Final

import typer

from envbuilder.build.built import sign_artifacts
from envbuilder.commands._build_context import build_context
from envbuilder.commands.context import (
    OUTPUT,
    RECIPES,
    Answer,
    Json,
    NoColor,
    Output,
    Verbose,
    complete_recipe,
    examples,
    new_app,
    open_session,
)

EXAMPLES: Final = ("envbuilder sign a100 --key key.pem",)
app = new_app()


class Signed(Answer):
    """The SIF with its signature, and the signed statement of both."""

    sif: Path
    sif_sha256: str
    bundle: Path


ANSWER: Final = Signed


@app.command(epilog=examples(EXAMPLES))
def sign(
    name: Annotated[
        str, typer.Argument(help="a recipe that was built", metavar="NAME", autocompletion=complete_recipe)
    ],
    *,
    key: Annotated[Path, typer.Option("--key", help="your private key in a PEM file: ECDSA, Ed25519 or RSA")],
    output: Output = OUTPUT,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Sign image and SIF with your own key, without a network. The signature replaces an earlier one."""
    with open_session("sign", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        signed = Signed.model_validate(
            sign_artifacts(name, build_context(session, RECIPES), output=output, key=key)
        )
        session.data = signed
        session.text = f"signed {signed.sif} and the image; the statement is {signed.bundle}"
