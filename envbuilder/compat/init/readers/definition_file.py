"""Read a definition file of Apptainer: its base, %environment, and what %post installs."""

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.compat.init.readers.commands import (
    NO_CODE,
    NO_COMMANDS,
    STARTED,
    Copied,
    read_base,
    read_run,
    read_variables,
)
from envbuilder.compat.init.requests import Requests, read_text
from envbuilder.core.errors import UsageError

_WHY: Final = {
    "runscript": STARTED,
    "startscript": STARTED,
    "apprun": STARTED,
    "setup": NO_COMMANDS,
    "test": "a recipe has `tests` of its own",
    "appinstall": NO_COMMANDS,
    "appenv": "a recipe's variables hold for the whole environment",
}
_READ: Final = ("files", "environment", "post")
_REGISTRIES: Final = ("docker", "docker-daemon", "library", "oras")  # bootstraps whose `From:` names an image


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    number: int
    stage: int
    section: str  # "" before the first one
    text: str

    @property
    def turn(self) -> tuple[int, int]:
        """Apptainer's order: the files of a stage are there before its commands run."""
        return self.stage, _READ.index(self.section)


def read_definition(path: Path, requests: Requests) -> None:
    """Read every section; raises UsageError for a file without a `Bootstrap:` header."""
    lines = list(_lines(read_text(path)))
    if not any(line.stage for line in lines):
        raise UsageError(f"`{path}` has no `Bootstrap:`: it is no definition file")
    copied = Copied(context=path.parent)
    _read_headers(lines, path, requests)
    read = (line for line in lines if line.section in _READ and line.text and line.text[0] not in "%#")
    for section, found in itertools.groupby(
        sorted(read, key=lambda line: line.turn), lambda line: line.section
    ):
        placed = ((f"{path}:{line.number}", line.text) for line in found)
        match section:
            case "files":
                for where, value in placed:
                    copied.copy(value if len(value.split()) > 1 else f"{value} {value}")
                    requests.leave(where, f"%files {value}", NO_CODE)
            case "environment":
                for where, value in placed:
                    if "=" in value:
                        variables = value.removeprefix("export").strip()
                        read_variables(variables, where, requests, word="")
            case _:
                for where, value in _joined(placed):
                    read_run(value, where, requests, copied, word="")


def _lines(text: str) -> Iterator[_Line]:
    stage, section = 0, ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if line.startswith("%"):
            words = line[1:].lower().split()
            # What comes from an earlier stage is no file of the project.
            section = "" if not words else " ".join(words[:2]) if words[1:2] == ["from"] else words[0]
        elif re.match(r"bootstrap\s*:", line, re.IGNORECASE):
            stage, section = stage + 1, ""
        yield _Line(number=number, stage=stage, section=section, text=line)


def _read_headers(lines: list[_Line], path: Path, requests: Requests) -> None:
    """Read the base of each stage, and leave out the sections that no recipe can hold."""
    bootstrap = ""
    for line in lines:
        where = f"{path}:{line.number}"
        key, _, value = (part.strip() for part in line.text.partition(":"))
        if line.text.startswith("%") and line.section in _WHY:
            requests.leave(where, line.text, _WHY[line.section])
        elif not line.section and key.lower() == "bootstrap":
            bootstrap = value.lower()
            if bootstrap not in _REGISTRIES and bootstrap != "debootstrap":
                requests.leave(where, line.text, "what is in this base cannot be told from its name")
        elif not line.section and key.lower() == "from" and bootstrap in _REGISTRIES:
            read_base(value.partition("#")[0].strip(), where, requests)


def _joined(lines: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Commands with their continuation lines, each at the place of its first line."""
    place, parts = "", list[str]()
    for where, value in lines:
        place = place if parts else where
        parts.append(value.removesuffix("\\"))
        if not value.endswith("\\"):
            yield place, " ".join(parts)
            parts = []
    if parts:
        yield place, " ".join(parts)
