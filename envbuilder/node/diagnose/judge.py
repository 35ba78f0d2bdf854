"""Order the failures of all logs: the cause, other failures, and consequences."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from envbuilder.node.diagnose.catalogue import Failure, Stage
from envbuilder.node.diagnose.collectives import Ranks, Stall, Verdict
from envbuilder.node.diagnose.scan import Raised, Seen, World
from envbuilder.node.diagnose.xid import load_xids

EXCEPTION: Final = "uncaught-exception"
_KEPT: Final = 5  # places of one failure that a report shows
_LAST: Final = 1000  # an exception further from the end of its log was survived
_LATE: Final = (Stage.SYMPTOM, Stage.AFTERMATH)
# What a process sees of another one's end.
_ECHO: Final = re.compile(
    r"(?:\w+\.)*(?:Connection\w*?|BrokenPipe|EOF|Cancelled|Timeout|ProcessExited)(?:Error|Exception|Expired)?\b"
    r"|(?:\w+\.)*BrokenProcessPool"
)
_HIDDEN: Final = ("xid", "pci", "failed")  # groups with a meaning of their own


class Role(StrEnum):
    CAUSE = "cause"
    OTHER = "other"  # as near to the root as the cause; it may be a second one
    CONSEQUENCE = "consequence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something was seen, and when."""

    where: str  # file:line
    text: str
    rank: int | None = None
    time: float | None = None
    order: tuple[int, int] = (0, 0)  # number of the log, line


