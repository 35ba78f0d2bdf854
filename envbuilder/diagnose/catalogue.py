"""The known failures, the messages of compilers and torch, and NVIDIA's Xid numbers: YAML, read and checked here.

A failed build and a failed load() in an image read the messages too.
"""

import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from envbuilder.core.models import Date, Flag, Line, Mistake, Pattern, ReadAs, Rule, Shape, read_node
from envbuilder.core.places import Code, Mistakes, load

FOLDER: Final = Path(__file__).with_name("catalogue")
XIDS: Final = Path(__file__).with_name("xids.yaml")
_CODE: Final = Shape(pattern=r"EB(?:8(?:4[89]|5[1-9]|6\d|9[5-9])|9\d\d)", expected='a code such as "EB900"')
_BUILD_CODE: Final = Shape(pattern=r"EB6\d\d", expected='a code such as "EB610"')
_NAME: Final = Shape(pattern=r"[a-z0-9]+(?:-[a-z0-9]+)*", expected="words with hyphens")
# Shorter literals would be in every line.
_LITERAL: Final = Shape(pattern=r"(?=.*\S)[^\x00-\x1f\x7f]{4,}", expected="a literal of four letters or more")
_XID: Final = Shape(pattern=r"\d{1,3}", expected='a number such as "79"')


class Stage(StrEnum):
    """How near to the root a failure is. Of several in one log, the one with the earliest stage began it."""

    MACHINE = "machine"  # hardware, kernel, driver, disks and limits of the node
    ENVIRONMENT = "environment"  # image, libraries, settings, network
    PROGRAM = "program"  # what one process did by itself
    SYMPTOM = "symptom"  # how others notice: timeouts, closed connections
    AFTERMATH = "aftermath"  # the end: signals, exit codes, the launcher's summary

    @property
    def depth(self) -> int:
        return 1 + list(Stage).index(self)


class Certainty(StrEnum):
    """How a failure is known from its lines."""

    EXACT = "exact"  # words that only this failure has
    FAMILY = "family"  # words of several failures; the line itself says which
    COMPARED = "compared"  # concluded from what the ranks say they did
    GUESS = "guess"  # concluded from other lines


