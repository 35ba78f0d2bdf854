"""`diagnose`: the known failure in the logs of a training, a build or a kernel."""

import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from envbuilder.commands.context import Session, command
from envbuilder.core.answer import Answer, Reply
from envbuilder.core.errors import UsageError
from envbuilder.core.findings import Finding, Severity
from envbuilder.diagnose import Incident, LogError, Role, as_text
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


class DiagnosisAnswer(Answer):
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
) -> Reply[DiagnosisAnswer]:
    """Find known failures in training, build or kernel logs: the line that shows each, its cause and its repair."""
    try:
        diagnosis = find_failures(logs, sys.stdin.buffer)
    except LogError as error:
        raise UsageError(str(error), hint=error.hint) from error
    same = {name: getattr(diagnosis, name) for name in ("logs", "lines", "skipped", "ranks", "collect")}
    data = DiagnosisAnswer(
        **same, world_size=diagnosis.world, missing_ranks=diagnosis.missing,
        last_lines=tuple(map(_place, diagnosis.ends)), failures=tuple(map(_row, diagnosis.incidents)),
    )  # fmt: skip
    # The text says the same as the findings, and on stdout.
    listed = findings(diagnosis.incidents) if session.as_json else ()
    return Reply(data=data, text=as_text(diagnosis), findings=listed, exit_code=diagnosis.exit_code)


def findings(incidents: Iterable[Incident]) -> tuple[Finding, ...]:
    """Return failures as findings; the cause is the one error."""
    return tuple(
        Finding(
            code=incident.failure.code,
            severity=Severity.ERROR if incident.role is Role.CAUSE else Severity.WARNING,
            where=incident.place.where,
            message=incident.message,
            hint=incident.failure.repair,
        )
        for incident in incidents
    )


def _row(incident: Incident) -> FoundFailure:
    place = incident.place
    keys = ("code", "name", "title", "cause", "repair", "command", "source")
    return FoundFailure(
        **{key: getattr(incident.failure, key) for key in keys},
        role=incident.role.value, stage=incident.failure.stage.value, known_by=incident.certainty, surer=incident.surer,
        where=place.where, evidence=place.text, rank=place.rank, ranks=tuple(sorted(incident.ranks)), count=incident.count,
        places=tuple(map(_place, incident.places)), details=tuple(incident.details),
    )  # fmt: skip


def _place(place: Place) -> LogPlace:
    return LogPlace(where=place.where, text=place.text, rank=place.rank)
