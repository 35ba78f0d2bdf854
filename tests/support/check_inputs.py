"""A recipe and the tables that the rules of `check` judge it by."""

import dataclasses
from pathlib import Path

from envbuilder.compat.check import load_tables
from envbuilder.recipe.model import Recipe

TABLES = dataclasses.replace(load_tables(), releases=("11.2.2", "12.4.1", "12.6.3", "13.2.2"))


RECIPE = Recipe(
    name="x", path=Path("x.yaml"), summary="", gpus=("A100",), base="debian/bookworm", python="3.11", cuda="12.4",
    gcc="12", libxcrypt="4.4", pytorch="2.6.0", packages=(), apt=(), extensions=(), env=(), tests=(),
    places=(("$", "x.yaml:1:1"), ("$.cuda", "x.yaml:5:7"), ("$.gpus[0]", "x.yaml:2:8")),
)  # fmt: skip
