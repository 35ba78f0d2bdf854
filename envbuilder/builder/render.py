"""Gather the data of a printed Dockerfile or definition file."""

from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from envbuilder.compat.repositories import addresses
from envbuilder.core.cache import Store
from envbuilder.plan.make import make_plan
from envbuilder.plan.model import Plan
from envbuilder.plan.printer.definition import print_definition
from envbuilder.plan.printer.dockerfile import print_dockerfile
from envbuilder.plan.printer.printed import Printed
from envbuilder.recipe.model import Recipe
from envbuilder.run.devcontainer import image_labels
from envbuilder.sources.names import PYTORCH_INDEX

PRINTERS: Final[Mapping[str, Callable[[Printed], str]]] = {
    "dockerfile": print_dockerfile,
    "apptainer": print_definition,
}


def print_recipe(name: str, recipes: Path, store: Store, form: str) -> str:
    """Return the plan as a text in one of the forms of `PRINTERS`, which builds the same environment."""
    recipe, plan, _ = make_plan(name, recipes, store)
    return PRINTERS[form](make_printed(recipe, plan, pytorch_index=PYTORCH_INDEX))


def make_printed(recipe: Recipe, plan: Plan, *, pytorch_index: str) -> Printed:
    archives = ((extension, extension.archive) for extension in plan.extensions if extension.archive)
    return Printed(
        plan=plan,
        summary=recipe.summary,
        uv=metadata.version("uv"),
        pytorch_index=pytorch_index,
        labels=image_labels(plan),
        repositories=addresses(recipe, plan.os.base.inside if plan.os.base else None),
        commits={
            archive.sha256: (extension.git, extension.commit)
            for extension, archive in archives
            if extension.git
        },
    )
