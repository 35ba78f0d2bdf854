"""Find the rank that stalled a collective, by comparing what each rank had launched at the timeout.

A collective ends when every rank of its group has launched it. The rank at fault launched fewer collectives, launched
another one, or reports nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

_WORK: Final = re.compile(
    r"WorkNCCL\((?P<fields>[^()]*(?:\([^()]*\)[^()]*)*)\) ran for (?P<ms>[0-9]{1,15}) milliseconds"
)
# torch 2.15 names the rank and the group, and no collective.
_EXPIRED: Final = re.compile(
    r"\[TC\]\[rank=(?P<rank>\d{1,6})\]\[name=(?P<name>[^\]]*)\] "
    r"(?:Operation timed out after|Aborting process on rank \d+ due to timeout)"
)
_FIELD: Final = re.compile(r"(\w+(?:\(ms\))?)=([^,\s)]+)")
_RANK: Final = re.compile(r"\[Rank ([0-9]{1,6})\]|\[PG [^\]]*?Rank ([0-9]{1,6})\]")
_GLOBAL: Final = re.compile(r"\[rank([0-9]{1,6})\]:")
_PAIRED: Final = frozenset({"SEND", "RECV"})  # between two ranks: their numbers are not those of the group
_GROUP: Final = re.compile(
    r"\[PG (?:ID )?(?P<id>\S+?)(?: PG GUID (?P<guid>[^\s(]+))?\s?(?:\((?P<name>[^)]*)\) ?)?\s?Rank (?P<rank>\d+)\]"
)
_COUNTS: Final = re.compile(
    r"(?:at (?:NCCL )?work(?: sequence id)?: (?P<seq>-?\d+).*?)?"
    r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+).*?last completed (?:NCCL )?work: (?P<completed>-?\d+)",
    re.IGNORECASE,
)
MOST_RANKS: Final = 1_000_000  # no job has more, and a log may name any number
_MOST_GROUPS: Final = 1000  # a job of ten kinds of parallelism has about a hundred in the logs of one rank
_MOST_STATES: Final = 200_000  # of all ranks in all groups
_LATE: Final = 30.0  # seconds after the first rank; below that it is the jitter of steps and clocks
_WORLD: Final = ("", "0", "default_pg")  # the names of the group of all ranks
_EQUAL: Final = re.compile(r"ALL_?REDUCE|BROADCAST|_REDUCE_SCATTER_BASE|_ALLGATHER_BASE", re.IGNORECASE)
_DESYNC: Final = re.compile(
    r"\[(?P<ended>[\d, ]+)\] finished collective #(?P<last>\d+), but didn't join"
    r"|ranks \[(?P<never>[\d, ]+)\] are the lagging ranks"
)


class CollectiveVerdict(Enum):
    """Why a collective did not end; the values are names in the catalogue."""

    TIMEOUT = "nccl-watchdog-timeout"  # nothing to compare
    BEHIND = "rank-fell-behind"
    MISMATCH = "collectives-differ"
    STALLED = "all-ranks-waited"
    SILENT = "rank-silent"


@dataclass(frozen=True)
class Work:
    """One collective as one rank launched it."""

    op: str = ""
    size: str = ""
    place: str = ""  # where the program launched it, from a flight recorder


@dataclass
class CollectiveState:
    """The progress of one rank in one group."""

    waiting: int | None = None  # the collective that did not end
    enqueued: int | None = None
    completed: int | None = None
    works: dict[int, Work] = field(default_factory=dict)
    started: dict[int, float] = field(default_factory=dict)  # when each was launched, in seconds
    evidence: str = ""  # file:line
    is_expired: bool = False  # its watchdog saw a timeout, perhaps without the collective's number

    @property
    def launched(self) -> int | None:
        """Return the newest collective that this rank is known to have launched."""
        known = [number for number in (self.enqueued, self.waiting) if number is not None]
        return max(known, default=None)

    def add_work(self, fields: Mapping[str, str], began: float | None) -> None:
        """Add a collective that did not end, as the watchdog describes it."""
        op, number = fields.get("OpType", ""), fields.get("SeqNum", "")
        if op in _PAIRED or not number.isdecimal():
            return
        seq = int(number)
        self.waiting = seq if self.waiting is None else min(self.waiting, seq)
        # Coalesced calls have no operation of their own, and the size is not that of one call.
        self.works[seq] = Work() if op == "COALESCED" else Work(op=op, size=fields.get("NumelIn", ""))
        if began is not None:
            self.started[seq] = began


@dataclass(frozen=True)
class Stall:
    """The verdict on one group of ranks, in words."""

    verdict: CollectiveVerdict
    ranks: tuple[int, ...]  # to look at first
    message: str
    evidence: str


class Ranks:
    """Collects what the ranks say about their collectives, and judges it at the end."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[int, CollectiveState]] = {}
        self.world = 0  # how many ranks there are; 0 where no log says it
        self._readers: set[int] = set()
        self._desync: list[Stall] = []  # the last one
        self._states = 0

    def add_world(self, size: int) -> None:
        """Note a number of ranks that a log names; the largest counts."""
        if size <= MOST_RANKS:
            self.world = max(self.world, size)

    def add_reader(self, rank: int | None) -> None:
        """Note a rank that a log has lines of."""
        if rank is not None:
            self._readers.add(rank)

    @property
    def here(self) -> tuple[int, ...]:
        """Return the ranks that have lines in these logs."""
        return tuple(sorted(self._readers))

    @property
    def missing(self) -> tuple[int, ...]:
        """Return the ranks that have no lines in these logs, where their number is known."""
        return tuple(sorted(set(range(self.world)) - self._readers)) if self._readers else ()

    def add_line(self, text: str, rank: int | None, where: str, time: float | None = None) -> None:
        """Read one line of a watchdog, of any version of torch; `time` is the line's own, in seconds."""
        for desync in _DESYNC.finditer(text):
            self._add_desync(desync, where)
        # `[rankN]:` before a line is the global rank. `Rank N` in the line is the rank in its group.
        expired = _EXPIRED.search(text)
        if expired and expired["name"] in _WORLD:
            self.add_world(int(expired["rank"]) + 1)
        inner = _GLOBAL.search(text) or _RANK.search(text)
        number = next((int(group) for group in inner.groups() if group), None) if inner else rank
        if number is None and expired:
            number = int(expired["rank"])
        if number is None:
            return
        group = _GROUP.search(text)
        if expired:
            self._state(expired["name"], number, where).is_expired = True
        elif work := _WORK.search(text):
            began = None if time is None else time - int(work["ms"]) / 1000
            state = self._state(_group_name(group) if group else "", number, where)
            state.add_work(dict(_FIELD.findall(work["fields"])), began)
        elif group and (counts := _COUNTS.search(text)):
            state = self._state(_group_name(group), number, where)
            state.enqueued, state.completed = int(counts["enqueued"]), int(counts["completed"])
            if counts["seq"] is not None and state.waiting is None:
                state.waiting = int(counts["seq"])

    def add_state(self, group: str, rank: int, state: CollectiveState) -> None:
        """Add the state of one rank from its flight recorder."""
        if self._has_room(group, rank):
            self._groups.setdefault(group, {})[rank] = state

    def stalls(self) -> tuple[Stall, ...]:
        """Return a verdict for each group in which a collective did not end."""
        stalls = [stall for name, ranks in self._joined().items() if (stall := self._judge(name, ranks))]
        if self._desync:
            return (
                self._desync[-1],
                *(stall for stall in stalls if stall.verdict is not CollectiveVerdict.TIMEOUT),
            )
        return tuple(stalls)

    def _state(self, group: str, rank: int, where: str) -> CollectiveState:
        if not self._has_room(group, rank):
            return CollectiveState()  # of a log that names more groups than any job has
        state = self._groups.setdefault(group, {}).setdefault(rank, CollectiveState())
        state.evidence = state.evidence or where
        return state

    def _has_room(self, group: str, rank: int) -> bool:
        """Whether this rank of this group is known, or one more may be."""
        if rank in self._groups.get(group, ()):
            return True
        self._states += 1
        return self._states <= _MOST_STATES and (group in self._groups or len(self._groups) < _MOST_GROUPS)

    def _add_desync(self, desync: re.Match[str], where: str) -> None:
        ranks = tuple(map(int, re.findall(r"\d+", desync["ended"] or desync["never"])))
        message = f"{named(ranks)} never launched any collective"
        if desync["ended"]:
            last = int(desync["last"])
            message = f"{named(ranks)} finished collective {last} and never launched {last + 1}"
        self._desync = [Stall(CollectiveVerdict.BEHIND, ranks, message, where)]

    def _joined(self) -> dict[str, dict[int, CollectiveState]]:
        """Return the groups. A line without a group belongs to the group in which its rank waits for the same work."""
        groups = {name: dict(ranks) for name, ranks in self._groups.items() if name}
        for rank, loose in self._groups.get("", {}).items():
            fits = [
                states[rank]
                for states in groups.values()
                if rank in states and states[rank].waiting == loose.waiting
            ]
            if fits:
                fits[0].works |= loose.works
                fits[0].started |= loose.started
                fits[0].evidence = loose.evidence
            else:
                # A rank without counts belongs to the group of the others, if there is only one.
                name = next(iter(groups)) if len(groups) == 1 else ""
                groups.setdefault(name, {}).setdefault(rank, loose)
        return groups

    def _judge(self, name: str, states: Mapping[int, CollectiveState]) -> Stall | None:
        ranks = {rank: state for rank, state in states.items() if state.launched is not None}
        waiting = {rank: state.waiting for rank, state in ranks.items() if state.waiting is not None}
        if not waiting:
            return self._unnumbered(name, states)
        first = min(waiting, key=lambda rank: (waiting[rank], rank))
        evidence = ranks[first].evidence
        if stall := _differ(ranks, evidence) or _behind(ranks, waiting, evidence):
            return stall
        missing = self._silent(name, ranks)
        if not missing and len(ranks) > 1:
            return _stalled(ranks, waiting, first)
        message = f"{named(waiting)} waited for {_work(ranks[first], waiting[first])}"
        if missing and len(missing) < len(ranks):
            message += f"; nothing about it from {named(missing)} of {self.world}"
            return Stall(CollectiveVerdict.SILENT, missing, message, evidence)
        if missing:
            message += f"; most logs of the job are not here: {named(missing)} of {self.world} say nothing"
        else:
            message += ", and no other rank says what it did"
        return Stall(CollectiveVerdict.TIMEOUT, tuple(sorted(waiting)), message, evidence)

    def _silent(self, name: str, ranks: Iterable[int]) -> tuple[int, ...]:
        """Return the ranks of the group of all ranks that are not among these."""
        return tuple(sorted(set(range(self.world)) - set(ranks))) if name in _WORLD else ()

    def _unnumbered(self, name: str, states: Mapping[int, CollectiveState]) -> Stall | None:
        """Judge timeouts that name no collective: a rank that saw none is the one that others wait for."""
        expired = [rank for rank, state in sorted(states.items()) if state.is_expired]
        if not expired:
            return None
        message = f"{named(expired)} waited for a collective whose number torch does not print"
        missing, evidence = self._silent(name, states), states[expired[0]].evidence
        if missing and len(missing) < len(expired):
            message += f"; nothing about it from {named(missing)} of {self.world}"
            return Stall(CollectiveVerdict.SILENT, missing, message, evidence)
        return Stall(
            CollectiveVerdict.TIMEOUT, tuple(expired), f"{message}; the recorder's dumps do", evidence
        )


