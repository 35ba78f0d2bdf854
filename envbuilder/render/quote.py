r"""How a value becomes data in a shell script and in a Dockerfile.

The recipe's reader lets no control character through, so a value is one line. A file may hold anything: its lines are marked, so
that none of them ends the here-document that it stands in, and Docker changes nothing in a quoted one.
"""

import shlex
import unicodedata
from typing import Final

WRITE: Final = """\
file() {
  mkdir -p "${2%/*}"
  sed 's/^|//' >"$2"
  chmod "$1" "$2"
}"""
"""Writes a marked text: a `|` is before each line."""
END: Final = "END"  # no marked line is this one


def in_shell(value: str) -> str:
    """One word of the shell."""
    return shlex.quote(_one_line(value))


def in_dockerfile(value: str) -> str:
    """The value of an ARG, ENV or LABEL."""
    text = _one_line(value)
    for sign in ("\\", '"', "$"):
        text = text.replace(sign, f"\\{sign}")
    return f'"{text}"'


def in_comment(text: str) -> str:
    """Words of a recipe as a part of one comment line."""
    plain = "".join(" " if unicodedata.category(sign)[0] in "CZ" else sign for sign in text)
    return " ".join(plain.split())


def file_lines(path: str, text: str, *, mode: str = "644") -> list[str]:
    """Shell lines that write a file, byte for byte, by the function `WRITE`; `path` is a word of the shell."""
    body = text.removesuffix("\n").split("\n") if text else []
    lines = [f"file {mode} {path} <<'{END}'", *(f"|{line}" for line in body), END]
    if text and not text.endswith("\n"):  # sed ends each line; the last one here has no end
        lines.append(f"truncate --size=-1 {path}")
    return lines


def _one_line(value: str) -> str:
    if any(unicodedata.category(sign) == "Cc" for sign in value):
        raise ValueError(f"a control character in {value!r}")
    return value
