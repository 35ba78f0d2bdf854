"""Scan a log once for all literals of the catalogue, then match the few lines that have one.

The search is RE2's, where google-re2 is installed: one automaton whatever the number of literals, without backtracking.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from envbuilder.diagnose.catalogue import Failure, Mark
from envbuilder.diagnose.collectives import Ranks
from envbuilder.diagnose.logs import (
    WIDEST,
    Block,
    Log,
    plain,
    plain_lines,
    rank_of,
    rank_of_file,
    time_of,
    unlabelled,
)

try:
    import re2
except ImportError:  # a node may have nothing but Python
    re2 = None

_TRACEBACK: Final = b"Traceback (most recent call last)"
# The last line of a Python traceback, with or without a message.
_EXCEPTION: Final = re.compile(
    rb"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Timeout|Failure|Exit|Interrupt))(?::(?: (?P<message>.*))?)?$"
)
_ENDINGS: Final = rb"(?-i:Error|Exception|Timeout|Failure|Exit|Interrupt):?(?: |[\r\n\x1b]|$)"
_LINE: Final = b'", line '
_FRAME: Final = re.compile(rb'\s*File "[^"]+", line \d+(?:, in .+)?$')
_LAST_ERROR: Final = b"Last error:"
_WARN: Final = b"NCCL WARN "
# Where a message of torch begins behind another one on the same line.
_BEGINNINGS: Final = re.compile(
    rb"(?<=\S)\s*(?=\[rank\d{1,6}\]:\s?\[[EWF])|(?<=[^:\s])\s*(?=\[[EWF][\d :.]*\w+\.cpp:\d+\])"
)
_WORLD: Final = re.compile(rb"(?:\brank (\d{1,6}) )?\b(?:nranks |world_size[=: ]+)(\d{1,6})\b")
# What a program itself calls information, as engines of containers do, is no failure.
_INFO: Final = re.compile(rb"\blevel(?:=|\":\s?\")(?:info|debug|trace)\b")
_OURS: Final = re.compile(rb"launch: \S+: \| ")  # the cause at the end of a job, which quotes its lines
# The level of a line, as logging of Python, glog, slog and NCCL write it.
_ERROR: Final = re.compile(
    rb"(?<![\w.])(?:ERROR|FATAL|CRITICAL|PANIC)\b|(?i:^|[\s\]:])(?:error|fatal|panic): |\[?\b[EF]\d{3,4} \d\d:|level=(?:error|fatal)|NCCL WARN"
)
_REACH: Final = 2000  # lines between the head of a traceback and its last line
_AFTER: Final = 10  # lines from a frame to the last line of a traceback whose head was cut off
_NEAR: Final = 20  # lines from what stands above a traceback to its head, in a log of several processes
_PASTED: Final = 256 << 10  # bytes of a log that may come from a terminal or a web page, which break lines
_BROKEN: Final = 10  # letters of a literal that is found over the end of a line
_WIDE: Final = 60  # letters of a line that a terminal or a web page may have broken
_TAIL: Final = 16 << 10  # bytes at the end of a log that tell how far it got
_LOOK: Final = 4096  # bytes on either side of a match in which a carriage return ends the line


class Link(Enum):
    """What an exception is to the one before it in the same process."""

    NONE = ""
    HANDLED = "handled"  # the one before was being handled
    CAUSED = "caused"  # the one before is its cause
    ASIDE = "aside"  # it does not end the process
    LATE = "late"  # the ranks of this node had ended, and well: torchrun only waits for the other nodes


# Lines above a traceback that say what it is to the one before it.
_ABOVE: Final = {
    b"During handling of the above exception": Link.HANDLED,
    b"direct cause of the following exception": Link.CAUSED,
    b"Exception ignored in": Link.ASIDE,
    b"Exception in thread": Link.ASIDE,
    b"Error in atexit": Link.ASIDE,
    b"--- Logging error ---": Link.ASIDE,
    b"Error waiting on exit barrier": Link.LATE,
}


@dataclass(frozen=True)
class Place:
    """A line of a log: where it is, what it says, which rank wrote it, and when."""

    where: str  # file:line
    text: str
    rank: int | None = None
    time: float | None = None
    order: tuple[int, int] = (0, 0)  # number of the log, line

    @property
    def is_error(self) -> bool:
        """Whether the line has the level of an error."""
        return _ERROR.search(self.text.encode()) is not None


@dataclass(frozen=True)
class Raised:
    """An exception that ended a traceback."""

    place: Place
    link: Link
    is_known: bool  # its line shows a failure of the catalogue


@dataclass(frozen=True)
class Seen:
    """A line that shows a failure."""

    place: Place
    failure: Failure
    groups: dict[str, str]
    is_hint: bool


class _Patterns:
    """Searches for literals in any case, and for one more pattern. Stands in for RE2."""

    def __init__(self, literals: Sequence[bytes], ending: bytes = b"") -> None:
        self._literals = [(literal.lower(), re.escape(literal)) for literal in literals]
        self._ending = [ending] if ending else []
        self._data = b""
        self._present: re.Pattern[bytes] | None = None

    def search(self, data: bytes, start: int) -> re.Match[bytes] | None:
        """Return the first match from `start` on. A pattern of all literals would be slow, and few are in a block."""
        if data is not self._data:
            self._data, lower = data, data.lower()
            present = [pattern for literal, pattern in self._literals if literal in lower] + self._ending
            self._present = re.compile(b"|".join(present), re.IGNORECASE) if present else None
        return self._present.search(data, start) if self._present else None

    def which(self, line: bytes) -> list[int]:
        """Return the numbers of the literals that are in a line."""
        lower = line.lower()
        return [number for number, (literal, _) in enumerate(self._literals) if literal in lower]


class Search:
    """All literals of a catalogue; made once, used for every log."""

    def __init__(self, catalogue: Sequence[Failure]) -> None:
        by_literal: dict[bytes, list[tuple[Failure, Mark]]] = {}
        for failure in catalogue:
            for mark in failure.lines:
                by_literal.setdefault(mark.has, []).append((failure, mark))
        literals = list(by_literal)
        self._by_literal = list(by_literal.values())
        known = [*sorted(literals), _TRACEBACK, _LINE, _LAST_ERROR, *_ABOVE, b"nranks ", b"world_size"]
        self._known: Any = _Patterns(known)
        self._known_or_ending: Any = _Patterns(known, _ENDINGS)
        self._which: Callable[[bytes], list[int] | None] = _Patterns(literals).which
        if re2:
            options = re2.Options()
            options.encoding = re2.Options.Encoding.LATIN1
            options.never_capture = True
            options.case_sensitive = False
            options.max_mem = 64 << 20
            quoted = list(map(re.escape, known))
            self._known = re2.compile(b"|".join(quoted), options)
            self._known_or_ending = re2.compile(b"|".join([*quoted, _ENDINGS]), options)
            which = re2.Set.SearchSet(options)
            for literal in literals:
                which.Add(re.escape(literal))
            which.Compile()
            self._which = which.Match

    def lines(
        self, block: Block, in_traceback: Callable[[], bool], takes_any: Callable[[], bool]
    ) -> Iterator[tuple[int, bytes]]:
        """Return the lines of a block that hold a literal, each once, with its number.

        While a traceback is open, lines that may end it are returned as well. `takes_any` says whether the next line is, whatever it holds.
        """
        data, number, counted, start = block.data, block.line, 0, 0
        while start < len(data):
            if takes_any():
                stop = data.find(b"\n", start) % (len(data) + 1)  # -1 becomes the end
                place = length = max(start, data.rfind(b"\r", start, stop - 1) + 1)  # what is not overwritten
            elif match := (self._known_or_ending if in_traceback() else self._known).search(data, start):
                place, length = match.start(), match.end()
            else:
                return
            begin, end = _bounds(data, place, start)
            number += data.count(b"\n", counted, begin)
            counted = begin
            yield number, data[max(begin, place - WIDEST) : min(end, place + WIDEST)]
            start = max(end + 1, length)

    def broken(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Return lines that something broke in the middle of a message, whole again, with the number of the first."""
        raw = plain_lines(data)
        for lines, glue in ((raw, b""), ([line.strip() for line in raw], b" ")):
            whole, begins = _joined(lines, glue)
            start = 0
            while match := self._known.search(whole, start):
                start = match.end()
                first, last = (bisect_right(begins, place) - 1 for place in (match.start(), start - 1))
                if last > first:
                    is_broken = start - match.start() >= _BROKEN
                else:
                    is_broken = last + 1 < len(lines) and _goes_on(lines[last], lines[last + 1])
                if is_broken:
                    yield first + 1, glue.join(lines[first : last + 2])

    def failures(self, line: bytes) -> Iterator[tuple[Failure, Mark, dict[str, str]]]:
        """Return the failures that a line shows, each once: with the first pattern that has named groups."""
        shown: dict[str, tuple[Failure, Mark, dict[str, str]]] = {}
        for number in sorted(self._which(line) or ()):
            for failure, mark in self._by_literal[number]:
                groups, before = mark.groups(line), shown.get(failure.code)
                is_better = before is None or (
                    not mark.hint and (before[1].hint or bool(groups and not before[2]))
                )
                if groups is not None and is_better:
                    shown[failure.code] = failure, mark, groups
        sure = {code: row for code, row in shown.items() if not row[1].rest}
        yield from (sure or shown).values()


