"""`tables`: maintain the compatibility tables."""

from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from envbuilder.commands._console import open_console
from envbuilder.commands.context import Session, command, new_app
from envbuilder.compat.refresh import refresh
from envbuilder.compat.tables.table import TABLES
from envbuilder.core.answer import Answer
from envbuilder.core.fetch.remote_zip import Index
from envbuilder.core.process import ProcessRunner
from envbuilder.core.sources import probe_sources

tables: Final = new_app("The compatibility tables, for maintainers.")


class TableChanges(Answer):
    """What changed in the tables, and what a maintainer should know."""

    changes: tuple[str, ...]
    notes: tuple[str, ...]


@tables.callback()
def _group() -> None:
    """Keep `refresh` a sub-command: Typer makes an app with one command that command."""


@command("tables refresh", ("envbuilder tables refresh --check",), TableChanges, app=tables)
def tables_refresh(
    session: Session,
    *,
    releases: Annotated[int, typer.Option(metavar="N", min=0, help="newest releases of torch to read")] = 5,
    compilers: Annotated[int, typer.Option(metavar="N", min=0, help="newest CUDA compilers to read")] = 5,
    check: Annotated[bool, typer.Option("--check", help="write nothing; print what would change")] = False,
) -> None:
    """Read the newest wheels and write what they say into the tables of compatibility, for maintainers."""
    runner = ProcessRunner(session.environment)
    shown = open_console(session, runner)
    index = Index(probe_sources(session.environment, runner))
    today = datetime.now(UTC).date()
    with shown.group("tables refresh"), shown.step("read the newest wheels"):
        changes = refresh(
            index, runner, today=today, releases=releases, compilers=compilers, folder=TABLES, save=not check
        )
    session.data = TableChanges(changes=changes.done, notes=changes.notes)
    done = changes.done or ("the tables are as they were",)
    session.text = "\n".join((*done, *(f"note: {note}" for note in changes.notes)))
