"""`add`: packages in one more layer on top of a recipe that is there."""

import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuilder.builder.choice import EngineChoice
from envbuilder.builder.result import BuiltRecipe
from envbuilder.commands._build_context import KEPT, build_context
from envbuilder.commands.context import Load, Name, Output, Recipes, Session, command
from envbuilder.core.cache import save_text
from envbuilder.core.errors import EnvbuilderError, UsageError
from envbuilder.core.plain import need_no_credentials
from envbuilder.core.process import Runner
from envbuilder.lock.git import find_commit
from envbuilder.lock.known_base import lock_path
from envbuilder.recipe.load import find_recipe, load, new_path
from envbuilder.recipe.requirement_file import parse_direct


@command(
    "add",
    (
        "envbuilder add a100 einops --as mine",
        "envbuilder add a100 einops 'hydra-core>=1.3' git+https://host/team/project@main --as mine",
    ),
    BuiltRecipe,
)
def add(
    session: Session,
    name: Name,
    packages: Annotated[
        list[str],
        typer.Argument(help="requirements as pip knows them, or git+URL[@REVISION]", metavar="PACKAGE"),
    ],
    *,
    new: Annotated[str, typer.Option("--as", metavar="NAME2", help="the name of the new recipe")],
    output: Output,
    loads: Load = True,
    recipes: Recipes,
) -> None:
    """Add packages to a locked recipe in one more layer: write the recipe NAME2, lock it and build it."""
    parent = find_recipe(name, recipes)
    if (own := load(parent)).add and own.parent:
        words = shlex.join((own.parent.stem, *own.add, *packages, "--as", new))
        raise UsageError(
            f"`{name}` was made by `add`, and takes no second layer", hint=f"envbuilder add {words}"
        )
    for one in packages:
        need_no_credentials(one)
        _need_other_than_torch(one, parent)
    from envbuilder.builder.pipeline import build_recipe, lock_new  # noqa: PLC0415 - all of a build, which `--help` does without

    context = build_context(session, recipes)
    session.kept = KEPT
    text = recipe_text(parent.stem, packages, context.runner)
    path = new_path(new, parent.parent, text)
    save_text(path, text)
    try:
        lock_new(path, context, today=datetime.now(UTC).date())
    except EnvbuilderError:
        path.unlink()
        raise
    result = build_recipe(
        str(path), context, output=output, offline=False, host=None, choice=EngineChoice(load=loads)
    )
    session.data, session.findings = result.answer(), result.findings
    session.text = f"{result.text()}\n  recipe {path}  lock {lock_path(load(path))}"


def recipe_text(parent: str, packages: list[str], runner: Runner) -> str:
    """Return a recipe that adds packages to its parent. A revision of a repository becomes its commit."""
    added, projects = [], []
    for one in packages:
        if (found := parse_direct(one.strip())) and found.git:
            commit = find_commit(found.git, found.revision or "HEAD", runner)
            projects.append(f"  - {found.entry(commit=commit)}\n")
        else:
            added.append(f"  - {json.dumps(one, ensure_ascii=False)}\n")
    lines = [f"extends: {parent}\n", "add:\n" if added else "add: []\n", *added]
    return "".join([*lines, *(["extensions:\n"] if projects else []), *projects])


def _need_other_than_torch(requirement: str, parent: Path) -> None:
    try:
        name = canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement:
        return  # the recipe's loader says so, or it is a repository
    if name == "torch":
        raise UsageError(
            f"`{parent.stem}` keeps its torch {load(parent).pytorch}: what is compiled for it fits no other",
            hint=f"a recipe with `extends: {parent.stem}` and another `pytorch` is another environment",
        )
