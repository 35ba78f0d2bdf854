"""Name the known failure in logs of training, builds and the kernel, with its line and its repair.

logs ──read──▶ blocks ──scan──▶ lines of the catalogue ──judge──▶ cause, others, consequences
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

from envbuilder.core.findings import Finding, Severity
from envbuilder.node.diagnose.catalogue import Failure, load_catalogue
from envbuilder.node.diagnose.judge import Found, Judge, Role
from envbuilder.node.diagnose.line import rank_of_file
from envbuilder.node.diagnose.logs import Log, open_logs
from envbuilder.node.diagnose.recorder import is_dump, read_dump
from envbuilder.node.diagnose.scan import Scanner, make_search


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was read and what was found, the cause first."""

    found: tuple[Found, ...]
    logs: int
    lines: int
    skipped: tuple[str, ...]  # what is no text and no dump, or not to be read


def diagnose(names: Iterable[str], stdin: IO[bytes]) -> Diagnosis:
    """Read all logs once; raises UsageError for one that is not there."""
    catalogue = load_catalogue()
    search, judge = make_search(catalogue), Judge(catalogue)
    logs = lines = 0
    skipped: list[str] = []
    for number, log in enumerate(open_logs(names, stdin, skipped)):
        if is_dump(log.head):
            if read_dump(log.stream, log.name, judge.ranks):
                logs += 1
                continue
            skipped.append(log.name)
        elif b"\0" in log.head:
            skipped.append(log.name)
        else:
            lines += _read(log, number, Scanner(search=search, rank=rank_of_file(log.name)), judge)
            logs += 1
    return Diagnosis(found=judge.report(), logs=logs, lines=lines, skipped=tuple(skipped))


def _read(log: Log, number: int, scanner: Scanner, judge: Judge) -> int:
    if scanner.rank is not None:
        judge.ranks.add_world(scanner.rank + 1)
    for block in log.blocks():
        for seen in scanner.scan(block):
            judge.add(number, log.name, seen)
    judge.end_of_log(number, scanner.lines)
    return scanner.lines


def findings(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    """The diagnosis in the form that all commands share; the cause is the one error."""
    return tuple(
        Finding(
            code=one.failure.code,
            severity=Severity.ERROR if one.role is Role.CAUSE else Severity.WARNING,
            where=one.place.where,
            message=one.message,
            hint=one.failure.repair,
        )
        for one in diagnosis.found
    )


__all__ = ["Diagnosis", "Failure", "Found", "Role", "diagnose", "findings"]
