"""BuildKit's progress (`--progress rawjson`) as steps of ours, its whole text in the log, and the words of what failed.

Each line is an object with some of `vertexes`, `statuses` and `logs`; a vertex is an instruction of the Dockerfile, or what
BuildKit does around them.
"""

import base64
import contextlib
import json
import logging
import re
from collections.abc import Iterator
from typing import Final, Self

from envbuilder.command import redacted
from envbuilder.console import Console, owned

_NAME: Final = re.compile(r"\[(?P<stage>[\w-]+) +\d+/\d+\] (?P<words>.*)", re.DOTALL)
_OPTIONS: Final = re.compile(r"--\S+ +")
_LONGEST: Final = 70  # of a step's title, characters
_KEPT: Final = 20  # lines of an instruction that failed


class Progress:
    """Takes the lines as they come; `failure` is what the instruction that failed said last."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._log = owned(logging.getLogger(__name__), console.owner)
        self._open: dict[str, contextlib.ExitStack] = {}
        self._names: dict[str, str] = {}
        self._said: dict[str, list[str]] = {}
        self._failed = ""
        self._plain: list[str] = []  # lines that are no progress: buildx's own words

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for stack in self._open.values():  # what was running when the program ended
            with contextlib.suppress(_Broken):
                stack.__exit__(_Broken, _Broken(), None)
        self._open.clear()

    def feed(self, line: str) -> None:
        """One line of the program's."""
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            self._log.debug("%s", redacted(line))
            self._plain.append(redacted(line))
            return
        for vertex in value.get("vertexes") or ():
            self._vertex(vertex)
        for said in value.get("logs") or ():
            text = redacted(base64.b64decode(said.get("data") or "").decode(errors="replace"))
            for one in text.splitlines():
                self._log.debug("%s: %s", self._names.get(said.get("vertex", ""), "BuildKit"), one)
                self._said.setdefault(said.get("vertex", ""), []).append(one)

    @property
    def failure(self) -> str:
        """What failed and its last lines, else the last of buildx's own; "" where nothing was said."""
        if not self._failed:
            return "\n".join(self._plain[-_KEPT:])
        said = self._said.get(self._failed, [])[-_KEPT:]
        return "\n".join([self._names[self._failed], *said])

    @property
    def words(self) -> str:
        """All that buildx itself said."""
        return "\n".join(self._plain)

    def _vertex(self, vertex: dict[str, str]) -> None:
        digest, name = vertex["digest"], vertex.get("name", "")
        self._names[digest] = title(name) or name
        if vertex.get("error"):
            self._failed = self._failed or digest
            self._log.debug("%s: %s", name, vertex["error"])
        if vertex.get("cached"):
            self._log.debug("%s: as it was", name)
        elif vertex.get("completed"):
            stack = self._open.pop(digest, None)
            with contextlib.suppress(_Broken):
                if stack and vertex.get("error"):
                    stack.__exit__(_Broken, _Broken(), None)
                elif stack:
                    stack.close()
        elif vertex.get("started") and digest not in self._open and title(name):
            stack = contextlib.ExitStack()
            stack.enter_context(self._console.step(title(name)))
            self._open[digest] = stack


class _Broken(Exception):  # noqa: N818 - it only closes a step as one that failed
    """An instruction that ended badly; what is raised for it is decided by whoever runs BuildKit."""


def title(name: str) -> str:
    """What a person is told of a vertex: its stage and the program that it runs; "" for what BuildKit does for itself."""
    found = _NAME.fullmatch(name)
    if not found:
        return "BuildKit writes the layers" if name.startswith("exporting to") else ""
    kind, _, words = found["words"].partition(" ")
    if kind not in ("RUN", "ADD"):
        return ""
    words = _OPTIONS.sub("", words)
    text = " ".join(_words(words))
    return f"{found['stage']}: {text if len(text) <= _LONGEST else text[: _LONGEST - 1] + '…'}"


def _words(text: str) -> Iterator[str]:
    """A command's words, also of the form that is a JSON list."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text.split()
    yield from map(str, value)
