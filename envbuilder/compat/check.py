"""Judge a recipe by rules and tables before anything is built, and report every finding at once.

Each rule is one small function of `rules` that yields problems. A rule yields nothing if another rule
reports the cause: an unknown suite has no Python to compare with. `suggest` finds the nearest pins that
pass every rule.
"""

import fnmatch
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from posixpath import normpath
from typing import Final

from envbuilder.compat.context import CheckCode, CheckContext, Problem, Tables, load_tables, make_context
from envbuilder.compat.host_file import HostFacts, load_host_facts
from envbuilder.compat.image_facts import Base
from envbuilder.compat.project_code import check_code, check_cuda_code, check_modules
from envbuilder.compat.rules import find_problems
from envbuilder.compat.suggest import Repair, find_better, find_repairs
from envbuilder.core.errors import IncompatibleError
from envbuilder.core.findings import Finding, Severity
from envbuilder.core.models import read_node
from envbuilder.core.places import Mistakes, load
from envbuilder.recipe.fields import RecipeCode, own_reference
from envbuilder.recipe.load import find_recipe, mistaken, read
from envbuilder.recipe.model import Recipe

__all__ = [
    "BaseOf",
    "CheckCode",
    "CheckReport",
    "Repair",
    "Tables",
    "examine",
    "examine_file",
    "judge",
    "load_tables",
    "need_sound",
]  # fmt: skip

BaseOf = Callable[[Recipe], Base | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    findings: tuple[Finding, ...]
    repairs: tuple[Repair, ...]  # the nearest first; empty without errors, or if no change of pins helps

    @property
    def has_errors(self) -> bool:
        return any(finding.severity is Severity.ERROR for finding in self.findings)


def judge(recipe: Recipe, tables: Tables, host: HostFacts | None = None) -> tuple[Problem, ...]:
    """Return the problems of a recipe, without searching for repairs."""
    return tuple(problem for _, problem in find_problems(make_context(recipe, tables, host)))


def examine(
    recipe: Recipe, tables: Tables, host: HostFacts | None = None, base: Base | None = None
) -> CheckReport:
    """Return the findings; the hint of each names the nearest pins that pass."""
    context = make_context(recipe, tables, host, base)
    problems = [problem for _, problem in find_problems(context)]
    has_errors = any(problem.is_error for problem in problems)
    repairs = find_repairs(context) if has_errors else ()
    return CheckReport(
        findings=(
            *recipe.notes,
            *(_finding(context, problem, repairs, has_errors=has_errors) for problem in problems),
            *check_variables(recipe),
        ),
        repairs=repairs,
    )


def examine_file(
    name: str, folder: Path, host: Path | None = None, *, base_of: BaseOf = lambda _: None
) -> tuple[Recipe, CheckReport]:
    """Examine a recipe file, with the host facts if given; raises UsageError if it is no recipe.

    `base_of` returns the known facts of a recipe's base image.
    """
    path = find_recipe(name, folder)
    recipe, mistakes = read(path)
    if recipe is None:
        raise mistaken(path, mistakes)
    facts = load_host_facts(host) if host else None
    base = base_of(recipe) if recipe.image else None
    tables = load_tables()
    report = examine(recipe, tables, facts, base)
    report = replace(
        report,
        findings=(
            *report.findings,
            *check_code(recipe, tables),
            *check_cuda_code(recipe),
            *check_modules(recipe),
        ),
    )
    if mistakes:
        raise mistaken(path, (*mistakes, *report.findings))
    return recipe, report


def need_sound(recipe: Recipe, report: CheckReport) -> None:
    """Raise an error with every finding if the recipe has errors: IncompatibleError if one is of its pins, otherwise RecipeError."""
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    if any(finding.code != RecipeCode.VARIABLE for finding in errors):
        raise IncompatibleError(f"the pins of `{recipe.name}` cannot work together", findings=report.findings)
    if errors:
        raise mistaken(recipe.path, report.findings)


def _finding(
    context: CheckContext, problem: Problem, repairs: tuple[Repair, ...], *, has_errors: bool
) -> Finding:
    path = f"$.{problem.key}"
    source = f" (source: {problem.source})" if problem.source else ""
    if problem.severity is Severity.WARNING:
        better = None if has_errors or not problem.pins else find_better(context, problem)
        repairs = (better,) if better else ()
    elif not problem.pins and not problem.moves:
        repairs = ()
    words = "; or ".join(repair.words() for repair in repairs)
    return Finding(
        code=problem.code,
        severity=problem.severity,
        where=context.recipe.place(path),
        message=f"{path}: {problem.message}{source}",
        hint="; ".join(part for part in (f"write {words}" if words else "", problem.advice) if part),
    )


# What a shell would expand. `$ORIGIN` is for the loader.
_EXPANDED: Final = re.compile(
    r"\$(?!ORIGIN\b|\{ORIGIN\})(?:\w+|\{\w+\}|\([^)]*\))|(?:(?<=^)|(?<=:))~(?=/|$)|`[^`]*`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinRow:
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
def load_rows() -> tuple[PinRow, ...]:
    root = load(Path(__file__).with_name("variables.yaml"), mistakes := Mistakes())
    rows = root and read_node(tuple[PinRow, ...], root, mistakes)
    assert rows, mistakes.findings
    return rows


def check_variables(recipe: Recipe) -> Iterator[Finding]:
    """Warn of variables that break the environment, whose value a recipe's replaces, and of texts that nothing expands."""
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
