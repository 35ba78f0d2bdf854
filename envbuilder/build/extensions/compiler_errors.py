"""Explain a failed compile: the known cause, and the lines of the compiler that show it."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final

from envbuilder.build.extensions.cache import SOURCE
from envbuilder.build.extensions.check_targets import ExtensionCode, extension_error
from envbuilder.core.errors import BuildError, CommandError
from envbuilder.core.findings import Finding

SHOWN: Final = 12  # lines of a compiler that a message shows
_TELLING: Final = re.compile(
    r"\b(fatal )?error\b|undefined (reference|symbol)|cannot find -l|#error|^\w*Error: ", re.IGNORECASE
)
_CAPTURE: Final = "envbuilder capture: "  # before the last words of `capture_calls.py`
_NOISE: Final = re.compile(
    r"ninja: |subprocess\.CalledProcessError|RuntimeError: Error (building|compiling)|^\[\d+/\d+\]"
)
# `a.cpp:4:3: `, as gcc, clang and ld have it, and `a.cu(4): `, as nvcc does.
_PLACE: Final = re.compile(r"(?P<file>[^\s:()]+)(?::(?P<line>\d+(?::\d+)?)|\((?P<row>\d+)\)): ")


def explain_failure(
    name: str, lines: Sequence[str], failure: CommandError, *, compiles: bool = True, folder: str = ""
) -> BuildError:
    """Return the error for an extension whose build ran in `folder`, printed these lines and failed.

    Where nothing is compiled, a line that only names an error is not a compiler's. Then the report of `capture_calls.py` is
    shown, otherwise the program's own message.
    """
    from envbuilder.node.diagnose.catalogue import load_messages  # noqa: PLC0415 - 0.1 s, and few compiles fail

    lines = [_named(line, folder) for line in (*lines, *failure.message.splitlines()[1:])]
    ended = json.loads(lines.pop().removeprefix(_CAPTURE)) if lines and lines[-1].startswith(_CAPTURE) else {}
    known = [row for row in load_messages() if row.build]
    raw = [line.encode() for line in lines]
    for row in known if compiles else known[:-1]:
        for at, line in enumerate(raw):
            groups = row.groups(line)
            if row.build and groups is not None:
                telling = _telling(lines, at)
                shown = "\n".join(f"    {one}" for one in telling)
                meaning, repair = row.build.message.format(**groups), row.build.repair.format(**groups)
                message = f"the extension `{name}` does not compile: {meaning}\n{shown}"
                where = _place(telling) or ended.get("where", "")
                return extension_error(row.build.code, message, repair, where=where)
    if ended:
        return extension_error(
            ExtensionCode.ENDED,
            f"the line `{ended['line']}` of `capture` of the extension `{name}` ends in {ended['error']}",
            "it runs in the folder that `path` names, without a GPU and without a network; the log has the whole traceback",
            where=ended["where"],
        )
    return failure


def _named(line: str, folder: str) -> str:
    """Return the line with the recipe's path of a file instead of the compiler's."""
    place = _PLACE.match(line)
    if place and folder and not place["file"].startswith("/"):
        line = f"{folder}/{line}"
    return line.replace(f"{SOURCE}/", "")


def _place(lines: Iterable[str]) -> str:
    """Return the first place in a file of the recipe, as `file:line:column` or `file:line`, or ""."""
    places = (place for line in lines if (place := _PLACE.match(line)) and not place["file"].startswith("/"))
    return next((f"{place['file']}:{place['line'] or place['row']}" for place in places), "")


def _telling(lines: Sequence[str], first: int) -> list[str]:
    """Return the line that decided and the first others that name an error, each with the line after it."""
    chosen = [first]
    for at, line in enumerate(lines):
        if _TELLING.search(line) and not _NOISE.search(line) and at not in chosen:
            chosen.append(at)
            follows = lines[at + 1] if at + 1 < len(lines) else ""
            if follows.startswith(" ") and at + 1 not in chosen:
                chosen.append(at + 1)
    seen = dict.fromkeys(lines[at].rstrip()[:300] for at in sorted(chosen[:SHOWN]))
    return [line for line in seen if line]


def merge_failures(failures: Sequence[BuildError]) -> BuildError:
    """Return one error for all extensions that failed. The others are in the store and are not compiled again."""
    if len(failures) == 1:
        return failures[0]
    findings: list[Finding] = []
    for one in failures:
        findings += one.findings or [Finding(code=one.code, message=one.message, hint=one.hint)]
    return BuildError(f"{len(failures)} extensions do not compile", findings=tuple(findings))
