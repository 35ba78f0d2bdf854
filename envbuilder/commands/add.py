"""`add`: requirements into a recipe that is there, as an edit of it, `lock` and `build` would do."""

from pathlib import Path
from typing import Annotated

import typer

from envbuilder.builder.batch import BuiltRecipe
from envbuilder.commands._console import KEPT, build_context
from envbuilder.commands.context import Load, Name, Output, Recipes, Session, command
from envbuilder.core.answer import Answer, Reply
from envbuilder.core.cache import remove_tree
from envbuilder.core.errors import UsageError
from envbuilder.core.plain import pasted
from envbuilder.recipe.load import find_recipe
from envbuilder.recipe.matrix import file_of
from envbuilder.run.desk_packages import installed, venv_of
from envbuilder.run.named import need_sif


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
    "envbuilder add a100 --installed",
    "envbuilder add a100 --installed --to-sif today.sif",
)
def add(
    session: Session, name: Name,
    packages: Annotated[list[str] | None, typer.Argument(metavar="PACKAGE",
                                                         help="requirements as pip knows them, or git+URL[@REVISION]")] = None,
    *,
    is_tried: Annotated[bool, typer.Option("--installed", help="what `exec --writable` has installed in this folder")] = False,
    to_sif: Annotated[Path | None, typer.Option("--to-sif", metavar="FILE",
        help="with --installed: leave the recipe, and pack both into a SIF for now")] = None,
    output: Output, loads: Load, recipes: Recipes,
) -> Reply[AddedPackages]:  # fmt: skip
    """Write packages into a recipe, lock it and build it. If that fails, recipe and lock stay as they were."""
    path, variant = file_of(find_recipe(name, recipes))
    if to_sif and (packages or not is_tried):
        raise UsageError(
            "`--to-sif` packs what is installed here", hint="write `--installed`, and no PACKAGE"
        )
    if to_sif:
        from envbuilder.run.desk_sif import pack  # noqa: PLC0415 - zstandard, for this alone

        requirements = pack(path.stem, need_sif(name, output, recipes).sif, Path.cwd(), to_sif)
        change = f"{to_sif}: {name} with {', '.join(requirements)}"
        text = f"{change}\n$ envbuilder launch local {pasted(to_sif)} -- PROGRAM"
        return Reply(data=AddedPackages(recipe=path, edits=(), changes=(change,), built=()), text=text)
    packages = [*(packages or ()), *(installed(path.stem, Path.cwd()) if is_tried else ())]
    if not packages:
        raise UsageError("no PACKAGE to add", hint="name one, or give `--installed`")
    if variant:
        hint = f"envbuilder add {pasted(path, *packages)}"
        raise UsageError(f"`{name}` is a variant, and all variants of `{path}` have its packages", hint=hint)
    from envbuilder.builder.new_recipe import add_packages  # noqa: PLC0415 - all of a build, which `--help` does without

    context = build_context(session, recipes, note=KEPT)
    added = add_packages(path, packages, recipes, context, output=output, load_image=loads)
    if is_tried:
        remove_tree(venv_of(path.stem, Path.cwd()))  # the environment has all of it
    results, edits = added.results, (f"{path}: {edit}" for edit in added.edits)
    built = tuple(result.answer() for result in results)
    return Reply(
        data=AddedPackages(recipe=path, edits=added.edits, changes=added.changes, built=built),
        text="\n".join((*edits, *added.changes, *(result.text() for result in results))),
        findings=tuple(finding for result in results for finding in result.findings),
    )
