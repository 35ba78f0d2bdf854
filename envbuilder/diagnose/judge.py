"""Order the failures of all logs: the cause, other failures, and consequences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from envbuilder.diagnose.catalogue import Certainty, Failure, Stage, load_xids
from envbuilder.diagnose.collectives import CollectiveVerdict, Ranks, Stall
from envbuilder.diagnose.logs import uptime_of
from envbuilder.diagnose.scan import Link, Place, Raised, Seen

EXCEPTION: Final = "uncaught-exception"
_KEPT: Final = 5  # places of one failure that a report shows
_LAST: Final = 1000  # an exception further from the end of its log was survived
_LATE: Final = (Stage.SYMPTOM, Stage.AFTERMATH)
_BEFORE_CANCEL: Final = ("rank-failed", "task-exited")  # of the aftermath: a reason to cancel a job
_CHAIN: Final = 60.0  # seconds between two events of one GPU, of which the second may follow from the first
_EVENTS: Final = 2000  # of the GPUs that are compared
_BY_NATURE: Final = ("gpu-lost", "gpu-memory-error", "nvlink-error")  # no program causes these
# Exceptions that the end of another process causes.
_ECHO: Final = re.compile(
    r"(?:\w+\.)*(?:Connection\w*?|BrokenPipe|EOF|Cancelled|Timeout|ProcessExited)(?:Error|Exception|Expired)?\b"
    r"|(?:\w+\.)*BrokenProcessPool"
)
_HIDDEN: Final = ("xid", "pci", "failed")  # groups with a meaning of their own


class Role(Enum):
    CAUSE = "cause"
    OTHER = "other"  # as near to the root as the cause; it may be a second one
    CONSEQUENCE = "consequence"
    NOTE = "note"  # nothing failed, but it is worth knowing


@dataclass
class Incident:
    """One failure, with where it was seen; grows while logs are read, and by a bounded amount."""

    failure: Failure
    place: Place  # the first
    role: Role = Role.OTHER  # in the report
    is_hint: bool = True  # until a line that is no hint
    details: list[str] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    last: dict[int, int] = field(default_factory=dict)  # log → its last line
    count: int = 0
    is_verdict: bool = False  # on the lines of other failures
    follows: Incident | None = None  # an earlier failure of the same device
    is_survived: bool = False  # by its process, which another exception ended

    @property
    def certainty(self) -> Certainty:
        if self.is_verdict:
            return Certainty.COMPARED
        return Certainty.GUESS if self.is_hint else self.failure.sure

    @property
    def surer(self) -> str:
        """Return what would make it sure, or "" where the words leave no doubt."""
        logs = "the logs of all ranks, and the kernel log of each node"
        return self.failure.surer or ("" if self.certainty is Certainty.EXACT else logs)

    @property
    def message(self) -> str:
        rank = "" if self.place.rank is None else f"rank {self.place.rank}: "
        detail = f": {self.details[0]}" if self.details else ""
        return f"{rank}{self.failure.title}{detail}"

    def add(self, place: Place, detail: str, *, is_hint: bool) -> None:
        self.count += 1
        self.is_hint &= is_hint
        self.last[place.order[0]] = place.order[1]
        if place.rank is not None:
            self.ranks.add(place.rank)
        is_new = place.rank is None or all(place.rank != known.rank for known in self.places)
        if is_new and len(self.places) < _KEPT:
            self.places.append(place)
        if detail and detail not in self.details and len(self.details) < _KEPT:
            self.details.append(detail)
        if place.time is not None and self.place.time is not None and place.time < self.place.time:
            self.place = place

    def depth(self, others: Iterable[Incident]) -> float:
        """Return the distance from the root; failures of the machine are at 1."""
        if self.follows:
            return self.follows.depth(()) + 0.1
        if self.failure.end:
            return max((other.depth(()) + 0.1 for other in others if other.is_before(self)), default=0.0)
        if self.is_survived:
            return Stage.PROGRAM.depth + 0.1
        # A hint is always further from the root than a failure of a program.
        return max(self.failure.stage.depth, Stage.PROGRAM.depth + 0.5 if self.is_hint else 0)

    def is_before(self, end: Incident) -> bool:
        """Whether this failure may have caused the end."""
        stage, ours, its = self.failure.stage, self.place, end.place
        if self.is_hint or self.failure.end:
            return False
        if stage is Stage.AFTERMATH and self.failure.name not in _BEFORE_CANCEL:
            return False
        if stage in (Stage.MACHINE, Stage.ENVIRONMENT):
            return True
        if ours.order[0] == its.order[0]:
            return ours.order < its.order
        return ours.time is None or its.time is None or ours.time < its.time


class Judge:
    """Collects the lines of all logs, and orders their failures at the end."""

    def __init__(self, catalogue: Sequence[Failure]) -> None:
        self.ranks = Ranks()
        self._by_name = {failure.name: failure for failure in catalogue}
        self._incidents: dict[str, Incident] = {}
        self._raised: list[Raised] = []
        self.lengths: dict[int, int] = {}  # log → its number of lines
        self._events: dict[str, list[tuple[float, Failure]]] = {}  # by GPU, in the order of the log
        self._failed: int | None = None  # the rank that the launcher saw fail first

    def add(self, seen: Seen | Raised) -> None:
        """Count one line of a log."""
        if isinstance(seen, Raised):
            self._raised = [*self._raised[-200:], seen]
            return
        place, failure = seen.place, seen.failure
        if failed := seen.groups.get("failed"):
            self._failed = int(failed)
        if failure.name == CollectiveVerdict.TIMEOUT.value:
            self.ranks.add_line(place.text, place.rank, place.where, place.time)
        if (pci := seen.groups.get("pci")) and len(events := self._events.setdefault(pci, [])) < _EVENTS:
            uptime = uptime_of(place.text)
            moment = place.time if uptime is None else uptime
            events.append((events[-1][0] if moment is None and events else moment or 0.0, failure))
        self._count(failure, place, _detail(seen.groups), is_hint=seen.is_hint)

    def report(self) -> tuple[Incident, ...]:
        """Return every failure once: the cause, then others by stage and time, then consequences."""
        self._add_raised()
        self._add_stalls()
        self._drop_survived()
        self._explain()
        self._chain()
        incidents = sorted(self._incidents.values(), key=self._key)
        if all(incident.is_hint for incident in incidents):
            return tuple(replace(incident, role=Role.NOTE) for incident in incidents if incident.failure.note)
        cause = incidents[0]
        stage = cause.failure.stage
        near = {stage, *(tuple(Stage) if stage in _LATE else _LATE)}  # of what hints may explain
        return tuple(
            replace(incident, role=Role.CAUSE if incident is cause else _role(incident, stage))
            for incident in incidents
            if not incident.is_hint or incident.failure.stage in near
        )

    def _key(self, incident: Incident) -> tuple[object, ...]:
        """Order by stage, then by the rank that the launcher blames, then by time where all have one, then by place."""
        every = self._incidents.values()
        depth = incident.depth(every)
        same = [other for other in every if other.depth(every) == depth]
        timed = all(other.place.time is not None for other in same)
        blamed = self._failed is not None and self._failed in incident.ranks
        return (depth, not blamed, incident.place.time if timed else 0.0, *incident.place.order)

    def _count(self, failure: Failure, place: Place, detail: str, *, is_hint: bool = False) -> Incident:
        incident = self._incidents.setdefault(failure.code, Incident(failure=failure, place=place))
        incident.add(place, detail, is_hint=is_hint)
        return incident

    def _add_raised(self) -> None:
        """Count an exception where its log ends with it, or where other processes noticed a failure."""
        incidents = self._incidents.values()
        is_over = any(incident.failure.stage in _LATE and not incident.is_hint for incident in incidents)
        ends = [raised.place for raised in self._last_raised() if not raised.is_known]
        for place in sorted(ends, key=self._suspicion):
            log, line = place.order
            if is_over or line >= self.lengths.get(log, 0) - _LAST:
                self._count(self._by_name[EXCEPTION], place, place.text)

    def _last_raised(self) -> list[Raised]:
        """Return the exception of each process that ended it, and mark the failures that a process survived.

        In a log without ranks the lines of several processes cannot be told apart: each exception counts as a process
        of its own, except where Python says what it is to the one before it.
        """
        several = (
            self.ranks.world > 1
            or len(self.ranks.here) > 1
            or any(incident.failure.name in _BEFORE_CANCEL for incident in self._incidents.values())
        )
        processes: dict[tuple[int, int | None], tuple[int, int | None]] = {}
        last: dict[tuple[int, int | None], Raised] = {}
        for raised in self._raised:
            writer = (raised.place.order[0], raised.place.rank)
            if raised.link is Link.NONE or writer not in processes:
                is_one = raised.place.rank is not None or not several
                processes[writer] = writer if is_one else raised.place.order
            process = processes[writer]
            before = last.get(process)
            last[process] = _later(before, raised) if before else raised
            if before and before.is_known and last[process] is raised and raised.link is Link.NONE:
                self._mark_survived(before.place)
        return list(last.values())

    def _mark_survived(self, place: Place) -> None:
        log, line = place.order
        for incident in self._incidents.values():
            is_there = incident.last == {log: line} and incident.ranks <= {place.rank}
            incident.is_survived |= is_there and incident.failure.stage is Stage.PROGRAM

    def _suspicion(self, raised: Place) -> tuple[bool, bool]:
        """Put the rank that the launcher blames first, and exceptions that only echo another rank's end last."""
        return raised.rank is None or raised.rank != self._failed, bool(_ECHO.match(raised.text))

    def _drop_survived(self) -> None:
        """Drop failures that a program survived: it went on for long, and no other process noticed."""
        solid = [incident for incident in self._incidents.values() if not incident.is_hint]
        if all(incident.failure.stage is Stage.PROGRAM for incident in solid):
            for incident in solid:
                if all(line < self.lengths.get(log, 0) - _LAST for log, line in incident.last.items()):
                    del self._incidents[incident.failure.code]

    def _explain(self) -> None:
        """Let a failure that explains another one take its place, and drop it where there is nothing to explain."""
        for incident in [incident for incident in self._incidents.values() if incident.failure.explains]:
            explained = self._incidents.get(incident.failure.explains)
            if explained is not None:
                incident.is_hint, explained.follows = False, incident
            elif incident.is_hint and not incident.failure.note:
                del self._incidents[incident.failure.code]

    def _chain(self) -> None:
        """Let a failure follow an earlier one of its GPU. Each time that it is seen, the earlier one was there before."""
        before: dict[str, set[str]] = {}
        for events in self._events.values():
            first, last = None, 0.0
            for moment, failure in events:
                if first is None or moment - last > _CHAIN:
                    solid = not self._incidents[failure.code].is_hint and failure.stage is not Stage.AFTERMATH
                    first = failure if solid else None
                earlier = {first.code} if first else set()
                before[failure.code] = before.get(failure.code, earlier) & earlier
                last = moment
        for code, earlier in before.items():
            follower = self._incidents[code]
            if follower.failure.stage is not Stage.AFTERMATH and not follower.is_hint:
                first_of_them = min(earlier - {code}, default="")
                follower.follows = self._incidents.get(first_of_them)

    def _add_stalls(self) -> None:
        """Replace timeouts by the verdict on the ranks that explains them."""
        stalls = self.ranks.stalls()
        timeouts = self._incidents.get(self._by_name[CollectiveVerdict.TIMEOUT.value].code)
        for stall in stalls:
            if stall.verdict is not CollectiveVerdict.TIMEOUT:
                self._add_stall(stall, timeouts)
            elif timeouts is not None and stall.message not in timeouts.details:
                timeouts.details.insert(0, stall.message)
        if timeouts is not None and any(stall.verdict is not CollectiveVerdict.TIMEOUT for stall in stalls):
            del self._incidents[timeouts.failure.code]

    def _add_stall(self, stall: Stall, timeouts: Incident | None) -> None:
        places = timeouts.places if timeouts else []
        place = next((place for place in places if place.where == stall.evidence), None)
        if place is None:
            place = timeouts.place if timeouts else Place(where=stall.evidence, text=stall.message)
        incident = self._count(self._by_name[stall.verdict.value], place, stall.message)
        incident.is_verdict = True
        incident.ranks.update(stall.ranks)
        incident.count = max(incident.count, timeouts.count if timeouts else 0)
        incident.places += [place for place in places if place not in incident.places]


