"""`diagnose`: the known failure in the logs of a training, a build or a kernel."""

import sys
from typing import Annotated

import typer

from envbuilder.commands.context import Session, command
from envbuilder.core.answer import Answer, Reply
from envbuilder.diagnose import Found, as_text, findings
from envbuilder.diagnose import diagnose as find_failures
from envbuilder.diagnose.catalogue import Certainty
from envbuilder.diagnose.scan import Place


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
    known_by: Certainty
    surer: str
    cause: str
    repair: str
    command: str
    source: str


class Diagnosis(Answer):
    """What was read and found, the cause first.

    `skipped` names files that could not be read as logs, `missing_ranks` ranks without a line in any log. Where nothing
    was found, `last_lines` says how far the logs got, and `collect` what to bring next.
    """

    logs: int
    lines: int
    skipped: tuple[str, ...]
    world_size: int
    ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    last_lines: tuple[LogPlace, ...]
    collect: tuple[str, ...]
    failures: tuple[FoundFailure, ...]


@command("diagnose", "envbuilder diagnose slurm-4711.out", "envbuilder diagnose logs/")
def diagnose(
    session: Session,
    logs: Annotated[
        list[str],
        typer.Argument(
            help="log files, folders of them, dumps of the flight recorder, or `-`", metavar="LOG"
        ),
    ],
) -> Reply[Diagnosis]:
    """Find known failures in training, build or kernel logs: the line that shows each, its cause and its repair."""
    diagnosis = find_failures(logs, sys.stdin.buffer)
    data = Diagnosis(
        logs=diagnosis.logs,
        lines=diagnosis.lines,
        skipped=diagnosis.skipped,
        world_size=diagnosis.world,
        ranks=diagnosis.ranks,
        missing_ranks=diagnosis.missing,
        last_lines=tuple(map(_place, diagnosis.ends)),
        collect=diagnosis.collect,
        failures=tuple(map(_row, diagnosis.found)),
    )
    # The text says the same as the findings, and on stdout.
    return Reply(data=data, text=as_text(diagnosis), findings=findings(diagnosis) if session.as_json else ())


def _row(found: Found) -> FoundFailure:
    place = found.place
    keys = ("code", "name", "title", "stage", "cause", "repair", "command", "source")
    return FoundFailure(
        **{key: getattr(found.failure, key) for key in keys},
        role=found.role,
        known_by=found.certainty,
        surer=found.surer,
        where=place.where,
        evidence=place.text,
        rank=place.rank,
        ranks=tuple(sorted(found.ranks)),
        count=found.count,
        places=tuple(map(_place, found.places)),
        details=tuple(found.details),
    )


def _place(place: Place) -> LogPlace:
    return LogPlace(where=place.where, text=place.text, rank=place.rank)
