"""Name the known failure in logs of training, builds and the kernel, with its line and its repair.

logs ──read──▶ blocks ──scan──▶ lines of the catalogue ──judge──▶ cause, others, consequences
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

from envbuilder.core.findings import Finding, Severity
from envbuilder.node.diagnose.catalogue import Failure, load_catalogue
from envbuilder.node.diagnose.collectives import named
from envbuilder.node.diagnose.judge import Found, Judge, Role
from envbuilder.node.diagnose.logs import open_logs
from envbuilder.node.diagnose.recorder import is_dump, read_dump
from envbuilder.node.diagnose.scan import Scanner, Search


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was read and what was found, the cause first."""

    found: tuple[Found, ...]
    logs: int
    lines: int
    skipped: tuple[str, ...]  # neither text nor a dump, or unreadable


def diagnose(names: Iterable[str], stdin: IO[bytes]) -> Diagnosis:
    """Read all logs once; raises UsageError for one that is not there."""
    catalogue = load_catalogue()
    search, judge = Search(catalogue), Judge(catalogue)
    logs = lines = 0
    skipped: list[str] = []
    for number, log in enumerate(open_logs(names, stdin, skipped)):
        if is_dump(log.head):
            is_read = read_dump(log.stream, log.name, judge.ranks)
        else:
            is_read = b"\0" not in log.head
            if is_read:
                scanner = Scanner(search, log, number, judge.ranks)
                for seen in scanner.scan():
                    judge.add(seen)
                judge.end_of_log(number, scanner.lines)
                lines += scanner.lines
        logs += is_read
        if not is_read:
            skipped.append(log.name)
    return Diagnosis(found=judge.report(), logs=logs, lines=lines, skipped=tuple(skipped))


def findings(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    """Return the diagnosis as findings; the cause is the one error."""
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


def as_text(diagnosis: Diagnosis) -> str:
    """Show the cause and other failures in full, and each consequence in one line."""
    parts = [_full(one) for one in diagnosis.found if one.role is not Role.CONSEQUENCE]
    after = [_short(one) for one in diagnosis.found if one.role is Role.CONSEQUENCE]
    if after:
        parts.append("\n".join(["what followed, most likely from it:", *after]))
    if diagnosis.skipped:
        names = ", ".join(diagnosis.skipped)
        parts.append(
            f"not read, since it is neither text nor a dump of the flight recorder, or not open to you: {names}"
        )
    if diagnosis.found:
        return "\n\n".join(parts)
    read = f"{_count(diagnosis.logs, 'log')}, {_count(diagnosis.lines, 'line')}"
    return "\n".join([f"no known failure ({read})", *parts])


def _full(one: Found) -> str:
    label = "cause" if one.role is Role.CAUSE else "also"
    lines = [f"{label}: {one.failure.title} [{one.failure.code}]"]
    lines += [f"  {place.where}: {place.text}" for place in one.places[:3] or (one.place,)]
    lines += [f"  {line}" for line in (*one.details, _extent(one)) if line and line not in one.place.text]
    lines += [f"  why: {one.failure.cause}", f"  repair: {one.failure.repair}"]
    if one.failure.command:
        lines.append(f"  try: {one.failure.command}")
    return "\n".join(lines)


def _short(one: Found) -> str:
    extent = f" ({_extent(one)})" if _extent(one) else ""
    return f"  {one.failure.code} {one.failure.title}{extent}; first {one.place.where}"


def _extent(one: Found) -> str:
    """Return how many lines and which ranks show a failure, or "" for one line of no rank."""
    ranks = named(one.ranks) if one.ranks else ""
    times = _count(one.count, "line") if one.count > 1 else ""
    return ", ".join(part for part in (times, ranks) if part)


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


__all__ = ["Diagnosis", "Failure", "Found", "Role", "as_text", "diagnose", "findings"]
