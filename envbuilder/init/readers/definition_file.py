"""Read a definition file of Apptainer: its base, %environment, and what %post installs.

spython parses the file into sections. It keeps no line numbers, so each line is looked up in its section again.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spython.main.parse.parsers import SingularityParser

from envbuilder.core.errors import UsageError
from envbuilder.init.readers import commands
from envbuilder.init.requests import Requests, read_text

_WHY: Final = {
    "runscript": commands.STARTED,
    "startscript": commands.STARTED,
    "apprun": commands.STARTED,
    "setup": commands.NO_COMMANDS,
    "test": "a recipe has `tests` of its own",
    "appinstall": commands.NO_COMMANDS,
    "appenv": "a recipe's variables hold for the whole environment",
}
_REGISTRIES: Final = ("docker", "docker-daemon", "library", "oras")  # bootstraps whose `From:` names an image


class _Parser(SingularityParser):  # type: ignore[misc]  # spython has no types
    """spython's parser for every bootstrap, without the scripts that it makes of %runscript and %test.

    It writes the base in lower case, so the headers are read here.
    """

    def _check_bootstrap(self, _line: str) -> None: ...

    def _load_from(self, _line: str | None) -> None: ...

    def _run(self, _lines: list[str]) -> None: ...

    def _test(self, _lines: list[str]) -> None: ...

    def _setup(self, _lines: list[str]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    number: int
    section: str  # "" before the first one
    text: str


def read_definition(path: Path, requests: Requests) -> None:
    """Read every section; raises UsageError for a file without a `Bootstrap:` header."""
    text = read_text(path)
    lines = list(_lines(text))
    if not any(re.match(r"bootstrap\s*:", line.text, re.IGNORECASE) for line in lines if not line.section):
        raise UsageError(f"`{path}` has no `Bootstrap:`: it is no definition file")
    parser = _Parser(None, load=False)
    parser.lines = text.splitlines()
    stages = parser.parse().values()
    copied = commands.Copied(context=path.parent)
    _read_headers(lines, path, requests)
    for stage in stages:
        for where, value in _placed(stage.files, "files", lines, path):
            copied.copy(value if len(value.split()) > 1 else f"{value} {value}")
            requests.leave(where, f"%files {value}", commands.NO_CODE)
        for where, value in _placed(stage.environ, "environment", lines, path):
            commands.read_variables(value, where, requests, word="")
        for where, value in _joined(_placed(stage.install, "post", lines, path)):
            commands.read_run(value, where, requests, copied, word="")
    copied.report(requests)


def _lines(text: str) -> Iterator[_Line]:
    section = ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if line.startswith("%"):
            section = line[1:].split()[0].lower() if line[1:].split() else ""
        elif re.match(r"bootstrap\s*:", line, re.IGNORECASE):  # the next stage
            section = ""
        yield _Line(number=number, section=section, text=line)


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
            commands.read_base(value.partition("#")[0].strip(), where, requests)


def _placed(values: list[str], section: str, lines: list[_Line], path: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines that spython found, in their order, each with its place in the file."""
    rest = iter([line for line in lines if line.section == section])
    for value in values:
        found = next((line for line in rest if line.text in (value, f"export {value}")), None)
        if not value.startswith("#"):
            yield f"{path}:{found.number}" if found else str(path), value


def _joined(lines: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Join each command with its continuation lines; its place is that of its first line."""
    place, parts = "", list[str]()
    for where, value in lines:
        place = place if parts else where
        parts.append(value.removesuffix("\\"))
        if not value.endswith("\\"):
            yield place, " ".join(parts)
            parts = []
    if parts:
        yield place, " ".join(parts)
