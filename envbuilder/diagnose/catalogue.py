"""The known failures, the messages of compilers and torch, and NVIDIA's Xid numbers: the tables, and their reader.

The tables are YAML as far as `read_table` knows it, so that Python alone reads them on a node; tests hold that a whole YAML
reader reads the same. A failed build and a failed load() in an image read the messages too.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import Any, Callable, Final, TypeVar, cast

# Paths also in a zip, as `launch` puts this package beside the logs of a job.
FOLDER: Final = cast("Path", files("envbuilder.diagnose") / "catalogue")
XIDS: Final = cast("Path", files("envbuilder.diagnose") / "xids.yaml")
_ENTRY: Final = re.compile(r"""(\w+): ("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|\w+)""")
_T = TypeVar("_T")


class Stage(str, Enum):
    """How near to the root a failure is. Of several in one log, the one with the earliest stage began it."""

    MACHINE = "machine"  # hardware, kernel, driver, disks and limits of the node
    ENVIRONMENT = "environment"  # image, libraries, settings, network
    PROGRAM = "program"  # what one process did by itself
    SYMPTOM = "symptom"  # how others notice: timeouts, closed connections
    AFTERMATH = "aftermath"  # the end: signals, exit codes, the launcher's summary

    @property
    def depth(self) -> int:
        return 1 + list(Stage).index(self)


class Certainty(str, Enum):
    """How a failure is known from its lines."""

    EXACT = "exact"  # words that only this failure has
    FAMILY = "family"  # words of several failures; the line itself says which
    COMPARED = "compared"  # concluded from what the ranks say they did
    GUESS = "guess"  # concluded from other lines


@functools.cache
def compiled(pattern: str) -> re.Pattern[bytes]:
    """Return a pattern of the tables. Few of their patterns are ever looked for."""
    return re.compile(pattern.encode(), re.IGNORECASE)


@dataclass(frozen=True)
class Mark:
    """How one kind of line looks: it holds the literal `has`, matches `like` and does not match `unless`."""

    has: bytes
    like: str = ""
    unless: str = ""
    hint: bool = False  # such a line is in good logs too; it explains another failure
    rest: bool = False  # only such a line counts that shows no other failure

    def groups(self, line: bytes) -> dict[str, str] | None:
        """Return the named groups of a line that holds `has`, or None where it is another kind of line."""
        if self.unless and compiled(self.unless).search(line):
            return None
        match = compiled(self.like).search(line)
        named = match.groupdict().items() if match else ()
        return {name: text.decode(errors="replace") for name, text in named if text} if match else None


@dataclass(frozen=True)
class Failure:
    """A known failure with its stable code."""

    code: str
    name: str
    title: str
    stage: Stage
    cause: str
    repair: str
    source: str
    lines: tuple[Mark, ...] = ()  # empty for a verdict on the lines of other failures
    command: str = ""
    explains: str = ""  # it takes the place of the failure with this code, where both are found
    sure: Certainty = Certainty.EXACT
    surer: str = ""  # what would make it sure
    note: bool = False  # its lines alone are worth a note, although they are in good logs too
    # It ends whatever runs. A failure that is not known to come after it is nearer to the root.
    end: bool = False

    @property
    def is_hint(self) -> bool:
        """Whether its lines are in good logs too."""
        return bool(self.lines) and all(mark.hint for mark in self.lines)


@dataclass(frozen=True)
class Advice:
    """The explanation of a message by a failed build, which has a `code`, or by load().

    `{name}` stands for a named group of the line.
    """

    message: str
    repair: str
    code: str = ""


@dataclass(frozen=True)
class Message:
    """A message of compilers or torch, and how a build and load() explain it."""

    failure: str = ""  # what `diagnose` calls it
    lines: tuple[Mark, ...] = ()  # in any log
    compile_lines: tuple[Mark, ...] = ()  # only while something is compiled
    build: Advice | None = None
    load: Advice | None = None

    @property
    def all_lines(self) -> tuple[Mark, ...]:
        return (*self.lines, *self.compile_lines)

    def groups(self, line: bytes) -> dict[str, str] | None:
        """Return the named groups of a line with this message, or None for another line."""
        matches = (mark.groups(line) for mark in self.all_lines if mark.has in line)
        return next((groups for groups in matches if groups is not None), None)


@dataclass(frozen=True)
class Xid:
    """An event that NVIDIA's driver writes into the kernel's log."""

    number: int
    meaning: str
    action: str


# Keys whose value is not the text or the flag of the table.
_VALUES: Final[dict[str, Callable[[Any], object]]] = {
    "has": str.encode,
    "lines": lambda rows: tuple(_row(Mark, row) for row in rows),
    "compile_lines": lambda rows: tuple(_row(Mark, row) for row in rows),
    "stage": Stage,
    "sure": Certainty,
    "number": int,
    "build": lambda row: Advice(**row),
    "load": lambda row: Advice(**row),
}


def load_catalogue() -> tuple[Failure, ...]:
    """Return the failures in the order of their codes."""
    return _load()[0]


def load_messages() -> tuple[Message, ...]:
    """Return the messages of compilers and torch, the specific ones before the general ones."""
    return _load()[1]


@functools.cache
def _load() -> tuple[tuple[Failure, ...], tuple[Message, ...]]:
    tables = [read_table(path) for path in sorted(FOLDER.iterdir(), key=str)]
    failures = [_row(Failure, row) for table in tables for row in table["failures"]]
    messages = tuple(_row(Message, row) for table in tables for row in table.get("messages", ()))
    lines = {
        failure.code: [mark for row in messages if row.failure == failure.code for mark in row.lines]
        for failure in failures
    }
    joined = (replace(failure, lines=(*lines[failure.code], *failure.lines)) for failure in failures)
    return tuple(sorted(joined, key=lambda failure: failure.code)), messages


@functools.cache
def load_xids() -> dict[int, Xid]:
    """Return the events by number."""
    return {xid.number: xid for xid in (_row(Xid, row) for row in read_table(XIDS)["rows"])}


def _row(kind: type[_T], row: Mapping[str, Any]) -> _T:
    return kind(**{key: _VALUES[key](value) if key in _VALUES else value for key, value in row.items()})


def read_table(path: Path) -> dict[str, Any]:
    """Read a table: maps and lists by indentation, `{key: "text"}` in a line, quoted texts, and long ones below `>-`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    table: dict[str, Any] = _block([line for line in lines if line.strip() and line.lstrip()[0] != "#"])
    return table


def _block(lines: list[str]) -> Any:
    """Return the map or the list of lines of one indentation, each with the lines below it that stand further right."""
    indent = len(lines[0]) - len(lines[0].lstrip())
    starts = [at for at, line in enumerate(lines) if line[indent] != " "]
    parts = [lines[begin:end] for begin, end in zip(starts, [*starts[1:], len(lines)])]
    if lines[0][indent] == "-":
        return [_block([f"{part[0][:indent]}  {part[0][indent + 2 :]}", *part[1:]]) for part in parts]
    if lines[0][indent] == "{":
        return {key: _text(value) for key, value in _ENTRY.findall(lines[0])}
    pairs = ((part[0].strip().partition(":"), part[1:]) for part in parts)
    return {key: _value(value.strip(), below) for (key, _, value), below in pairs}


def _value(written: str, below: list[str]) -> Any:
    if written == ">-":
        return " ".join(map(str.strip, below))
    return _text(written) if written else _block(below)


def _text(written: str) -> Any:
    if written[0] == '"':
        return json.loads(written)
    if written[0] == "'":
        return written[1:-1].replace("''", "'")
    return {"true": True, "false": False}.get(written, written)