def _differ(ranks: Mapping[int, CollectiveState], evidence: str) -> Stall | None:
    """Find the first collective that ranks launched with another operation or another size."""
    launched: dict[int, dict[int, Work]] = {}
    for rank, state in ranks.items():
        for number, work in state.works.items():
            launched.setdefault(number, {})[rank] = work
    for number, works in sorted(launched.items()):
        odd = _odd({rank: work.op for rank, work in works.items()})
        what = "another operation"
        # In other operations, such as scatter and send, ranks may give different sizes.
        if not odd and all(_EQUAL.search(work.op) for work in works.values()):
            odd, what = _odd({rank: work.size for rank, work in works.items()}), "another size"
        if odd:
            others = sorted(set(works) - set(odd))
            usual = next(rank for rank in works if rank not in odd)
            message = (
                f"collective {number} is {what} on {named(odd)}: {_described(works[odd[0]])}, while "
                f"{named(others)} launched {_described(works[usual])}"
            )
            return Stall(CollectiveVerdict.MISMATCH, odd, message, ranks[odd[0]].evidence or evidence)
    return None


def _behind(ranks: Mapping[int, CollectiveState], waiting: Mapping[int, int], evidence: str) -> Stall | None:
    """Find ranks whose newest collective is older than the one that others wait for."""
    wanted = max(waiting.values())
    late = {rank: newest for rank, state in sorted(ranks.items()) if (newest := state.launched or 0) < wanted}
    if not late:
        return None
    others = sorted(rank for rank, number in waiting.items() if number == wanted)
    state = ranks[next(iter(late))]
    if all(ranks[rank].completed == newest for rank, newest in late.items()):
        why = (
            "it had finished all it launched: its loop ended a step earlier, or it was busy outside NCCL "
            "(a checkpoint, an evaluation, data)"
        )
    else:
        why = f"it was itself waiting for {_work(state, state.waiting)}"
    message = (
        f"{named(others)} waited for {_work(ranks[others[0]], wanted)}, which {named(late)} never launched "
        f"(newest: {max(late.values())}); {why}"
    )
    return Stall(CollectiveVerdict.BEHIND, tuple(late), message, state.evidence or evidence)


