"""`sign`: sign image and SIF with the user's own key."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import RootModel

from envbuilder.artifacts.outputs import names_built
from envbuilder.build.built import Signed, sign_artifacts
from envbuilder.commands._build_context import build_context
from envbuilder.commands.context import RECIPES, Output, Session, command, recipe_argument


class SignedVariants(RootModel[tuple[Signed, ...]]):
    """The answer for a recipe that was built for several processors, one row for each."""


@command("sign", ("envbuilder sign a100 --key key.pem",), Signed | SignedVariants)
def sign(
    session: Session,
    name: Annotated[str, recipe_argument("a recipe that was built")],
    *,
    key: Annotated[Path, typer.Option(help="your private key in a PEM file: ECDSA, Ed25519 or RSA")],
    output: Output,
) -> None:
    """Sign image and SIF with your own key, without a network. The signature replaces an earlier one."""
    context = build_context(session, RECIPES)
    done = tuple(sign_artifacts(one, context, output=output, key=key) for one in names_built(name, output))
    session.data = done[0] if len(done) == 1 else SignedVariants(done)
    session.text = "\n".join(f"signed {one.sif} and the image; the statement is {one.bundle}" for one in done)