_Pattern = Annotated[
    re.Pattern[bytes], ReadAs(Pattern, lambda read: re.compile(read.pattern.encode(), re.IGNORECASE))
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How one kind of line looks: it holds the literal `has`, matches `like` and does not match `unless`."""

    has: Annotated[bytes, ReadAs(Annotated[str, _LITERAL], str.encode)]
    like: _Pattern | None = None
    unless: _Pattern | None = None
    # Such a line is in good logs too; it explains another failure.
    is_hint: Annotated[Flag, Field(alias="hint")] = False

    def groups(self, line: bytes) -> dict[str, str] | None:
        """Return the named groups of a line that holds `has`, or None where it is another kind of line."""
        if self.unless and self.unless.search(line):
            return None
        if self.like is None:
            return {}
        if found := self.like.search(line):
            return {name: text.decode(errors="replace") for name, text in found.groupdict().items() if text}
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A known failure with its stable code."""

    code: Annotated[str, _CODE]
    name: Annotated[str, _NAME]
    title: Line
    stage: Stage
    # Empty for a verdict on the lines of other failures.
    marks: Annotated[tuple[Mark, ...], Field(alias="lines")] = ()
    cause: Line
    repair: Line
    command: Line = ""
    source: Line
    # It takes the place of that failure, where both are found.
    explains: Annotated[str, _CODE] | None = None
    certainty: Annotated[Certainty, Field(alias="sure")] = Certainty.EXACT
    surer: Line = ""  # what would make it sure
    # Its lines alone are worth a note, although they are in good logs too.
    is_note: Annotated[Flag, Field(alias="note")] = False
    # It ends whatever runs. A failure that is not known to come after it is nearer to the root.
    is_end: Annotated[Flag, Field(alias="end")] = False

    @property
    def is_hint(self) -> bool:
        """Whether its lines are in good logs too."""
        return bool(self.marks) and all(mark.is_hint for mark in self.marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildAdvice:
    """A failed build's explanation of a message; `{name}` stands for a named group of the line."""

    code: Annotated[str, _BUILD_CODE]
    message: Line
    repair: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAdvice:
    """A failed load()'s explanation of a message."""

    message: Line
    repair: Line


def _named_groups(message: "Message") -> Iterator[Mistake]:
    words = f"{message.build.message} {message.build.repair}" if message.build else ""
    wanted = set(re.findall(r"\{(\w+)\}", words))
    for mark in message.all_lines:
        if lacking := wanted - set(mark.like.groupindex if mark.like else ()):
            yield Mistake(
                message=f"a line without the groups {', '.join(sorted(lacking))}: {mark.has.decode()}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message of compilers or torch, and how a build and load() explain it."""

    failure: Annotated[str, _CODE] | None = None  # what `diagnose` calls it
    lines: tuple[Mark, ...] = ()  # in any log
    compile_lines: tuple[Mark, ...] = ()  # only while something is compiled
    build: BuildAdvice | None = None
    load: LoadAdvice | None = None

    @property
    def all_lines(self) -> tuple[Mark, ...]:
        return (*self.lines, *self.compile_lines)

    def groups(self, line: bytes) -> dict[str, str] | None:
        """Return the named groups of a line with this message, or None for another line."""
        marks = (mark for mark in self.all_lines if mark.has in line)
        return next((found for mark in marks if (found := mark.groups(line)) is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    messages: tuple[Annotated[Message, Rule(_named_groups)], ...] = ()
    failures: tuple[Failure, ...]


def load_catalogue(folder: Path = FOLDER) -> tuple[Failure, ...]:
    """Return the failures in the order of their codes.

    Raises ValueError with every mistake, a line each.
    """
    return _load(folder)[0]


def load_messages(folder: Path = FOLDER) -> tuple[Message, ...]:
    """Return the messages of compilers and torch, the specific ones before the general ones."""
    return _load(folder)[1]


@functools.cache
def _load(folder: Path) -> tuple[tuple[Failure, ...], tuple[Message, ...]]:
    mistakes = Mistakes()
    found: list[Failure] = []
    messages: list[Message] = []
    seen: dict[tuple[str, str], str] = {}
    for path in sorted(folder.glob("*.yaml")):
        root = load(path, mistakes)
        file = read_node(_File, root, mistakes) if root else None
        found += file.failures if file else ()
        messages += file.messages if file else ()
        rows = root.get("failures") if root else None
        for row, key in itertools.product(rows.inner.values() if rows else (), ("code", "name")):
            if value := row.get(key):
                first = seen.setdefault((key, value.value), value.where)
                if first != value.where:
                    message = f"{key} `{value.value}` is there twice"
                    mistakes.at(value, Code.DUPLICATE, message, hint=f"the first is at {first}")
    for code in {message.failure for message in messages if message.failure} - {one.code for one in found}:
        mistakes.add(Code.VALUE, str(folder), f"no failure has the code `{code}`")
    _raise(mistakes)
    lines = {
        one.code: tuple(mark for row in messages if row.failure == one.code for mark in row.lines)
        for one in found
    }
    joined = (replace(one, marks=(*lines[one.code], *one.marks)) for one in found)
    return tuple(sorted(joined, key=lambda failure: failure.code)), tuple(messages)


def _raise(mistakes: Mistakes) -> None:
    if mistakes.findings:
        raise ValueError("\n".join(str(finding) for finding in mistakes.findings))


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """An event that NVIDIA's driver writes into the kernel's log."""

    number: Annotated[int, ReadAs(Annotated[str, _XID], int), Field(alias="xid")]
    meaning: Line
    action: Line


def _ascending(rows: tuple[Xid, ...]) -> Iterator[Mistake]:
    numbers = [row.number for row in rows]
    if numbers != sorted(set(numbers)):
        yield Mistake(message="rows are sorted and unique")


@dataclass(frozen=True, slots=True, kw_only=True)
class _XidFile:
    source: Line
    read: Date
    rows: Annotated[tuple[Xid, ...], Rule(_ascending)]


@functools.cache
def load_xids() -> dict[int, Xid]:
    """Return the events by number; raises ValueError when the table breaks its own rules."""
    mistakes = Mistakes()
    root = load(XIDS, mistakes)
    file = read_node(_XidFile, root, mistakes) if root else None
    _raise(mistakes)
    return {row.number: row for row in file.rows} if file else {}
