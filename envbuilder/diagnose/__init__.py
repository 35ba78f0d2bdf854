"""Name the known failure in logs of training, builds and the kernel, with its line and its repair.

logs ──read──▶ blocks ──scan──▶ lines of the catalogue ──judge──▶ cause, others, consequences
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Final

from envbuilder.diagnose.catalogue import Certainty, load_catalogue
from envbuilder.diagnose.collectives import named
from envbuilder.diagnose.judge import Incident, Judge, Role
from envbuilder.diagnose.logs import LogError, open_logs
from envbuilder.diagnose.recorder import is_dump, read_dump
from envbuilder.diagnose.scan import Place, Scanner, Search

UNKNOWN: Final = 10  # the exit code where no failure is known
_KNOWN_BY: Final = {
    Certainty.EXACT: "its exact words",
    Certainty.FAMILY: "words of a family of messages",
    Certainty.COMPARED: "a comparison of the ranks",
    Certainty.GUESS: "a guess from other lines",
}
_FRAME: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_FOREIGN: Final = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<")
_FRAMES: Final = 1000  # lines of a traceback
_WIDTH: Final = 120  # letters of a last line
_ENDS: Final = 8  # last lines of ranks
_SHOWN: Final = 3  # things to collect
# What helps where nothing is known, and the words of logs that already have it.
_TO_COLLECT: Final = (
    (
        ("NVRM:", " kernel:", "] Linux version"),
        "the kernel log of each node: dmesg -T > dmesg-$(hostname).txt",
    ),
    (("NCCL INFO",), "a run with NCCL_DEBUG=INFO, which says what NCCL chose and what failed"),
    (
        ("slurmstepd:", "srun:"),
        "how the job ended: sacct -j JOBID --format=JobID,NodeList,State,ExitCode,MaxRSS",
    ),
    (("most recent call first",), "where each process is now: py-spy dump --pid PID"),
)
_ALL_RANKS: Final = "the log of every rank: torchrun --log-dir logs --redirects 3 --tee 3"


@dataclass(frozen=True)
class Diagnosis:
    """What was read and what was found, the cause first."""

    incidents: tuple[Incident, ...]
    logs: int
    lines: int
    skipped: tuple[str, ...]  # neither text nor a dump, or unreadable
    world: int = 0  # how many ranks there are, where a log says it
    ranks: tuple[int, ...] = ()  # that have lines in the logs
    missing: tuple[int, ...] = ()
    ends: tuple[Place, ...] = ()  # the last lines of the ranks, errors first, then the one that stopped first
    collect: tuple[str, ...] = ()  # what to bring next, where nothing was found

    @property
    def exit_code(self) -> int:
        """0 if a failure is known, otherwise UNKNOWN: a script can tell the two apart. Notes are of good logs too."""
        return 0 if any(incident.role is not Role.NOTE for incident in self.incidents) else UNKNOWN


@functools.cache
def _search() -> Search:
    return Search(load_catalogue())


def diagnose(names: Sequence[str], stdin: IO[bytes], most: int = 0) -> Diagnosis:
    """Read all logs once, with `most` their ends of so many bytes in all; raises LogError for one that is not there."""
    search, judge = _search(), Judge(load_catalogue())
    logs = lines = 0
    skipped: list[str] = []
    ends: list[Place] = []
    words_here = set[str]()
    for number, log in enumerate(open_logs(names, stdin, skipped, most)):
        if is_dump(log.head):
            is_read = read_dump(log.stream, log.name, judge.ranks)
        elif is_read := b"\0" not in log.head:
            scanner = Scanner(search, log, number, judge.ranks)
            for seen in scanner.scan():
                judge.add(seen)
            judge.lengths[number] = scanner.lines
            lines += scanner.lines
            ends += scanner.ends
            around = (log.head + scanner.tail).decode(errors="replace")
            words_here.update(word for words, _ in _TO_COLLECT for word in words if word in around)
        logs += is_read
        if not is_read:
            skipped.append(log.name)
    ranks = judge.ranks
    wanted = [_ALL_RANKS] if ranks.missing or len(ranks.here) < 2 else []
    wanted += [thing for words, thing in _TO_COLLECT if not words_here & set(words)]
    if all(end.time is not None for end in ends):
        ends.sort(key=lambda end: end.time or 0.0)
    ends.sort(key=lambda end: not end.is_error)
    incidents = judge.report()
    return Diagnosis(
        incidents=incidents, logs=logs, lines=lines, skipped=tuple(skipped),
        world=ranks.world, ranks=ranks.here, missing=ranks.missing,
        ends=tuple(ends[:_ENDS]), collect=() if incidents or not lines else tuple(wanted[:_SHOWN]),
    )  # fmt: skip


def as_text(diagnosis: Diagnosis) -> str:
    """Show the cause and other failures in full, and each consequence in one line."""
    parts = [_full(incident) for incident in diagnosis.incidents if incident.role is not Role.CONSEQUENCE]
    after = [_short(incident) for incident in diagnosis.incidents if incident.role is Role.CONSEQUENCE]
    if after:
        parts.append("\n".join(["what followed, most likely from it:", *after]))
    if diagnosis.skipped:
        why = "it is neither text nor a dump of the flight recorder, or not open to you"
        parts.append(f"not read, since {why}: {', '.join(diagnosis.skipped)}")
    here, missing, logs = named(diagnosis.ranks), named(diagnosis.missing), diagnosis.logs
    if diagnosis.missing:
        parts.append(f"ranks: these logs have {here} of {diagnosis.world}, and no lines of {missing}")
    if diagnosis.exit_code != UNKNOWN:
        if logs > 1:
            parts.append(f"{logs} logs were read as those of one job; for several jobs, name the logs of one")
        return "\n\n".join(parts)
    read = f"{_count(diagnosis.logs, 'log')}, {_count(diagnosis.lines, 'line')}"
    return "\n".join([f"no known failure ({read})", *parts, *_silence(diagnosis)])


def brief(diagnosis: Diagnosis) -> str:
    """Return the cause in four lines at most: what, on which rank, where in the program, and the repair."""
    cause = next((incident for incident in diagnosis.incidents if incident.role is Role.CAUSE), None)
    if cause is None:
        ends = [f"{Path(end.where).name}: {end.text[:_WIDTH]}" for end in diagnosis.ends[:_SHOWN]]
        return "\n".join(["no known failure; the last lines:", *ends])
    place, ranks = cause.place, f", {named(cause.ranks)}" if cause.ranks else ""
    line = cause.details[0] if cause.is_verdict else f"{Path(place.where).name}: {place.text}"
    lines = [f"cause: {cause.failure.title} [{cause.failure.code}]{ranks}", f"  {line}"]
    if frame := _program_line(place):
        lines.append(f"  in the program: {frame}")
    return "\n".join([*lines, f"  repair: {cause.failure.repair}"])


def _program_line(place: Place) -> str:
    """Return the innermost frame of the user's own in the traceback that ends at this line of a file, or "" without one."""
    file, _, number = place.where.rpartition(":")
    try:
        with Path(file).open("rb") as stream:
            above = deque(islice(stream, int(number)), _FRAMES)
    except (OSError, ValueError):
        return ""
    frame = ""
    for line in above:
        if "Traceback (most" in (text := line.decode(errors="replace")):
            frame = ""
        elif (match := _FRAME.search(text)) and not _FOREIGN.search(match["file"]):
            frame = f"{Path(match['file']).name}:{match['line']} in {match['function']}"
    return frame


