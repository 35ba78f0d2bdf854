"""Excerpts of logs, each with the failure that `diagnose` finds in it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parents[1] / "diagnose"
HELD: Final = FOLDER / "held.txt"  # a third of `excerpts/wild.txt`, put aside before its patterns were made


class Excerpt(NamedTuple):
    code: str
    beside: str  # the failure that a hint explains
    note: str
    text: bytes


def _excerpts() -> Iterator[Excerpt]:
    for path in [*sorted((FOLDER / "excerpts").glob("*.txt")), HELD]:
        for part in re.split(rb"^=== ", path.read_bytes(), flags=re.MULTILINE)[1:]:
            head, _, text = part.partition(b"\n")
            code, note = head.decode().split(" ", 1)
            beside = found[1] if (found := re.search(r"beside (EB9\d\d)", note)) else ""
            yield Excerpt(code, beside, note, text)


EXCERPTS: Final = list(_excerpts())