def _joined(lines: Sequence[bytes], glue: bytes) -> tuple[bytes, list[int]]:
    """Return the lines as one, and where each begins."""
    begins, place = [], 0
    for line in lines:
        begins.append(place)
        place += len(line) + len(glue)
    return glue.join(lines), begins


def _goes_on(line: bytes, following: bytes) -> bool:
    """Whether a line may be the rest of the one before it, and no line with a label or time of its own."""
    return len(line) >= _WIDE and bool(following) and following[:6] != line[:6] and following[:1] != b"["


class Scanner:
    """Reads one log. Between blocks it keeps where each writer's last traceback began."""

    def __init__(self, search: Search, log: Log, number: int, ranks: Ranks) -> None:
        self._search = search
        self._log = log
        self._number = number
        self._ranks = ranks
        self._rank = rank_of_file(log.name)  # of the writer of the whole file
        self._tracebacks: dict[int | None, int] = {}
        self._frames: dict[int | None, int] = {}  # the last frame of a traceback whose head was cut off
        self._open: dict[
            int | None, tuple[int, Raised | None]
        ] = {}  # lines whose words stand on the next one
        self._links: dict[int | None, tuple[int, Link]] = {}  # of the traceback below a line
        self._pasted: bytes | None = b""  # all of a short log
        self._known: set[tuple[int, str]] = set()  # line and failure, of a short log
        self.lines = 0
        self.tail = b""

    def scan(self) -> Iterator[Seen | Raised]:
        """Return what the log shows, and tell `ranks` how many ranks there are."""
        if self._rank is not None:
            self._ranks.add_world(self._rank + 1)
            self._ranks.add_reader(self._rank)
        for block in self._log.blocks():
            lines = self._search.lines(
                block,
                lambda: bool(self._tracebacks or self._frames),
                lambda: bool(self._open or self._frames),
            )
            for number, raw in lines:
                if not _OURS.match(raw):
                    for part in _BEGINNINGS.split(plain(raw)):
                        yield from self._line(number, part)
            self.lines = block.line + block.data.count(b"\n") - block.data.endswith(b"\n")
            self.tail = (self.tail + block.data[-_TAIL:])[-_TAIL:]
            if self._pasted is not None:
                whole = self._pasted + block.data
                self._pasted = whole if len(whole) <= _PASTED else None
        yield from self._flushed(None)
        for number, line in self._search.broken(self._pasted or b""):
            if not _OURS.match(line):
                yield from self._broken(number, line)
        for rank in {rank_of(line) for line in plain_lines(self.tail)}:
            self._ranks.add_reader(rank)

    @property
    def ends(self) -> tuple[Place, ...]:
        """Return the last line with the level of an error of each writer, or its last line that says something."""
        lines = plain_lines(self.tail)
        first = self.lines - len(lines) + 1 + (not lines[-1])
        last: dict[int | None, Place] = {}
        for number, line in enumerate(lines, first):
            place = self._place(number, line, rank_of(line))
            before = last.get(place.rank)
            if line.strip() and (place.is_error or not before or not before.is_error):
                last[place.rank] = place
        return tuple(last.values())

    def _line(self, number: int, line: bytes) -> Iterator[Seen | Raised]:
        rank = rank_of(line)
        while self._tracebacks and number - next(iter(self._tracebacks.values())) > _REACH:
            del self._tracebacks[next(iter(self._tracebacks))]
        if above := next((link for words, link in _ABOVE.items() if words in line), None):
            self._links[rank] = number, above
        if _TRACEBACK in line:
            self._tracebacks.pop(rank, None)  # the latest stands last
            self._tracebacks[rank] = number
        if world := _WORLD.search(line):
            self._ranks.add_world(int(world[2]))
            self._ranks.add_reader(int(world[1]) if world[1] else None)
        self._ranks.add_reader(rank)
        place = self._place(number, line, rank)
        yield from self._flushed(number)
        words = unlabelled(line)
        begun, raised = self._open.pop(rank, (0, None)) if words.strip() else (0, None)
        is_late = rank in self._tracebacks and self._links.get(rank, (0, Link.NONE))[1] is Link.LATE
        shown = _WARN + words if begun and not raised and _WARN not in line else line
        seen = list(self._seen(place, shown, is_late=is_late))
        if raised:
            text = f"{raised.place.text} {_text(words)}"
            yield replace(
                raised, place=replace(raised.place, text=text), is_known=raised.is_known or bool(seen)
            )
        if self._pasted is not None:
            self._known.update((number, known.failure.code) for known in seen)
        yield from seen
        if _FRAME.match(words) and rank not in self._tracebacks:
            self._frames[rank] = number
        self._frames = {writer: at for writer, at in self._frames.items() if number - at <= _AFTER}
        if (rank in self._tracebacks or rank in self._frames) and (exception := _EXCEPTION.match(words)):
            begun = self._tracebacks.pop(rank, self._frames.pop(rank, number))
            above_at, link = self._links.pop(rank, (begun, Link.NONE))
            link = link if 0 <= begun - above_at <= _NEAR else Link.NONE
            raised = Raised(place=replace(place, text=_text(words)), link=link, is_known=bool(seen))
            if not exception["message"] and words.endswith(b":"):
                self._open[rank] = number, raised
            elif link is not Link.LATE:
                yield raised
        elif words.strip() and not words[:1].isspace() and not _FRAME.match(words):
            self._frames.pop(rank, None)
        if words.strip() == _LAST_ERROR:
            self._open[rank] = number, None

    def _flushed(self, number: int | None) -> Iterator[Raised]:
        """Give up waiting for words that did not come, and return the exceptions without them."""
        for rank, (begun, raised) in list(self._open.items()):
            if number is None or number - begun > _NEAR:
                del self._open[rank]
                if raised:
                    yield raised

    def _broken(self, number: int, line: bytes) -> Iterator[Seen]:
        for seen in self._seen(self._place(number, line, rank_of(line)), line):
            keys = {(number, seen.failure.code), (number + 1, seen.failure.code)}
            if not keys & self._known:
                self._known.add((number, seen.failure.code))
                yield seen

    def _seen(self, place: Place, line: bytes, *, is_late: bool = False) -> Iterator[Seen]:
        is_no_failure = is_late or _INFO.search(line) is not None
        for failure, mark, groups in self._search.failures(line):
            yield Seen(place, failure, groups, is_hint=mark.hint or is_no_failure)

    def _place(self, number: int, line: bytes, rank: int | None) -> Place:
        writer = self._rank if rank is None else rank
        where, order = f"{self._log.name}:{number}", (self._number, number)
        return Place(where, _text(line), writer, time_of(line), order)


def _bounds(data: bytes, place: int, start: int) -> tuple[int, int]:
    """Return where the line of this place begins, not before `start`, and ends. A carriage return inside a line also separates."""
    begins = data.rfind(b"\n", start, place), data.rfind(b"\r", max(start, place - _LOOK), place), start - 1
    begin = max(begins) + 1
    ends = [end for mark in (b"\n", b"\r") if (end := data.find(mark, place, place + _LOOK)) >= 0]
    if ends:
        return begin, min(ends)
    end = data.find(b"\n", place)
    return begin, len(data) if end < 0 else end


def _text(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return text if len(text) <= 500 else f"{text[:497]}..."