@dataclass(slots=True, kw_only=True)
class Tally:
    """One failure, with where it was seen; grows while logs are read, and by a bounded amount."""

    failure: Failure
    first: Place
    is_hint: bool = True  # until a line that is none in good logs
    details: list[str] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    last: dict[int, int] = field(default_factory=dict)  # log → its last line
    count: int = 0

    def add(self, place: Place, detail: str, *, is_hint: bool) -> None:
        self.count += 1
        self.is_hint &= is_hint
        self.last[place.order[0]] = place.order[1]
        if place.rank is not None:
            self.ranks.add(place.rank)
        if len(self.places) < _KEPT and all(
            place.rank != one.rank or one.rank is None for one in self.places
        ):
            self.places.append(place)
        if detail and detail not in self.details and len(self.details) < _KEPT:
            self.details.append(detail)
        if place.time is not None and self.first.time is not None and place.time < self.first.time:
            self.first = place

    def depth(self, others: Iterable["Tally"]) -> float:
        """How far from the root it is, the machine at 1."""
        if self.failure.is_end:
            return max((one.depth(()) + 0.1 for one in others if one.is_before(self)), default=0.0)
        # A hint is never nearer to the root than what a program said of itself.
        return max(self.failure.stage.value, Stage.PROGRAM.value + 0.5 if self.is_hint else 0)

    def is_before(self, end: "Tally") -> bool:
        """Whether it may be the reason for that end of everything."""
        stage, ours, its = self.failure.stage, self.first, end.first
        if self.is_hint or self.failure.is_end or stage is Stage.AFTERMATH:
            return False
        if stage in (Stage.MACHINE, Stage.ENVIRONMENT):
            return True
        if ours.order[0] == its.order[0]:
            return ours.order < its.order
        return ours.time is None or its.time is None or ours.time < its.time


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One entry of the report: a failure in its role."""

    failure: Failure
    role: Role
    place: Place
    places: tuple[Place, ...]
    details: tuple[str, ...]
    ranks: tuple[int, ...]
    count: int

    @property
    def message(self) -> str:
        detail = f": {self.details[0]}" if self.details else ""
        return f"{self.failure.title}{detail}"


class Judge:
    """Takes what the scanners saw, log after log."""

    def __init__(self, catalogue: Sequence[Failure]) -> None:
        self.ranks = Ranks()
        self._by_name = {failure.name: failure for failure in catalogue}
        self._tallies: dict[str, Tally] = {}
        self._raised: list[Place] = []
        self._lengths: dict[int, int] = {}
        self._failed: int | None = None  # the rank that the launcher saw fail first

    def add(self, log: int, name: str, seen: Seen | Raised | World) -> None:
        """One line of the log of that number and name."""
        if isinstance(seen, World):
            self.ranks.add_world(seen.size)
            return
        where = f"{name}:{seen.line}"
        place = Place(where=where, text=seen.text, rank=seen.rank, time=seen.time, order=(log, seen.line))
        if isinstance(seen, Raised):
            self._raised = [*self._raised[-200:], place]
            return
        if seen.groups.get("failed"):
            self._failed = int(seen.groups["failed"])
        if seen.failure.name == Verdict.TIMEOUT.value:
            self.ranks.add_line(seen.text, seen.rank, where, seen.time)
        self._tally(seen.failure, place, _detail(seen), is_hint=seen.is_hint)

    def end_of_log(self, log: int, lines: int) -> None:
        """That log has so many lines."""
        self._lengths[log] = lines

    def report(self) -> tuple[Found, ...]:
        """Every failure once: the cause, then others by their stage and time, then what followed."""
        self._add_raised()
        self._add_stalls()
        self._drop_survived()
        tallies = sorted(self._tallies.values(), key=self._key)
        if all(tally.is_hint for tally in tallies):
            return ()
        first = tallies[0].failure.stage
        kept = [tally for tally in tallies if not tally.is_hint or _explains(tally.failure.stage, first)]
        return tuple(
            Found(
                failure=tally.failure,
                role=_role(index, tally, first),
                place=tally.first,
                places=tuple(tally.places),
                details=tuple(tally.details),
                ranks=tuple(sorted(tally.ranks)),
                count=tally.count,
            )
            for index, tally in enumerate(kept)
        )

    def _key(self, tally: Tally) -> tuple[object, ...]:
        """Stage first; within it the rank that the launcher blames, then time where all say it, then the place."""
        tallies = self._tallies.values()
        depth = tally.depth(tallies)
        same = [one for one in tallies if one.depth(tallies) == depth]
        timed = all(one.first.time is not None for one in same)
        blamed = self._failed is not None and self._failed in tally.ranks
        return (depth, not blamed, tally.first.time if timed else 0.0, *tally.first.order)

    def _tally(self, failure: Failure, place: Place, detail: str, *, is_hint: bool = False) -> Tally:
        tally = self._tallies.get(failure.code)
        if tally is None:
            tally = self._tallies[failure.code] = Tally(failure=failure, first=place)
        tally.add(place, detail, is_hint=is_hint)
        return tally

    def _add_raised(self) -> None:
        """An exception counts where its log ends with it, or where others noticed that something failed."""
        is_over = any(one.failure.stage in _LATE and not one.is_hint for one in self._tallies.values())
        for place in sorted(self._raised, key=self._suspicion):
            log, line = place.order
            if is_over or line >= self._lengths.get(log, 0) - _LAST:
                self._tally(self._by_name[EXCEPTION], place, place.text)

    def _suspicion(self, raised: Place) -> tuple[bool, bool]:
        """The rank that the launcher blames comes first; what only echoes another one's end comes last."""
        return raised.rank is None or raised.rank != self._failed, bool(_ECHO.match(raised.text))

    def _drop_survived(self) -> None:
        """A program that went on for long after a failure of its own, missed by nobody, got over it."""
        solid = [one for one in self._tallies.values() if not one.is_hint]
        if all(one.failure.stage is Stage.PROGRAM for one in solid):
            for tally in solid:
                if all(line < self._lengths.get(log, 0) - _LAST for log, line in tally.last.items()):
                    del self._tallies[tally.failure.code]

    def _add_stalls(self) -> None:
        """Each verdict on the ranks takes the place of the timeouts that it explains."""
        stalls = self.ranks.stalls()
        timeouts = self._tallies.get(self._by_name[Verdict.TIMEOUT.value].code)
        for stall in stalls:
            if stall.verdict is not Verdict.TIMEOUT:
                self._add_stall(stall, timeouts)
            elif timeouts is not None and stall.message not in timeouts.details:
                timeouts.details.insert(0, stall.message)
        if timeouts is not None and any(stall.verdict is not Verdict.TIMEOUT for stall in stalls):
            del self._tallies[timeouts.failure.code]

    def _add_stall(self, stall: Stall, timeouts: Tally | None) -> None:
        places = timeouts.places if timeouts else []
        place = next((one for one in places if one.where == stall.evidence), None)
        if place is None:
            place = timeouts.first if timeouts else Place(where=stall.evidence, text=stall.message)
        tally = self._tally(self._by_name[stall.verdict.value], place, stall.message)
        tally.ranks.update(stall.ranks)
        tally.count = max(tally.count, timeouts.count if timeouts else 0)
        tally.places += [one for one in places if one not in tally.places]


def _explains(hint: Stage, cause: Stage) -> bool:
    return hint is cause or hint in _LATE or cause in _LATE


def _role(index: int, tally: Tally, first: Stage) -> Role:
    if index == 0:
        return Role.CAUSE
    stage = tally.failure.stage
    followed = (
        stage in _LATE or tally.failure.is_end or (stage is Stage.PROGRAM and first is not Stage.PROGRAM)
    )
    return Role.CONSEQUENCE if followed else Role.OTHER


def _detail(seen: Seen) -> str:
    """What the groups of a line say in words."""
    if number := seen.groups.get("xid"):
        meaning = load_xids().get(int(number))
        device = f" on {seen.groups['pci']}" if "pci" in seen.groups else ""
        told = f"{meaning.meaning}; {meaning.action}" if meaning else "not in the table"
        return f"Xid {number}{device}: {told}"
    shown = {name: value for name, value in seen.groups.items() if name not in _HIDDEN}
    return ", ".join(_words(shown))


def _words(groups: Mapping[str, str]) -> Iterable[str]:
    return (f"{name.replace('_', ' ')} {value}" for name, value in groups.items())
