"""Align the rows of a table for people, at a terminal and elsewhere."""

import itertools
import textwrap
from collections.abc import Sequence

from envbuilder.core.text.redact import plain

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
