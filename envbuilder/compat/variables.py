"""Judge the variables of a recipe: those that break the environment, and texts that nothing expands.

`variables.toml` is the one list. A recipe's own value replaces what envbuilder sets (`plan/model.py`), so a wrong one is in both
artifacts, and every program inside starts with it.
"""

import fnmatch
import functools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, assert_never

from envbuilder.core.findings import Finding, Severity
from envbuilder.recipe.fields import RecipeCode, own_reference
from envbuilder.recipe.model import Recipe

_OF_TOOLKIT: Final = ("/usr/local/cuda", "/usr/local/cuda/bin/nvcc")
_COMPILERS: Final = re.compile(r"(/usr/bin/)?(gcc|g\+\+|cc|c\+\+|ar|ld)")
# What a shell would expand. `$ORIGIN` is for the loader.
_EXPANDED: Final = re.compile(
    r"\$(?!ORIGIN\b|\{ORIGIN\})(?:\w+|\{\w+\}|\([^)]*\))|(?:(?<=^)|(?<=:))~(?=/|$)|`[^`]*`"
)
_PYTHONS: Final = re.compile(r".*/(site|dist)-packages(/.*)?")
# In front of the environment's folders, their `python3` would be the first.
_SYSTEM: Final = ("/bin", "/sbin", "/usr/bin", "/usr/sbin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The rule of some variables."""

    names: tuple[str, ...]
    rule: Literal["never", "warned", "folders", "path", "cuda", "compiler", "driver"]
    build: bool = False
    harm: str
    instead: str


@functools.cache
def load_rows() -> tuple[Row, ...]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return tuple(Row(**row | {"names": tuple(row["names"])}) for row in tomllib.loads(text)["row"])


def check_variables(recipe: Recipe) -> Iterator[Finding]:
    """Judge the recipe's `env`, and that of each extension."""
    for name, value in recipe.env:
        row = _row(name)
        unexpanded = _EXPANDED.search(own_reference(name).sub("", value))
        if row and (judged := _judge(row, name, value, recipe)):
            yield _finding(recipe, f"env.{name}", *judged, row.instead)
        elif unexpanded:
            message = f"nothing expands `{unexpanded[0]}`: programs get these letters"
            hint = "write the folder itself, or set the variable where you start the program"
            yield _finding(recipe, f"env.{name}", Severity.ERROR, message, hint)
    for index, extension in enumerate(recipe.extensions):
        for name, _ in extension.env:
            if (row := _row(name)) and row.build:
                hint = "leave it out: the build finds the recipe's Python, compilers and toolkit"
                place = f"extensions[{index}].env.{name}"
                yield _finding(recipe, place, Severity.ERROR, f"it {row.harm}", hint)


def _row(name: str) -> Row | None:
    rows = (row for row in load_rows() if any(fnmatch.fnmatchcase(name, pattern) for pattern in row.names))
    return next(rows, None)


def _judge(row: Row, name: str, value: str, recipe: Recipe) -> tuple[Severity, str] | None:
    """Return what is wrong with this value and how severe that is, None for a good one."""
    harmful, doubtful = (Severity.ERROR, f"it {row.harm}"), (Severity.WARNING, f"it {row.harm}")
    match row.rule:
        case "never":
            return harmful
        case "warned":
            return doubtful
        case "path" | "folders":
            return _judge_folders(row, name, value)
        case "cuda":
            return None if recipe.cuda and value in _OF_TOOLKIT else harmful
        case "compiler":
            return None if _COMPILERS.fullmatch(value) else doubtful
        case "driver":
            return None if not recipe.cuda or {"all", "compute"} & set(value.split(",")) else harmful
        case _:
            assert_never(row.rule)


def _judge_folders(row: Row, name: str, value: str) -> tuple[Severity, str] | None:
    entries = value.split(":")
    own = [at for at, entry in enumerate(entries) if own_reference(name).fullmatch(entry)]
    for at, entry in enumerate(entries):
        if at not in own and (not entry.startswith("/") or "$" in entry):
            return Severity.ERROR, f"{entry!r} in it is not the absolute path of a folder"
        if _PYTHONS.fullmatch(entry):
            return Severity.ERROR, f"{entry!r} in it holds packages of another Python"
        if row.rule == "path" and own and at < own[0] and entry.rstrip("/") in _SYSTEM:
            return Severity.ERROR, f"{entry!r} before `$PATH` hides the environment's `python3`"
    if row.rule == "path":
        return None if own else (Severity.ERROR, f"it {row.harm}")
    return Severity.WARNING, f"it {row.harm}"


def _finding(recipe: Recipe, key: str, severity: Severity, message: str, hint: str) -> Finding:
    path = f"$.{key}"
    return Finding(
        code=RecipeCode.VARIABLE, severity=severity, where=recipe.place(path), message=f"{path}: {message}", hint=hint
    )  # fmt: skip
