"""Verbs that move artefacts: push to a registry, pull from one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuilder.commands.context import (
    OUTPUT,
    RECIPES,
    Json,
    NoColor,
    Output,
    Session,
    Verbose,
    cache_folder,
    console,
    verb,
    workshop,
)
from envbuilder.core.errors import UsageError

if TYPE_CHECKING:
    from envbuilder.artifacts.oci.naming import Form
    from envbuilder.registry.client import Client

app = typer.Typer()

Only = Annotated[str, typer.Option("--only", help="`image` or `sif`, instead of both")]


@app.command()
def push(
    name: Annotated[str, typer.Argument(help="a recipe that was built", metavar="NAME")],
    reference: Annotated[
        str,
        typer.Argument(
            help="where to; without it, NAME below ENVBUILDER_REGISTRY", metavar="REGISTRY/REPOSITORY[:TAG]"
        ),
    ] = "",
    *,
    only: Only = "",
    key: Annotated[
        Path | None,
        typer.Option("--sign", metavar="KEY", help="sign both first, with a private key of yours"),
    ] = None,
    output: Output = OUTPUT,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Push image and SIF to an OCI registry: `envbuilder push a100 registry.site.org/team/a100:1`."""
    from envbuilder.artifacts.oci.naming import find_reference  # noqa: PLC0415
    from envbuilder.artifacts.outputs import Outputs  # noqa: PLC0415
    from envbuilder.core.cache import Store  # noqa: PLC0415
    from envbuilder.registry.push import push as send  # noqa: PLC0415

    with verb("push", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        forms, client = _forms(only), _client(session)
        target = find_reference(reference or name, client.settings.prefix)
        if target.digest:
            raise UsageError(
                f"`{target}` names a digest", hint="a push goes to a tag; what it becomes has the digest"
            )
        if key is not None:
            from envbuilder.build.built import sign_artifacts  # noqa: PLC0415

            sign_artifacts(name, workshop(session, RECIPES), output=output, key=key)
        outputs, shown = Outputs(folder=output.absolute(), name=name), console(session)
        memory = Store(cache_folder(session)).pushed()
        with shown.group(f"push {name}"):
            done = send(outputs, target, client, forms=forms, memory=memory, console=shown)
        session.data, session.text = done.data(), done.text()


@app.command()
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
        typer.Option(
            "--key", help="a public key: what it did not sign is not pulled", envvar="ENVBUILDER_KEY"
        ),
    ] = None,
    output: Output = OUTPUT,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Pull image and SIF from an OCI registry, verified, without Docker or Apptainer: `envbuilder pull --only sif a100`."""
    from envbuilder.artifacts.oci.naming import find_reference  # noqa: PLC0415
    from envbuilder.artifacts.outputs import Outputs  # noqa: PLC0415
    from envbuilder.registry.pull import pull as bring  # noqa: PLC0415

    with verb("pull", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        forms, client, shown = _forms(only), _client(session), console(session)
        source = find_reference(reference, client.settings.prefix)
        outputs = Outputs(folder=output.absolute(), name=source.repository.rpartition("/")[2])
        with shown.group(f"pull {outputs.name}"):
            done = bring(source, client, outputs=outputs, forms=forms, key=key, console=shown)
        session.data, session.text = done.data(), done.text()


def _forms(only: str) -> "tuple[Form, ...]":
    from envbuilder.artifacts.oci.naming import FORMS  # noqa: PLC0415

    found = tuple(form for form in FORMS if only in ("", form))
    if not found:
        raise UsageError(f"there is no form `{only}`", hint=f"`--only` takes {' or '.join(FORMS)}")
    return found


def _client(session: Session) -> "Client":
    """With the whole environment for credential helpers: those of clouds read settings of their own."""
    from envbuilder.core.process import ProcessRunner  # noqa: PLC0415
    from envbuilder.registry.client import open_client  # noqa: PLC0415

    return open_client(session.environment, ProcessRunner(session.environment, whole=True))
