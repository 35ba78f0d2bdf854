"""Scan a log once for all literals of the catalogue, then match the few lines that have one.

The search is RE2's: one automaton whatever the number of literals, without backtracking, so that no line can make it slow.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import re2

from envbuilder.node.diagnose.catalogue import Failure, Mark
from envbuilder.node.diagnose.collectives import Ranks
from envbuilder.node.diagnose.line import WIDEST, plain, rank_of, rank_of_file, time_of, unlabelled
from envbuilder.node.diagnose.logs import Block, Log

_TRACEBACK: Final = b"Traceback (most recent call last)"
# The last line of a Python traceback, with or without a message.
_EXCEPTION: Final = re.compile(
    rb"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Timeout|Failure|Exit|Interrupt))(?:: (?P<message>.*))?$"
)
_ENDINGS: Final = rb"(?:Error|Exception|Timeout|Failure|Exit|Interrupt)(?:: |[\r\n\x1b]|$)"
_WORLD: Final = re.compile(rb"\b(?:nranks |world_size[=: ]+)(\d{1,6})\b")
_REACH: Final = 2000  # lines between the head of a traceback and its last line
_LOOK: Final = 4096  # bytes on either side of a match in which a carriage return ends the line


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of a log: where it is, what it says, which rank wrote it, and when."""

    where: str  # file:line
    text: str
    rank: int | None = None
    time: float | None = None
    order: tuple[int, int] = (0, 0)  # number of the log, line


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A line that shows a failure; without `failure`, an unknown exception that ended a traceback."""

    place: Place
    failure: Failure | None = None
    groups: dict[str, str] = field(default_factory=dict)
    is_hint: bool = False


class Search:
    """All literals of a catalogue; made once, used for every log."""

    def __init__(self, catalogue: Sequence[Failure]) -> None:
        pairs = [(failure, mark) for failure in catalogue for mark in failure.marks]
        literals = sorted({mark.has for _, mark in pairs})
        self._by_literal: list[list[tuple[Failure, Mark]]] = [
            [pair for pair in pairs if pair[1].has == literal] for literal in literals
        ]
        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.never_capture = True
        options.max_mem = 64 << 20
        quoted = [re.escape(literal) for literal in literals]
        known = [*quoted, re.escape(_TRACEBACK), b"nranks ", b"world_size"]
        self._known = re2.compile(b"|".join(known), options)
        self._known_or_ending = re2.compile(b"|".join([*known, _ENDINGS]), options)
        self._which = re2.Set.SearchSet(options)
        for one in quoted:
            self._which.Add(one)
        self._which.Compile()

    def lines(self, block: Block, in_traceback: Callable[[], bool]) -> Iterator[tuple[int, bytes]]:
        """Return the lines of a block that hold a literal, each once, with its number.

        While a traceback is open, lines that may end it are returned as well.
        """
        data, number, counted, start = block.data, block.line, 0, 0
        while found := (self._known_or_ending if in_traceback() else self._known).search(data, start):
            begin, end = _bounds(data, found.start())
            number += data.count(b"\n", counted, begin)
            counted = begin
            yield number, data[max(begin, found.start() - WIDEST) : min(end, found.start() + WIDEST)]
            start = max(end, found.end())

    def failures(self, line: bytes) -> Iterator[tuple[Failure, Mark, dict[str, str]]]:
        """Return the failures that a line shows, each once."""
        found: set[str] = set()
        for index in self._which.Match(line) or ():
            for failure, mark in self._by_literal[index]:
                if failure.code not in found and (groups := mark.groups(line)) is not None:
                    found.add(failure.code)
                    yield failure, mark, groups


class Scanner:
    """Reads one log. Between blocks it keeps where each writer's last traceback began."""

    def __init__(self, search: Search, log: Log, number: int, ranks: Ranks) -> None:
        self._search = search
        self._log = log
        self._number = number
        self._ranks = ranks
        self._rank = rank_of_file(log.name)  # of the writer of the whole file
        self._tracebacks: dict[int | None, int] = {}
        self.lines = 0

    def scan(self) -> Iterator[Seen]:
        """Return what the log shows, and tell `ranks` how many ranks there are."""
        if self._rank is not None:
            self._ranks.add_world(self._rank + 1)
        for block in self._log.blocks():
            for number, raw in self._search.lines(block, lambda: bool(self._tracebacks)):
                yield from self._line(number, plain(raw))
            self.lines = block.line + block.data.count(b"\n") - block.data.endswith(b"\n")

    def _line(self, number: int, line: bytes) -> Iterator[Seen]:
        rank = rank_of(line)
        self._tracebacks = {one: begun for one, begun in self._tracebacks.items() if number - begun <= _REACH}
        if _TRACEBACK in line:
            self._tracebacks[rank] = number
        if world := _WORLD.search(line):
            self._ranks.add_world(int(world[1]))
        place = Place(
            where=f"{self._log.name}:{number}",
            text=_text(line),
            rank=self._rank if rank is None else rank,
            time=time_of(line),
            order=(self._number, number),
        )
        known = False
        for failure, mark, groups in self._search.failures(line):
            known = True
            yield Seen(place=place, failure=failure, groups=groups, is_hint=mark.is_hint)
        if rank in self._tracebacks and _EXCEPTION.match(words := unlabelled(line)):
            del self._tracebacks[rank]
            if not known:
                yield Seen(place=replace(place, text=_text(words)))


def _bounds(data: bytes, place: int) -> tuple[int, int]:
    """Return where the line of this place begins and ends. A carriage return inside a line also separates."""
    begin = max(data.rfind(b"\n", 0, place), data.rfind(b"\r", max(0, place - _LOOK), place)) + 1
    ends = [end for mark in (b"\n", b"\r") if (end := data.find(mark, place, place + _LOOK)) >= 0]
    if ends:
        return begin, min(ends)
    end = data.find(b"\n", place)
    return begin, len(data) if end < 0 else end


def _text(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return text if len(text) <= 500 else f"{text[:497]}..."
