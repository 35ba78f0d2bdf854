"""Put words into a command line, a script or a settings file, where no part of them becomes a line or a secret of its own."""

import itertools
import shlex
import textwrap
import unicodedata
from collections.abc import Sequence
from typing import Final

from envbuilder.core.errors import UsageError
from envbuilder.core.text.redact import has_credentials, plain, redacted

GIVE_BY: Final = (
    "leave it out: git asks its credential helper or ~/.netrc, ENVBUILDER_INDEX and apt's auth.conf hold those of mirrors, and "
    "`exec --env NAME` passes a variable"
)


def pasted(*words: object) -> str:
    """Return words of a command line as a shell takes them, for a message or an answer."""
    return shlex.join(map(str, words))


def counted(number: int, thing: str) -> str:
    """Return `1 layer` or `2 layers`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def need_no_credentials(text: str) -> None:
    """Raise UsageError for a text that holds a password or a token."""
    if has_credentials(text):
        raise UsageError(f"`{redacted(text)}` is given with a password or a token", hint=GIVE_BY)


def one_line(text: str, *, forbidden: str = "") -> str:
    """Return a text that becomes part of a line in a script or in a settings file.

    Raises UsageError for a line break, which would begin a line of its own, for another control character, and for one of
    `forbidden`, which end a text of that format.
    """
    sign = next(
        (letter for letter in text if unicodedata.category(letter) == "Cc" or letter in forbidden), ""
    )
    if sign:
        raise UsageError(
            f"expected a text of one line without control characters, found {sign!a} in {redacted(text)!a}",
            hint="rename the SIF, the folder or the setting: in a script the rest would be a command of its own",
        )
    return text


_GAP = "  "


def columns(rows: Sequence[Sequence[str]], width: int) -> str:
    """Align rows as columns. Long cells wrap to fit `width`; with 0, nothing wraps."""
    rows = [[plain(cell) for cell in row] for row in rows]  # before a password is cut into two lines
    widths = [max(1, *map(len, column)) for column in zip(*rows, strict=True)]
    room = width - len(_GAP) * (len(widths) - 1)
    while width and sum(widths) > max(room, len(widths)):
        widths[widths.index(max(widths))] -= 1
    lines = []
    for row in rows:
        cells = [
            textwrap.wrap(cell, most, break_on_hyphens=False) for cell, most in zip(row, widths, strict=True)
        ]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            line = _GAP.join(part.ljust(most) for part, most in zip(parts, widths, strict=True))
            lines.append(line.rstrip())
    return "\n".join(lines)