def _silence(diagnosis: Diagnosis) -> list[str]:
    """Say how far the logs got, and what to collect if something failed after all."""
    lines = []
    if diagnosis.ranks and not diagnosis.missing:
        lines.append(f"ranks in the logs: {named(diagnosis.ranks)}")
    if diagnosis.ends:
        lines += ["the last lines:", *(f"  {end.where}: {end.text[:_WIDTH]}" for end in diagnosis.ends)]
    if diagnosis.collect:
        lines.append("if something failed, collect and read again:")
        lines += [f"  {number}. {thing}" for number, thing in enumerate(diagnosis.collect, 1)]
    return lines


def _full(incident: Incident) -> str:
    label = {Role.CAUSE: "cause", Role.NOTE: "note"}.get(incident.role, "also")
    failure = incident.failure
    sure = f"; sure with {incident.surer}" if incident.surer else ""
    lines = [f"{label}: {failure.title} [{failure.code}]"]
    lines += [f"  {place.where}: {place.text}" for place in incident.places[:3] or (incident.place,)]
    more = (*incident.details, _extent(incident))
    lines += [f"  {line}" for line in more if line and line not in incident.place.text]
    lines.append(f"  known by: {_KNOWN_BY[incident.certainty]}{sure}")
    lines += [f"  why: {failure.cause}", f"  repair: {failure.repair}"]
    if failure.command:
        lines.append(f"  try: {failure.command}")
    return "\n".join(lines)


def _short(incident: Incident) -> str:
    extent = f" ({_extent(incident)})" if _extent(incident) else ""
    return f"  {incident.failure.code} {incident.failure.title}{extent}; first {incident.place.where}"


def _extent(incident: Incident) -> str:
    """Return how many lines and which ranks show a failure, or "" for one line of no rank."""
    ranks = named(incident.ranks) if incident.ranks else ""
    times = _count(incident.count, "line") if incident.count > 1 else ""
    return ", ".join(part for part in (times, ranks) if part)


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


__all__ = ["Diagnosis", "Incident", "LogError", "Role", "as_text", "brief", "diagnose"]
