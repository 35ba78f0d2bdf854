"""Variables of the machine's shell that would harm an environment, and the script that leaves them out.

`shell.toml` is the one list, and the script is made of it. `exec`, `launch` and modules leave out those of its names that need no
look into the image before they start Apptainer, which is a program of the machine, too. SIFs of others have no script.
"""

import fnmatch
import functools
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from envbuilder import runtime

# Apptainer reads the files of this folder in order, and sets `--env` and APPTAINERENV_NAME after 99-base.sh.
SCRIPT: Final = ".singularity.d/env/98-shell.sh"
Rule = Literal["always", "program", "flags", "path", "there", "list", "fixed", "passed"]
UNFIT: Final = ("program", "flags", "path", "there")  # rules that ask what the image has


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellRow:
    """What becomes of some variables."""

    names: tuple[str, ...]  # or patterns of a shell
    rule: Rule
    quiet: bool = False
    harm: str
    why: str


@functools.cache
def load_rows() -> tuple[ShellRow, ...]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return tuple(ShellRow(**row | {"names": tuple(row["names"])}) for row in tomllib.loads(text)["row"])


def left_out() -> tuple[str, ...]:
    """Return the names and patterns of variables that are left out whole, whatever is in the image."""
    return tuple(name for row in load_rows() if row.rule in ("always", "program") for name in row.names)


def untold() -> tuple[str, ...]:
    """Return the names and patterns of variables that machines set for every user: nothing is said of them."""
    return tuple(name for row in load_rows() if row.quiet for name in row.names)


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def script() -> str:
    """Return the script of the image."""
    rows = [row for row in load_rows() if row.rule not in ("fixed", "passed")]
    arms = [
        f"    {' | '.join(row.names)}) set -- {row.rule} {'quiet' if row.quiet else 'said'} ;;"
        for row in rows
    ]
    names = [name for row in rows for name in row.names]
    texts = {
        "    # RULES": "\n".join(arms),
        "PATTERNS": " | ".join(name for name in names if "*" in name),
        "NAMES": " ".join(name for name in names if "*" not in name),
        "UNFIT": " ".join(name for row in rows if row.rule in UNFIT for name in row.names),
    }
    text = runtime.path("shell.sh").read_text(encoding="utf-8")
    for word, part in texts.items():
        text = text.replace(word, part)
    return text
