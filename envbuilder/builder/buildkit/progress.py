"""Show BuildKit's progress (`--progress rawjson`) as steps, and log all of it.

Each line is a JSON object with some of `vertexes`, `statuses` and `logs`. A vertex is an instruction of the Dockerfile or other work of
BuildKit.
"""

import base64
import contextlib
import json
import logging
import re
from collections import deque
from typing import Final, Self

from envbuilder.core.budget import LastLines
from envbuilder.core.console import Console
from envbuilder.core.log import owned
from envbuilder.core.text.redact import redacted
from envbuilder.plan.program import PROGRAMS, SPEC

_NAME: Final = re.compile(r"\[(?P<stage>[\w-]+) +\d+/\d+\] (?P<words>.*)", re.DOTALL)
_IMPORT: Final = re.compile(r"importing cache manifest from (?P<place>.*)")
_EXPORT: Final = "exporting cache to "
_PROGRAM: Final = re.compile(rf" {PROGRAMS}/(\S+) {SPEC} ")  # the command line of a program
_KEPT: Final = 20  # lines of a failed instruction
_FOREIGN: Final = (
    "extension.py",
    "build_sdist.py",
)  # programs that run the code of an extension or of an sdist


class Progress:
    """Read the lines of the program. `failure` holds the last output of the failed instruction.

    `ran` and `cached` count instructions. `unwritten` is the reason why BuildKit could not write its cache. A cache that it cannot read is
    reported at once, because the build continues without it.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._log = owned(logging.getLogger(__name__), console.owner)
        self._open: dict[str, contextlib.ExitStack] = {}
        self._names: dict[str, str] = {}
        self._output: dict[str, deque[str]] = {}
        self._failed = ""
        self._reported: set[str] = set()
        self._cached: set[str] = set()
        self._ran: set[str] = set()
        self.unwritten = ""
        self._plain = LastLines()  # messages of buildx

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for digest in tuple(self._open):  # the program ended during these steps
            self._end(digest, failed=True)

    def feed(self, line: str) -> None:
        """Read one line of the program's output."""
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
        for log in value.get("logs") or ():
            text = redacted(base64.b64decode(log.get("data") or "").decode(errors="replace"))
            for one in text.splitlines():
                self._log.debug("%s: %s", self._names.get(log.get("vertex", ""), "BuildKit"), one)
                self._output.setdefault(log.get("vertex", ""), deque(maxlen=_KEPT)).append(one)

    @property
    def failure(self) -> str:
        """Return the failed instruction and its last lines, otherwise the last lines of buildx, or ""."""
        if not self._failed:
            return "\n".join([*self._plain][-_KEPT:])
        output = self._output.get(self._failed, ())
        return "\n".join([self._names[self._failed], *output])

    @property
    def is_foreign(self) -> bool:
        """Return whether the failed instruction runs foreign code, which says nothing of the layers below it."""
        return self._names.get(self._failed, "").endswith(_FOREIGN)

    @property
    def words(self) -> str:
        """Return all messages of buildx itself."""
        return "\n".join(self._plain)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def ran(self) -> int:
        return len(self._ran - self._cached)

    def _vertex(self, vertex: dict[str, str]) -> None:
        digest, name = vertex["digest"], vertex.get("name", "")
        self._names[digest] = title(name) or name
        if error := redacted(vertex.get("error") or ""):
            self._log.debug("%s: %s", name, error)
            self._record_error(digest, name, error)
        is_instruction = name.startswith("[") and bool(title(name))
        if vertex.get("cached"):
            self._log.debug("%s: cached", name)
            self._cached |= {digest} if is_instruction else set()
        elif vertex.get("completed"):
            self._ran |= {digest} if is_instruction else set()
            self._end(digest, failed=bool(vertex.get("error")))
        elif vertex.get("started") and digest not in self._open and title(name):
            stack = contextlib.ExitStack()
            stack.enter_context(self._console.step(title(name)))
            self._open[digest] = stack

    def _end(self, digest: str, *, failed: bool) -> None:
        """Close the step of a vertex, if it has one."""
        with contextlib.suppress(_StepFailed), self._open.pop(digest, contextlib.ExitStack()):
            if failed:
                raise _StepFailed

    def _record_error(self, digest: str, name: str, error: str) -> None:
        if found := _IMPORT.fullmatch(name):
            if digest not in self._reported:
                self._reported.add(digest)
                self._console.say(f"cannot read the cache `{found['place']}`: {error}")
        elif name.startswith(_EXPORT):
            self.unwritten = error
        else:
            self._failed = self._failed or digest


class _StepFailed(Exception):  # noqa: N818 - it never leaves this module
    """Marks the step as failed. `run` raises the error of the build."""


def title(name: str) -> str:
    """Return the title of a vertex: its stage and its program. "" for most work of BuildKit itself."""
    found = _NAME.fullmatch(name)
    if not found:
        whole = {"exporting to ": "BuildKit writes the layers", _EXPORT: "BuildKit writes its cache"}
        return next((shown for start, shown in whole.items() if name.startswith(start)), "")
    program = _PROGRAM.search(found["words"])
    return f"{found['stage']}: {program[1]}" if program else ""
