"""The known failures: how their lines look, what causes them, what repairs them. The rows are YAML, read and checked here."""

import functools
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from envbuilder.core.decode import LINE, Code, Fields, Mistakes, Node, Shape, load

FOLDER: Final = Path(__file__).with_name("catalogue")
_CODE: Final = Shape(pattern=r"EB(?:89[5-9]|9\d\d)", expected='a code such as "EB900"')
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How one kind of line is known: the literal is searched for, then both expressions are asked."""

    has: bytes
    like: re.Pattern[bytes] | None = None
    unless: re.Pattern[bytes] | None = None
    is_hint: bool = False  # such a line is in good logs too; it explains another failure

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

    code: str
    name: str
    title: str
    stage: Stage
    marks: tuple[Mark, ...]  # none: a verdict on the lines of other failures
    cause: str
    repair: str
    command: str
    source: str
    is_end: bool  # it ends whatever runs: what is not known to come after it is nearer to the root

    @property
    def is_hint(self) -> bool:
        """Whether it is none by itself."""
        return bool(self.marks) and all(mark.is_hint for mark in self.marks)


@functools.cache
def load_catalogue(folder: Path = FOLDER) -> tuple[Failure, ...]:
    """All rows in the order of their codes; raises ValueError with every mistake, a line each."""
    mistakes = Mistakes()
    found: list[Failure] = []
    for path in sorted(folder.glob("*.yaml")):
        root = load(path, mistakes)
        if root is not None:
            rows = Fields(root, mistakes, required=("failures",))
            found += [_failure(node, mistakes) for node in rows.items("failures")]
    for key in ("code", "name"):
        seen: set[str] = set()
        for failure in found:
            value = getattr(failure, key)
            if value in seen:
                mistakes.add(Code.DUPLICATE, str(folder), f"{key} `{value}` is there twice")
            seen.add(value)
    if mistakes.findings:
        raise ValueError("\n".join(str(finding) for finding in mistakes.findings))
    return tuple(sorted(found, key=lambda failure: failure.code))


def _failure(node: Node, mistakes: Mistakes) -> Failure:
    fields = Fields(
        node,
        mistakes,
        required=("code", "name", "title", "stage", "cause", "repair", "source"),
        optional=("lines", "command", "end"),
    )
    stage = fields.text("stage", _STAGE)
    return Failure(
        code=fields.text("code", _CODE),
        name=fields.text("name", _NAME),
        title=fields.text("title"),
        stage=Stage[stage.upper()] if stage else Stage.PROGRAM,
        marks=tuple(_mark(item, mistakes) for item in fields.items("lines")),
        cause=fields.text("cause"),
        repair=fields.text("repair"),
        command=fields.text("command"),
        source=fields.text("source"),
        is_end=fields.flag("end"),
    )


def _mark(node: Node, mistakes: Mistakes) -> Mark:
    fields = Fields(node, mistakes, required=("has",), optional=("like", "unless", "hint"))
    has = fields.text("has")
    if len(has) < 4:  # shorter ones would be in every line
        mistakes.at(node, Code.VALUE, f"expected a literal of four letters or more, found `{has}`")
    return Mark(
        has=has.encode(),
        like=_pattern(fields, "like"),
        unless=_pattern(fields, "unless"),
        is_hint=fields.flag("hint"),
    )


def _pattern(fields: Fields, key: str) -> re.Pattern[bytes] | None:
    text = fields.text(key, LINE)
    if not text:
        return None
    try:
        return re.compile(text.encode())
    except re.error as error:
        fields.mistakes.at(fields.node, Code.VALUE, f"`{key}` is no regular expression: {error}")
        return None
