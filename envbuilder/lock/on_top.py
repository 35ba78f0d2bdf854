"""The recipe that `add` writes: packages in one more layer on top of a parent."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuilder.core.errors import UsageError
from envbuilder.core.plain import need_no_credentials
from envbuilder.core.process import Runner
from envbuilder.lock.git import find_commit
from envbuilder.recipe.load import load
from envbuilder.recipe.requirement_file import parse_direct


def need_addable(name: str, parent: Path, packages: Sequence[str], new: str) -> None:
    """Raise UsageError for a parent that takes no layer, and for packages that the parent keeps or that hold a password."""
    recipe = load(parent)
    if recipe.add and recipe.parent:
        words = shlex.join((recipe.parent.stem, *recipe.add, *packages, "--as", new))
        raise UsageError(
            f"`{name}` was made by `add`, and takes no second layer", hint=f"envbuilder add {words}"
        )
    for package in packages:
        need_no_credentials(package)
        if _name(package) == "torch":
            raise UsageError(
                f"`{parent.stem}` keeps its torch {recipe.pytorch}: what is compiled for it fits no other",
                hint=f"a recipe with `extends: {parent.stem}` and another `pytorch` is another environment",
            )


def _name(package: str) -> str:
    try:
        return canonicalize_name(Requirement(package).name)
    except InvalidRequirement:
        return ""  # the recipe's loader says so, or it is a repository


def text_on_top(parent: str, packages: Sequence[str], runner: Runner) -> str:
    """Return a recipe that adds packages to its parent. A revision of a repository becomes its commit."""
    added, projects = [], []
    for package in packages:
        if (place := parse_direct(package.strip())) and place.git:
            commit = find_commit(place.git, place.revision or "HEAD", runner)
            projects.append(f"  - {place.entry(commit=commit)}\n")
        else:
            added.append(f"  - {json.dumps(package, ensure_ascii=False)}\n")
    lines = [f"extends: {parent}\n", "add:\n" if added else "add: []\n", *added]
    return "".join([*lines, *(["extensions:\n"] if projects else []), *projects])
