r"""Quote values as data in a shell script and in a Dockerfile.

A recipe's value is one line, because its reader rejects control characters. A file may hold anything. Its lines are marked, so none of
them ends the here-document. Docker changes nothing in a quoted here-document.
"""

import re
import shlex
import unicodedata
from collections.abc import Sequence
from typing import Final

from envbuilder.core.plain import one_line

WRITE: Final = """\
file() {
  mkdir -p "${2%/*}"
  sed 's/^|//' >"$2"
  chmod "$1" "$2"
}"""
"""The shell function that writes a marked text: a `|` stands before each line."""
WRITE_MARKED: Final = WRITE.replace("s/^|//", r"s/^|//; s/{\^/{/g")
"""The same function for a text in which `marked` hid the braces."""
_BRACES: Final = re.compile(r"\{(?=\{)")
_BRACES_OR_MARK: Final = re.compile(r"\{(?=[{^])")
END: Final = "END"  # no marked line is this one


def in_shell(value: str) -> str:
    """Return one word of the shell. `{{` is split, because Apptainer would replace it."""
    return _BRACES.sub("{''", shlex.quote(one_line(value)))


def in_dockerfile(value: str) -> str:
    """Return the value of an ARG, ENV or LABEL."""
    text = one_line(value)
    for sign in ("\\", '"', "$"):
        text = text.replace(sign, f"\\{sign}")
    return f'"{text}"'


def in_comment(text: str) -> str:
    """Return a recipe's text as part of a comment line."""
    plain = "".join(" " if unicodedata.category(sign)[0] in "CZ" else sign for sign in text)
    return _BRACES.sub("{ ", " ".join(plain.split()))


def file_lines(path: str, text: str, *, mode: str = "644") -> list[str]:
    """Return shell lines that write a file byte for byte, with the function `WRITE`. `path` is a word of the shell."""
    body = text.removesuffix("\n").split("\n") if text else []
    lines = [f"file {mode} {path} <<'{END}'", *(f"|{line}" for line in body), END]
    if text and not text.endswith("\n"):  # sed adds a line end that this file lacks
        lines.append(f"truncate --size=-1 {path}")
    return lines


def marked(lines: Sequence[str]) -> list[str]:
    """Return the lines with a `^` between two braces of a file's text."""
    return [_BRACES_OR_MARK.sub("{^", line) if line.startswith("|") else line for line in lines]
