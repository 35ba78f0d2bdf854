"""Find why a build failed in what its programs printed: an error of CMake, Meson or pip, otherwise the last exception.

A traceback of setuptools has hundreds of lines. Its exception stands last, and says little where another program failed first.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple


class Cause(NamedTuple):
    message: str
    where: str  # a file of the project and its line: setup.py:182; "" where none is named
    compiles: bool = True  # whether it may be a compiler's, or stand for a compiler that failed


MOST: Final = 12  # lines of a message
_PLACE: Final = r"(?P<file>[^\s:]+):(?P<line>\d+)(?::\d+)?"
_ERRORS: Final = (
    re.compile(rf"CMake Error(?: at {_PLACE})?(?: \(\S+\))?:(?P<message>.*)"),
    re.compile(rf"{_PLACE}: ERROR: (?P<message>.+)"),
)
_COMPILER: Final = re.compile(
    r"(?P<file>[^\s:()]+)[:(](?P<line>\d+)[\d:)]*: (?:fatal |catastrophic )?error: (?P<message>.+)"
)
_PLAIN: Final = re.compile(
    r"(?i)error: (?!command |subprocess-exited|metadata-generation|failed to build )(?P<message>.+)"
)
_FRAME: Final = re.compile(r'(?P<before>.*?)  File "(?P<file>[^"]+)", line (?P<line>\d+)')
_EXCEPTION: Final = re.compile(r"[A-Za-z_][\w.]*(?:|:.*)")
# What says only that another program, or an earlier exception, failed.
_WRAPPER: Final = re.compile(
    r"[\w.]*(?:CalledProcess|Compile|Link|DistutilsE|Build|SystemExit)\w*\b|RuntimeError: Error (?:building|compiling)"
)
_VAGUE: Final = re.compile(r"(?i)\bfail|non-?zero|exit(?:ed| code| status)")
_MARGIN: Final = " │"  # before the lines that pip and uv show of another program's
_SETUP: Final = "<string>"  # setuptools runs the text of setup.py


def find_cause(lines: Sequence[str]) -> Cause | None:
    """Return the cause that the output of a build names. Relative paths in it are the project's."""
    raised = list(_exceptions(lines))
    # A compiler's error may be a probe's, after which the build went on.
    is_vague = not raised or raised[-1].compiles or _VAGUE.search(raised[-1].message)
    for pattern in (*_ERRORS, *([_COMPILER] if is_vague else [])):
        for at, line in enumerate(lines):
            if match := pattern.match(line.lstrip(_MARGIN)):
                message = _sentence(match["message"], lines[at + 1 : at + MOST])
                return Cause(message, _place(match["file"], match["line"]), compiles=pattern is _COMPILER)
    if raised:
        return ([cause for cause in raised if not cause.compiles] or raised)[-1]
    plain = next(filter(None, (_PLAIN.match(line.lstrip(_MARGIN)) for line in lines)), None)
    return Cause(plain["message"], "") if plain else None


def _exceptions(lines: Sequence[str]) -> Iterator[Cause]:
    """Yield the exception of each traceback with the last place in the project."""
    margin, where = None, ""
    for at, line in enumerate(lines):
        if frame := _FRAME.match(line):
            margin = len(frame["before"])
            where = _place(frame["file"], frame["line"]) or where
        elif margin is not None and _EXCEPTION.fullmatch(text := line[margin:].rstrip()):
            message = _sentence(text, lines[at + 1 : at + MOST])
            yield Cause(message, where, compiles=_WRAPPER.match(text) is not None)
            margin, where = None, ""


def _sentence(text: str, following: Sequence[str]) -> str:
    """Return a message. One that begins with a line break takes the next paragraph."""
    words = [text.strip()]
    for line in following if not text.strip() or text.endswith(":") else ():
        if line.strip(_MARGIN):
            words.append(line.strip(_MARGIN))
        elif len(words) > 1:
            break
    return " ".join(filter(None, words))


def _place(file: str | None, line: str) -> str:
    is_own = file == _SETUP or (file and not file.startswith(("/", "<")))
    return f"{file.replace(_SETUP, 'setup.py')}:{line}" if file and is_own else ""
