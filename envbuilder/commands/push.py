"""`push`: image and SIF to an OCI registry."""

from pathlib import Path
from typing import Annotated

import typer

from envbuilder.artifacts.oci.naming import FORMS, LATEST, find_reference, parse_only
from envbuilder.artifacts.outputs import environment_name, find_outputs, names_built
from envbuilder.builder.built import make_release, sign_artifacts
from envbuilder.commands._console import build_context, open_console
from envbuilder.commands._push_pull import Only, make_client
from envbuilder.commands.context import RECIPES, Artifacts, Session, command, open_store, recipe_argument
from envbuilder.core.answer import BareAnswer, Reply
from envbuilder.core.errors import UsageError
from envbuilder.recipe.load import recipes_folder
from envbuilder.registry import push as registry
from envbuilder.run.named import need_pair


class PushedVariants(BareAnswer[tuple[registry.Pushed, ...]]):
    """The answer for a recipe that was built for several processors, one row for each."""


@command("push", "envbuilder push a100 registry.site.org/team/a100")
def push(
    session: Session,
    name: Annotated[str, recipe_argument("a recipe that was built")],
    reference: Annotated[
        str, typer.Argument(help="the target; default: NAME below ENVBUILDER_REGISTRY", metavar="REGISTRY/REPOSITORY[:TAG]")
    ] = "",
    *, only: Only = "",
    thin: Annotated[
        bool,
        typer.Option(
            "--thin",
            help="of the SIF, send only what its image lacks: `envbuilder pull` makes the file, Apptainer's own pull cannot",
        ),
    ] = False,
    key: Annotated[Path | None, typer.Option("--sign", metavar="KEY", help="sign both first, with your private key")] = None,
    artifacts: Artifacts,
) -> Reply[registry.Pushed | PushedVariants]:  # fmt: skip
    """Push image and SIF to an OCI registry: `envbuilder push a100 registry.site.org/team/a100:1`."""
    forms, shown = parse_only(only), open_console(session)
    if thin and len(forms) < len(FORMS):
        raise UsageError(
            f"`--thin` and `--only {only}`",
            hint="a thin push sends the image and the frame of its SIF: leave out one of them",
        )
    client = make_client(session, shown)
    names = names_built(name, artifacts)
    target = find_reference(reference or environment_name(name), client.settings.prefix)
    if target.digest:
        hint = "push to a tag; the digest follows from the content"
        raise UsageError(f"`{target}` names a digest", hint=hint)
    pushed: list[registry.Pushed] = []
    for built in names:
        outputs = find_outputs(built, artifacts.absolute())
        with shown.group(f"push {built}"):
            need_pair(built, outputs.folder, recipes_folder(session.environment), forms=forms)
            if key is not None:
                release = make_release(target.name, target.tag or LATEST, session.environment)
                context = build_context(session, RECIPES)
                sign_artifacts(built, context, output=artifacts, key=key, release=release)
            memory = open_store(session).pushed()
            pushed.append(
                registry.push(outputs, target, client, forms=forms, thin=thin, memory=memory, console=shown)
            )
    data = pushed[0] if len(pushed) == 1 else PushedVariants(tuple(pushed))
    return Reply(data=data, text="\n".join(pair.text() for pair in pushed))
