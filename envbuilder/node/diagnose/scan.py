"""Scan a log once for all literals of the catalogue, then match the few lines that have one.

The search is RE2's: one automaton whatever the number of literals, without backtracking, so that no line can make it slow.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import re2

from envbuilder.node.diagnose.catalogue import Failure, Mark
from envbuilder.node.diagnose.line import WIDEST, plain, rank_of, time_of, unlabelled
from envbuilder.node.diagnose.logs import Block

_TRACEBACK: Final = b"Traceback (most recent call last)"
# The last line of a Python traceback, with or without a message.
_EXCEPTION: Final = re.compile(
    rb"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Timeout|Failure|Exit|Interrupt))(?:: (?P<message>.*))?$"
)
_ENDINGS: Final = rb"(?:Error|Exception|Timeout|Failure|Exit|Interrupt)(?:: |[\r\n\x1b]|$)"
_WORLD: Final = re.compile(rb"\b(?:nranks |world_size[=: ]+)(\d{1,6})\b")
_REACH: Final = 2000  # lines between the head of a traceback and its last line
_LOOK: Final = 4096  # bytes of one look of the search ahead of a match


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A line that is a failure's, where it stands, and what it says."""

    failure: Failure
    line: int
    text: str
    rank: int | None
    time: float | None
    groups: dict[str, str]
    is_hint: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """An exception that ended a traceback and is no line of the catalogue."""

    line: int
    text: str
    rank: int | None
    time: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """How many ranks there are, as NCCL or a launcher wrote."""

    size: int


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
        """The lines of a block that hold a literal, each once, with its number.

        While somebody's traceback is open, those as well that may be its last line.
        """
        data, number, counted, start = block.data, block.line, 0, 0
        while found := (self._known_or_ending if in_traceback() else self._known).search(data, start):
            begin, end = _bounds(data, found.start())
            number += data.count(b"\n", counted, begin)
            counted = begin
            yield number, data[max(begin, found.start() - WIDEST) : min(end, found.start() + WIDEST)]
            start = max(end, found.end())

    def failures(self, line: bytes) -> Iterator[tuple[Failure, Mark, dict[str, str]]]:
        """The failures whose line this is, each once."""
        told: set[str] = set()
        for index in self._which.Match(line) or ():
            for failure, mark in self._by_literal[index]:
                if failure.code not in told and (groups := mark.groups(line)) is not None:
                    told.add(failure.code)
                    yield failure, mark, groups


@dataclass(slots=True)
class Scanner:
    """Reads one log; what it keeps between blocks is where each writer's last traceback began."""

    search: Search
    rank: int | None  # of the one who wrote the whole file
    tracebacks: dict[int | None, int] = field(default_factory=dict)
    lines: int = 0

    def scan(self, block: Block) -> Iterator[Seen | Raised | World]:
        for number, raw in self.search.lines(block, lambda: bool(self.tracebacks)):
            line = plain(raw)
            rank = rank_of(line)
            label = self.rank if rank is None else rank
            self.tracebacks = {
                one: begun for one, begun in self.tracebacks.items() if number - begun <= _REACH
            }
            if _TRACEBACK in line:
                self.tracebacks[rank] = number
            if world := _WORLD.search(line):
                yield World(size=int(world[1]))
            known = False
            for failure, mark, groups in self.search.failures(line):
                known = True
                yield Seen(
                    failure=failure,
                    line=number,
                    text=_text(line),
                    rank=label,
                    time=time_of(line),
                    groups=groups,
                    is_hint=mark.is_hint,
                )
            if rank in self.tracebacks and _EXCEPTION.match(words := unlabelled(line)):
                del self.tracebacks[rank]
                if not known:
                    yield Raised(line=number, text=_text(words), rank=label, time=time_of(line))
        self.lines = block.line + block.data.count(b"\n") - block.data.endswith(b"\n")


@functools.cache
def make_search(catalogue: tuple[Failure, ...]) -> Search:
    return Search(catalogue)


def _bounds(data: bytes, place: int) -> tuple[int, int]:
    """Where the line of this place begins and ends; a carriage return inside a line separates as well."""
    begin = max(data.rfind(b"\n", 0, place), data.rfind(b"\r", max(0, place - _LOOK), place)) + 1
    ends = [end for mark in (b"\n", b"\r") if (end := data.find(mark, place, place + _LOOK)) >= 0]
    if ends:
        return begin, min(ends)
    end = data.find(b"\n", place)
    return begin, len(data) if end < 0 else end


def _text(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return text if len(text) <= 500 else f"{text[:497]}..."
