"""Plan → text: a Dockerfile or a definition file that builds the same environment without envbuilder.

Nothing is decided here and nothing is read: what a build does comes in as a `Kit`, and every value of a recipe is data in
the text, whatever it holds.
"""

from envbuilder.plan.render.definition import render_definition
from envbuilder.plan.render.dockerfile import render_base, render_dockerfile
from envbuilder.plan.render.kit import Compile, Kit, Packages
from envbuilder.plan.render.stages import EXPORTED, arguments
from envbuilder.plan.render.steps import rules

__all__ = [
    "EXPORTED",
    "Compile",
    "Kit",
    "Packages",
    "arguments",
    "render_base",
    "render_definition",
    "render_dockerfile",
    "rules",
]
