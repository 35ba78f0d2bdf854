"""Plan → text: a Dockerfile or a definition file that builds the same environment without envbuilder.

Rendering decides nothing and reads nothing: a `Kit` holds what a build does. Every value of a recipe is data in the text, whatever
it holds. `stages` describes the stages of all texts; `Dockerfile.base` is written from it, too.
"""

from envbuilder.plan.render.definition import render_definition
from envbuilder.plan.render.dockerfile import render_base, render_dockerfile
from envbuilder.plan.render.kit import Compile, Kit
from envbuilder.plan.render.stages import EXPORTED, arguments
from envbuilder.plan.render.steps import rules

__all__ = [
    "EXPORTED",
    "Compile",
    "Kit",
    "arguments",
    "render_base",
    "render_definition",
    "render_dockerfile",
    "rules",
]
