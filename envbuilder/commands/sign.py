"""`sign`: sign image and SIF with the user's own key."""

from pathlib import Path
from typing import Annotated

import typer

from envbuilder.build.built import Signed, sign_artifacts
from envbuilder.commands._build_context import build_context
from envbuilder.commands.context import RECIPES, Output, Session, command, recipe_argument


@command("sign", ("envbuilder sign a100 --key key.pem",), Signed)
def sign(
    session: Session,
    name: Annotated[str, recipe_argument("a recipe that was built")],
    *,
    key: Annotated[Path, typer.Option(help="your private key in a PEM file: ECDSA, Ed25519 or RSA")],
    output: Output,
) -> None:
    """Sign image and SIF with your own key, without a network. The signature replaces an earlier one."""
    session.data = signed = sign_artifacts(name, build_context(session, RECIPES), output=output, key=key)
    session.text = f"signed {signed.sif} and the image; the statement is {signed.bundle}"
