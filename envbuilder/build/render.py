"""Gather what a rendered Dockerfile or definition file is written from: the plan, and the programs of `runtime/kit`."""

from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Final

from envbuilder import runtime as image
from envbuilder.build.artifacts import image_config
from envbuilder.build.assemble import os as debian
from envbuilder.build.assemble.byte_code import is_repeatable
from envbuilder.build.assemble.runtime import runtime_files
from envbuilder.build.extensions import container_compiles, need_sources
from envbuilder.core.errors import UsageError
from envbuilder.plan.model import Plan
from envbuilder.plan.render import Kit, Packages, render_definition, render_dockerfile
from envbuilder.recipe.model import Recipe

__all__ = ["DIFFERS", "PAPERS", "RENDERERS", "make_kit"]

RENDERERS: Final[Mapping[str, Callable[[Kit], str]]] = {
    "dockerfile": render_dockerfile,
    "apptainer": render_definition,
}
JOBS: Final = 4  # compilers at once; the machine that will build is not known
# Documents about a build by envbuilder. Another build cannot claim them.
PAPERS: Final = ("opt/envbuilder/lock.json", "opt/envbuilder/plan.txt", "opt/envbuilder/recipe.yaml")
DIFFERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(PAPERS, "says how envbuilder made its image"),
    "opt/envbuilder/provenance.json": "the same",
    "opt/envbuilder/sbom.spdx.json": "the same",
}
"""Paths in which the image of a rendered Dockerfile differs from envbuilder's, with the reason. Times of folders differ as well."""
_COMPILE: Final = "compile_extension.py"


def make_kit(recipe: Recipe, plan: Plan, *, pytorch_index: str) -> Kit:
    """Return everything that a text is written from. Raises UsageError for an image as base, or an extension that no text can hold."""
    if plan.os.image:
        raise UsageError(
            f"`{plan.name}` stands on the image `{plan.os.image}`, and a text is written only for a distribution",
            hint="`base: debian/bookworm` in the recipe, or another suite that `envbuilder init` knows",
        )
    need_sources(plan)
    repeatable = is_repeatable(recipe.python)
    files = runtime_files(plan.runtime).items()
    return Kit(
        plan=plan,
        summary=recipe.summary,
        programs=(*image.files("kit"), (_COMPILE, image.path(_COMPILE).read_text(encoding="utf-8"))),
        packages=Packages(
            names=tuple(debian.PLAIN_NAMES.items()),
            exclude=debian.EXCLUDE,
            keep=(debian.KEEP,),
            drop=debian.DROP,
            after=debian.ADD_USER,
            repeat="" if repeatable else recipe.python,
        ),
        uv=metadata.version("uv"),
        repeatable=repeatable,
        pytorch_index=pytorch_index,
        labels=image_config(plan).labels,
        compiles=container_compiles(plan, jobs=JOBS),
        runtime=tuple((path, (text, f"{mode:o}")) for path, (text, mode) in files if path not in PAPERS),
    )
