"""`add`: requirements into a recipe that is there, as an edit of it, `lock` and `build` would do."""

import os
from pathlib import Path
from typing import Annotated

import typer

from envbuilder.builder.batch import BuiltRecipe
from envbuilder.commands._console import KEPT, build_context
from envbuilder.commands.context import Load, Name, Output, Recipes, Session, command
from envbuilder.core.answer import Answer, Reply
from envbuilder.core.errors import UsageError
from envbuilder.core.plain import need_no_credentials, pasted
from envbuilder.lock.git import find_commit
from envbuilder.recipe.edit import parse_package, put_package, put_project
from envbuilder.recipe.load import expand, find_recipe, load
from envbuilder.recipe.matrix import file_of
from envbuilder.recipe.requirement_file import Direct, parse_direct


class AddedPackages(Answer):
    """The changes of recipe and locks, one line each, and a row for each variant of the recipe."""

    recipe: Path
    edits: tuple[str, ...]
    changes: tuple[str, ...]
    built: tuple[BuiltRecipe, ...]


@command(
    "add",
    "envbuilder add a100 einops",
    "envbuilder add a100 einops 'hydra-core>=1.3' git+https://host/team/project@main",
)
def add(
    session: Session, name: Name,
    packages: Annotated[list[str], typer.Argument(metavar="PACKAGE",
                                                  help="requirements as pip knows them, or git+URL[@REVISION]")],
    *,
    output: Output, loads: Load, recipes: Recipes,
) -> Reply[AddedPackages]:  # fmt: skip
    """Write packages into a recipe, lock it and build it. If that fails, recipe and lock stay as they were."""
    path, variant = file_of(find_recipe(name, recipes))
    asked = [_parse(package) for package in packages]
    if variant:
        hint = f"envbuilder add {pasted(path, *packages)}"
        raise UsageError(f"`{name}` is a variant, and all variants of `{path}` have its packages", hint=hint)
    _need_writable(path, packages)
    names = expand(str(path), recipes)
    for variant in names:
        load(Path(variant))  # one with mistakes is not edited
    context = build_context(session, recipes, note=KEPT)
    text, edits = path.read_bytes().decode(), []
    for package in asked:
        if isinstance(package, Direct):
            commit = find_commit(package.git, package.revision or "HEAD", context.runner)
            text, edit = put_project(text, package, commit)
        else:
            text, edit = put_package(text, package)
        edits.append(edit)
    from envbuilder.builder.new_recipe import build_edited  # noqa: PLC0415 - all of a build, which `--help` does without

    changes, results = build_edited(path.resolve(), text, names, context, output=output, load_image=loads)
    lines = [*(f"{path}: {edit}" for edit in edits), *changes, *(result.text() for result in results)]
    built = tuple(result.answer() for result in results)
    return Reply(
        data=AddedPackages(recipe=path, edits=tuple(edits), changes=changes, built=built),
        text="\n".join(lines),
        findings=tuple(finding for result in results for finding in result.findings),
    )


def _parse(package: str) -> str | Direct:
    """Return a requirement, or a project of a git repository. Raises UsageError for any other text."""
    need_no_credentials(package)
    place = parse_direct(package.strip())
    return place if place and place.git else parse_package(package)


def _need_writable(path: Path, packages: list[str]) -> None:
    """Raise UsageError for a recipe that this user may not write, such as one of a folder that a site shares."""
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        return
    copy = f"cp -R --no-preserve=mode {pasted(path.parent.resolve())} my-recipes"
    again = f"envbuilder add {pasted(path.stem, *packages, '--recipes', 'my-recipes')}"
    raise UsageError(
        f"you may not write the recipe `{path}`", hint=f"`{copy}` copies its folder; then `{again}`"
    )
