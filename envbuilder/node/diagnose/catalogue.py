"""The known failures, and the messages of compilers and torch: how their lines look, the cause and the repair.

The rows are YAML, read and checked here. A failed build and a failed load() in an image read the messages too.
"""

import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from envbuilder.core.models import STRICT, Flag, Line, Mistake, ReadAs, Rule, Shape, read_node
from envbuilder.core.places import Code, Mistakes, load

FOLDER: Final = Path(__file__).with_name("catalogue")
_CODE: Final = Shape(pattern=r"EB(?:89[5-9]|9\d\d)", expected='a code such as "EB900"')
_BUILD_CODE: Final = Shape(pattern=r"EB6\d\d", expected='a code such as "EB610"')
_NAME: Final = Shape(pattern=r"[a-z0-9]+(?:-[a-z0-9]+)*", expected="words with hyphens")


class Stage(Enum):
    """How near to the root a failure is: of those in one log, the one with the lowest stage began it."""

    MACHINE = 1  # hardware, kernel, driver, disks and limits of the node
    ENVIRONMENT = 2  # image, libraries, settings, network
    PROGRAM = 3  # what one process did by itself
    SYMPTOM = 4  # how others notice: timeouts, closed connections
    AFTERMATH = 5  # the end: signals, exit codes, the launcher's summary


_STAGE: Final = Shape(
    pattern="|".join(stage.name.lower() for stage in Stage),
    expected=f"one of {', '.join(stage.name.lower() for stage in Stage)}",
)


# Shorter literals would be in every line.
_LITERAL: Final = Shape(pattern=r"(?=.*\S)[^\x00-\x1f\x7f]{4,}", expected="a literal of four letters or more")


def _stage(name: str) -> Stage:
    return Stage[name.upper()]


def _compile(text: str) -> re.Pattern[bytes]:
    try:
        return re.compile(text.encode())
    except re.error as error:
        raise Mistake(message=f"`{text}` is no regular expression: {error}").error() from error


_Pattern = Annotated[re.Pattern[bytes], ReadAs(Line, _compile)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How one kind of line is known: the literal is searched for, then both expressions are asked."""

    __pydantic_config__ = STRICT
    has: Annotated[bytes, ReadAs(Annotated[str, _LITERAL], str.encode)]
    like: _Pattern | None = None
    unless: _Pattern | None = None
    is_hint: Annotated[Flag, Field(alias="hint")] = (
        False  # such a line is in good logs too; it explains another failure
    )

    def groups(self, line: bytes) -> dict[str, str] | None:
        """The named groups of a line that holds `has`; None where it is another kind of line."""
        if self.unless and self.unless.search(line):
            return None
        if self.like is None:
            return {}
        found = self.like.search(line)
        return (
            None
            if found is None
            else {k: v.decode(errors="replace") for k, v in found.groupdict().items() if v}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One row: a failure that is known, with its stable code."""

    __pydantic_config__ = STRICT
    code: Annotated[str, _CODE]
    name: Annotated[str, _NAME]
    title: Line
    stage: Annotated[Stage, ReadAs(Annotated[str, _STAGE], _stage)]
    # none: a verdict on the lines of other failures
    marks: Annotated[tuple[Mark, ...], Field(alias="lines")] = ()
    cause: Line
    repair: Line
    command: Line = ""
    source: Line
    is_end: Annotated[Flag, Field(alias="end")] = (
        False  # it ends whatever runs: what is not known to come after it is nearer to the root
    )

    @property
    def is_hint(self) -> bool:
        """Whether it is none by itself."""
        return bool(self.marks) and all(mark.is_hint for mark in self.marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildAdvice:
    """What a failed build says of a message; named groups of the line stand in braces."""

    __pydantic_config__ = STRICT
    code: Annotated[str, _BUILD_CODE]
    message: Line
    repair: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAdvice:
    """What a failed load() says of a message."""

    __pydantic_config__ = STRICT
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
    """One row of what compilers and torch say, with the words of each place that meets it."""

    __pydantic_config__ = STRICT
    failure: Annotated[str, _CODE] | None = None  # what `diagnose` calls it
    lines: tuple[Mark, ...] = ()  # in any log
    compile_lines: tuple[Mark, ...] = ()  # only while something is compiled
    build: BuildAdvice | None = None
    load: LoadAdvice | None = None

    @property
    def all_lines(self) -> tuple[Mark, ...]:
        return (*self.lines, *self.compile_lines)

    def groups(self, line: bytes) -> dict[str, str] | None:
        """The named groups of a line that says this, or None for another line."""
        marks = (mark for mark in self.all_lines if mark.has in line)
        return next((found for mark in marks if (found := mark.groups(line)) is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    __pydantic_config__ = STRICT
    messages: tuple[Annotated[Message, Rule(_named_groups)], ...] = ()
    failures: tuple[Failure, ...]


def load_catalogue(folder: Path = FOLDER) -> tuple[Failure, ...]:
    """Return the failures in the order of their codes.

    Raises ValueError with every mistake, a line each.
    """
    return _load(folder)[0]


def load_messages(folder: Path = FOLDER) -> tuple[Message, ...]:
    """Return the messages of compilers and torch, the more telling before the more general."""
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
        for row, key in itertools.product(rows.items if rows else (), ("code", "name")):
            if value := row.get(key):
                first = seen.setdefault((key, value.text), value.where)
                if first != value.where:
                    message = f"{key} `{value.text}` is there twice"
                    mistakes.at(value, Code.DUPLICATE, message, hint=f"the first is at {first}")
    for code in {message.failure for message in messages if message.failure} - {one.code for one in found}:
        mistakes.add(Code.VALUE, str(folder), f"no failure has the code `{code}`")
    if mistakes.findings:
        raise ValueError("\n".join(str(finding) for finding in mistakes.findings))
    joined = (replace(one, marks=(*_lines(one.code, messages), *one.marks)) for one in found)
    return tuple(sorted(joined, key=lambda failure: failure.code)), tuple(messages)


def _lines(code: str, messages: Iterable[Message]) -> tuple[Mark, ...]:
    return tuple(mark for message in messages if message.failure == code for mark in message.lines)
