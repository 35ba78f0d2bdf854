"""Excerpts of logs, each with the failure that `diagnose` finds in it."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

PACKAGE: Final = Path(__file__).parents[2] / "envbuilder"
FOLDER: Final = Path(__file__).parents[1] / "diagnose"
CLEAN: Final = sorted((FOLDER / "clean").iterdir())
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
            beside = match[1] if (match := re.search(r"beside (EB9\d\d)", note)) else ""
            yield Excerpt(code, beside, note, text)


EXCERPTS: Final = list(_excerpts())
TEXTS: Final = [*(excerpt.text for excerpt in EXCERPTS), *(path.read_bytes() for path in CLEAN)]

# Reads the logs of its stdin, a JSON list, and answers with the text of each.
_READER: Final = """
import io, json, sys
from envbuilder.diagnose import as_text, diagnose
print(json.dumps([as_text(diagnose(["-"], io.BytesIO(text.encode("latin-1")))) for text in json.load(sys.stdin)]))
"""


def alone(folder: Path) -> Path:
    """Copy into a folder what `diagnose` needs, and nothing else of envbuilder."""
    for part in ("diagnose", "core/text"):
        shutil.copytree(
            PACKAGE / part, folder / "envbuilder" / part, ignore=shutil.ignore_patterns("__pycache__")
        )
    return folder


def answers_alone(folder: Path, *python: str) -> list[str]:
    """What this Python answers to each excerpt and each good log with the copy in a folder, and without packages."""
    done = subprocess.run(
        [*python, "-S", "-c", _READER], cwd=folder, check=True, capture_output=True, text=True,
        input=json.dumps([text.decode("latin-1") for text in TEXTS]),
    )  # fmt: skip
    answers: list[str] = json.loads(done.stdout)
    return answers
