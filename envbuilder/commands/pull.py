"""`pull`: image and SIF from an OCI registry."""

import contextlib
from pathlib import Path
from typing import Annotated, Final

import typer

from envbuilder.artifacts.oci.naming import find_source, parse_only
from envbuilder.artifacts.outputs import Outputs, versions_to_keep
from envbuilder.commands._console import open_console, say_closed
from envbuilder.commands._push_pull import Only, make_client
from envbuilder.commands.context import Output, Session, command, open_store
from envbuilder.core.answer import Reply
from envbuilder.core.errors import SpaceError, UsageError
from envbuilder.core.processor import PROCESSORS
from envbuilder.registry import pull as registry

PLATFORMS: Final = tuple(processor.platform for processor in PROCESSORS)


@command("pull", "envbuilder pull a100", "envbuilder pull registry.site.org/team/a100:latest --only sif")
def pull(
    session: Session,
    reference: Annotated[
        str, typer.Argument(help="a reference, or a recipe's name below ENVBUILDER_REGISTRY", metavar="REFERENCE|NAME[:TAG]")
    ],
    *, only: Only = "",
    key: Annotated[Path | None, typer.Option(help="a public key: pull only what it signed", envvar="ENVBUILDER_KEY")] = None,
    not_older_than: Annotated[
        str, typer.Option(metavar="DATE", help="with --key: refuse what was signed before, such as 2026-11-30")
    ] = "",
    platform: Annotated[str, typer.Option(metavar="PLATFORM", help=f"{' or '.join(PLATFORMS)}, instead of this machine's")] = "",
    output: Output,
) -> Reply[registry.Pulled]:  # fmt: skip
    """Pull image and SIF from an OCI registry and verify them, without Docker or Apptainer: `envbuilder pull --only sif a100`."""
    forms, shown = parse_only(only), open_console(session)
    if platform and platform not in PLATFORMS:
        hint = f"`--platform` takes {' or '.join(PLATFORMS)}"
        raise UsageError(f"there is no platform `{platform}`", hint=hint)
    oldest = registry.parse_date(not_older_than) if not_older_than else None
    if oldest and key is None:
        raise UsageError("`--not-older-than` goes by the time in a signature", hint="add `--key PUBLIC`")
    client = make_client(session, shown)
    source, name = find_source(reference, client.settings.prefix)
    outputs = Outputs(folder=output.absolute(), name=name)
    with contextlib.ExitStack() as stack, shown.group(f"pull {outputs.name}"):
        try:
            cache = open_store(session)
            stack.enter_context(cache.in_use())
            store = cache
        except (UsageError, SpaceError, OSError):
            store = None  # a home that is read-only or full: the SIF is fetched whole
        pulled = registry.pull(
            source, client, outputs=outputs, forms=forms, key=key, not_older_than=oldest, platform=platform,
            store=store, versions=versions_to_keep(session.environment), console=shown,
        )  # fmt: skip
    say_closed(session, output, outputs.sif, outputs.image)
    return Reply(data=pulled, text=pulled.text())