def _later(before: Raised, raised: Raised) -> Raised:
    """Return the one of two exceptions in a process that ended it, the second one unless something speaks against that."""
    is_echo = bool(_ECHO.match(raised.place.text)) and not _ECHO.match(before.place.text)
    is_known = raised.link is Link.HANDLED and before.is_known and not raised.is_known
    first = raised.link in (Link.CAUSED, Link.ASIDE) or is_echo or is_known
    return before if first and before.link is not Link.ASIDE else raised


def _role(incident: Incident, first: Stage) -> Role:
    """Return the role of a failure that is not the cause, whose stage is `first`."""
    stage = incident.failure.stage
    if incident.follows and incident.failure.name in _BY_NATURE:
        return Role.OTHER
    is_late = stage in _LATE or (stage is Stage.PROGRAM and first is not Stage.PROGRAM)
    followed = incident.follows or incident.failure.end or is_late
    return Role.CONSEQUENCE if followed else Role.OTHER


def _detail(groups: Mapping[str, str]) -> str:
    """Describe the named groups of a line in words."""
    if number := groups.get("xid"):
        xid = load_xids().get(int(number))
        device = f" on {groups['pci']}" if "pci" in groups else ""
        return f"Xid {number}{device}: {f'{xid.meaning}; {xid.action}' if xid else 'not in the table'}"
    words = {name.replace("_", " "): value for name, value in groups.items() if name not in _HIDDEN}
    return ", ".join(f"{name} {value}" for name, value in words.items())
