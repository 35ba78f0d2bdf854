"""Gather the data of a rendered Dockerfile or definition file: the plan, and the programs of `runtime/kit`."""

from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from envbuilder import runtime as image
from envbuilder import steps
from envbuilder.builder.extensions.programs import wheel_env
from envbuilder.core.cache import Store
from envbuilder.core.errors import UsageError
from envbuilder.lock.repositories import addresses
from envbuilder.plan.extension import FILES
from envbuilder.plan.make import make_plan
from envbuilder.plan.model import ExtensionsStep, Plan
from envbuilder.plan.render.definition import render_definition
from envbuilder.plan.render.dockerfile import render_dockerfile
from envbuilder.plan.render.kit import Kit
from envbuilder.recipe.model import Recipe
from envbuilder.run.devcontainer import image_labels
from envbuilder.sources.names import PYTORCH_INDEX

RENDERERS: Final[Mapping[str, Callable[[Kit], str]]] = {
    "dockerfile": render_dockerfile,
    "apptainer": render_definition,
}


def render_recipe(name: str, recipes: Path, store: Store, form: str) -> str:
    """Return the plan as a text in one of the forms of `RENDERERS`, which builds the same environment."""
    recipe, plan, _ = make_plan(name, recipes, store)
    return RENDERERS[form](make_kit(recipe, plan, pytorch_index=PYTORCH_INDEX))


def make_kit(recipe: Recipe, plan: Plan, *, pytorch_index: str) -> Kit:
    """Return the data of a rendered text. Raises UsageError for an image as base, and for an extension without `sources`."""
    if plan.os.image:
        raise UsageError(
            f"`{plan.name}` is based on the image `{plan.os.image}`, but `render` supports only distributions",
            hint="`base: debian/bookworm` in the recipe, or another suite that `envbuilder init` knows",
        )
    archived = next((extension for extension in plan.extensions if extension.archive), None)
    if archived is not None:
        raise UsageError(
            f"the extension `{archived.name}` cannot be written as text: its archive is not among the files of a text",
            hint="`path` in a recipe can be written; `envbuilder build` makes the others",
        )
    return Kit(
        plan=plan,
        summary=recipe.summary,
        programs=dict(image.files("kit")) | {name: steps.text(name) for name in (*FILES, "extensions.py")},
        uv=metadata.version("uv"),
        pytorch_index=pytorch_index,
        labels=image_labels(plan),
        extensions=next(
            (step.made_by(plan) for step in plan.steps if isinstance(step, ExtensionsStep)), None
        ),
        wheel_env=wheel_env("/kit/customize", plan.processor) if plan.has_sdists else (),
        repositories=addresses(recipe, None),
    )