def _stalled(ranks: Mapping[int, CollectiveState], waiting: Mapping[int, int], first: int) -> Stall:
    """Judge a collective that every rank launched: data did not move, or one rank came too late."""
    number, evidence = waiting[first], ranks[first].evidence
    launched = f"launched {_work(ranks[first], number)}"
    times = {rank: ranks[rank].started[number] for rank in waiting if number in ranks[rank].started}
    late = sorted(rank for rank, time in times.items() if time - min(times.values()) > _LATE)
    if late and len(late) < len(times):
        wait = max(times.values()) - min(times.values())
        message = f"{named(late)} {launched} {wait:.0f} s after the first rank: slow, not stuck"
        return Stall(CollectiveVerdict.BEHIND, tuple(late), message, ranks[late[0]].evidence or evidence)
    message = f"{named(ranks)} {launched}, and {named(waiting)} saw no end of it"
    return Stall(CollectiveVerdict.STALLED, tuple(sorted(ranks)), message, evidence)


def _odd(values: Mapping[int, str]) -> tuple[int, ...]:
    """Return the ranks of the rarest value, where values differ. Of equally rare values, the one of the higher ranks counts."""
    by_value: dict[str, list[int]] = {}
    for rank, value in sorted(values.items()):
        if value:
            by_value.setdefault(value, []).append(rank)
    if len(by_value) < 2:
        return ()
    rarest: list[int] = min(by_value.values(), key=lambda ranks: (len(ranks), -ranks[0]))
    return tuple(rarest)


def _group_name(group: re.Match[str]) -> str:
    return group["guid"] or group["id"]  # groups of one kind share their name


def _work(state: CollectiveState, number: int | None) -> str:
    work = state.works.get(number) if number is not None else None
    return f"collective {number} ({_described(work)})" if work and work.op else f"collective {number}"


def _described(work: Work) -> str:
    size = f" of {work.size}" if work.size and len(work.size) < 20 else ""
    place = f" at {work.place}" if work.place else ""
    return f"{work.op or 'unknown'}{size}{place}"


def named(ranks: Iterable[int]) -> str:
    """Return ranks in words: `rank 3`, or `ranks 0-2, 5`."""
    spans: list[list[int]] = []
    numbers = sorted(ranks)
    for number in numbers:
        if spans and spans[-1][-1] == number - 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    listed = ", ".join("-".join(map(str, span)) for span in spans)
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {listed}"
