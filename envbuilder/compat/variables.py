"""Judge the variables of a recipe: those that break the environment, and texts that nothing expands.

A recipe's value replaces what envbuilder sets (`plan/model.py`) in both artifacts, and every program inside starts with it.
"""

import fnmatch
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath
from typing import Final

from envbuilder.core.findings import Finding, Severity
from envbuilder.core.models import read_node
from envbuilder.core.places import Mistakes, load
from envbuilder.recipe.fields import RecipeCode, own_reference
from envbuilder.recipe.model import Recipe

# What a shell would expand. `$ORIGIN` is for the loader.
_EXPANDED: Final = re.compile(
    r"\$(?!ORIGIN\b|\{ORIGIN\})(?:\w+|\{\w+\}|\([^)]*\))|(?:(?<=^)|(?<=:))~(?=/|$)|`[^`]*`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The rule of some variables."""

    names: tuple[str, ...]
    harm: str
    instead: str
    good: str = "(?!)"
    warns: bool = False

    def has(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.names)

    def allows(self, name: str, value: str) -> bool:
        folders = (re.sub("^//", "/", normpath(one)) if one[:1] == "/" else one for one in value.split(":"))
        return bool(re.fullmatch(self.good.replace("own", own_reference(name)), ":".join(folders)))


@functools.cache
def load_rows() -> tuple[Row, ...]:
    root = load(Path(__file__).with_suffix(".yaml"), mistakes := Mistakes())
    rows = root and read_node(tuple[Row, ...], root, mistakes)
    assert rows, mistakes.findings
    return rows


def check_variables(recipe: Recipe) -> Iterator[Finding]:
    for name, value in recipe.env:
        row = next((row for row in load_rows() if row.has(name) and not row.allows(name, value)), None)
        unexpanded = _EXPANDED.search(re.sub(own_reference(name), "", value))
        severity = Severity.ERROR if row and not row.warns else Severity.WARNING
        message, hint = (f"it {row.harm}", row.instead) if row else ("", "")
        if unexpanded and (row is None or row.warns):
            message = f"nothing expands `{unexpanded[0]}`: programs get these letters"
            hint = "if that is not meant, write it out, or set the variable where you start the program"
        if message:
            yield Finding(
                code=RecipeCode.VARIABLE, severity=severity, where=recipe.place(f"$.env.{name}"),
                message=f"$.env.{name}: {message}", hint=hint,
            )  # fmt: skip
