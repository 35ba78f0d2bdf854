"""`sign`: sign image and SIF with the user's own key."""

from pathlib import Path
from typing import Annotated

import typer

from envbuilder.artifacts.oci.naming import LATEST
from envbuilder.artifacts.outputs import VARIANT, environment_name, names_built
from envbuilder.builder.built import Signed, make_release, sign_artifacts
from envbuilder.commands._console import build_context
from envbuilder.commands.context import RECIPES, Artifacts, Session, command, recipe_argument
from envbuilder.core.answer import BareAnswer, Reply


class SignedVariants(BareAnswer[tuple[Signed, ...]]):
    """The answer for a recipe that was built for several processors, one row for each."""


@command("sign", "envbuilder sign a100 --key key.pem")
def sign(
    session: Session,
    name: Annotated[str, recipe_argument("a recipe that was built")],
    *,
    key: Annotated[Path, typer.Option(help="your private key in a PEM file: ECDSA, Ed25519 or RSA")],
    tag: Annotated[str, typer.Option(help="the tag under which `push` releases them; by default `latest`, or the variant")] = "",
    artifacts: Artifacts,
) -> Reply[Signed | SignedVariants]:  # fmt: skip
    """Sign image and SIF with your own key, without a network. The signature replaces an earlier one."""
    context = build_context(session, RECIPES)
    recipe, _, variant = environment_name(name).partition(VARIANT)  # as `push` takes them for name and tag
    release = make_release(recipe, tag or variant or LATEST, session.environment)
    pairs = tuple(
        sign_artifacts(built, context, output=artifacts, key=key, release=release)
        for built in names_built(name, artifacts)
    )
    text = "\n".join(
        f"signed {pair.sif} and the image as {pair.name}:{pair.tag}; the statement is {pair.bundle}"
        for pair in pairs
    )
    return Reply(data=pairs[0] if len(pairs) == 1 else SignedVariants(pairs), text=text)
