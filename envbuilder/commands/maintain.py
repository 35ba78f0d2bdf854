"""Verbs for the maintainers of envbuilder."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from envbuilder.commands.context import Json, NoColor, Verbose, console, verb

app = typer.Typer()
tables = typer.Typer(no_args_is_help=True, help="The tables of compatibility, for maintainers.")
app.add_typer(tables, name="tables", hidden=True)


@tables.command("refresh")
def tables_refresh(
    *,
    releases: Annotated[
        int, typer.Option("--releases", metavar="N", min=0, help="newest releases of torch to read")
    ] = 5,
    compilers: Annotated[
        int, typer.Option("--compilers", metavar="N", min=0, help="newest CUDA compilers to read")
    ] = 5,
    check: Annotated[bool, typer.Option("--check", help="write nothing; print what would change")] = False,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Read the newest wheels and write what they say into the tables of compatibility, for maintainers."""
    from envbuilder.compat.refresh import TABLES, Scope, refresh  # noqa: PLC0415
    from envbuilder.core.fetch.remote_zip import Index  # noqa: PLC0415
    from envbuilder.core.process import ProcessRunner  # noqa: PLC0415
    from envbuilder.core.sources import probe_sources  # noqa: PLC0415

    with verb("tables refresh", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        runner = ProcessRunner(session.environment)
        shown = console(session, runner)
        index = Index(probe_sources(session.environment, runner))
        scope, today = Scope(releases=releases, compilers=compilers), datetime.now(UTC).date()
        with shown.group("tables refresh"), shown.step("read the newest wheels"):
            changes = refresh(index, runner, today=today, scope=scope, folder=TABLES, save=not check)
        session.data = {"changes": list(changes.done), "notes": list(changes.notes)}
        done = changes.done or ("the tables are as they were",)
        session.text = "\n".join((*done, *(f"note: {note}" for note in changes.notes)))
