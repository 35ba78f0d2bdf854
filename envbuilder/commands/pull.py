"""`pull`: image and SIF from an OCI registry."""

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from envbuilder.artifacts.oci.naming import find_reference
from envbuilder.artifacts.outputs import VARIANT, Outputs, versions_to_keep
from envbuilder.commands._console import open_console, say_closed
from envbuilder.commands._push_pull import Only, make_client, parse_only
from envbuilder.commands.context import Output, Session, command, open_store
from envbuilder.core.answer import Reply
from envbuilder.core.errors import SpaceError, UsageError
from envbuilder.core.processor import PROCESSORS
from envbuilder.recipe.model import SUFFIX
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
    oldest = _parse_date(not_older_than) if not_older_than else None
    if oldest and key is None:
        raise UsageError("`--not-older-than` goes by the time in a signature", hint="add `--key PUBLIC`")
    client = make_client(session, shown)
    is_recipe = reference.endswith((SUFFIX, ".yml"))
    wanted = Path(reference).stem if is_recipe else reference
    source = find_reference(wanted, client.settings.prefix)
    name = source.repository.rpartition("/")[2]
    if f"{name}{VARIANT}{source.tag}" == wanted:
        name = wanted
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


def _parse_date(text: str) -> datetime:
    """Return a date or a time of ISO 8601. Without an offset it is UTC."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        hint = "write a date: 2026-11-30, or 2026-11-30T12:00"
        raise UsageError(f"`--not-older-than` is `{text}`", hint=hint) from error
    return time if time.tzinfo else time.replace(tzinfo=UTC)
