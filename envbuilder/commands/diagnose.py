"""`diagnose`: the known failure in the logs of a training, a build or a kernel."""

import sys
from typing import Annotated, Final

import typer

from envbuilder.commands.context import (
    Answer,
    Json,
    NoColor,
    Verbose,
    examples,
    new_app,
    open_session,
)
from envbuilder.node.diagnose import diagnose as find_failures
from envbuilder.node.diagnose import findings, report

EXAMPLES: Final = ("envbuilder diagnose slurm-4711.out", "envbuilder diagnose logs/")
app = new_app()


class LogPlace(Answer):
    """A line of a log that shows a failure."""

    where: str
    text: str
    rank: int | None


class FoundFailure(Answer):
    """A known failure, with the line that shows it best as `evidence`."""

    code: str
    name: str
    title: str
    role: str
    stage: str
    where: str
    evidence: str
    rank: int | None
    ranks: tuple[int, ...]
    count: int
    places: tuple[LogPlace, ...]
    details: tuple[str, ...]
    cause: str
    repair: str
    command: str
    source: str


class Diagnosis(Answer):
    """What was read and found, the cause first. `skipped` names files that could not be read as logs."""

    logs: int
    lines: int
    skipped: tuple[str, ...]
    failures: tuple[FoundFailure, ...]


ANSWER: Final = Diagnosis


@app.command(epilog=examples(EXAMPLES))
def diagnose(
    logs: Annotated[
        list[str],
        typer.Argument(
            help="log files, folders of them, dumps of the flight recorder, or `-`", metavar="LOG"
        ),
    ],
    *,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Find known failures in training, build or kernel logs: the line that shows each, its cause and its repair."""
    with open_session("diagnose", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        diagnosis = find_failures(logs, sys.stdin.buffer)
        session.data = Diagnosis.model_validate(report.data(diagnosis))
        session.text = report.text(diagnosis)
        if as_json:  # the text says the same, and on stdout
            session.findings = findings(diagnosis)
