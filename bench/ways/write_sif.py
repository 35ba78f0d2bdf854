"""Writes image and SIF of a recipe whose layers are in the store: `write_sif.py NAME RECIPES OUTPUT`."""

import os
import sys
from pathlib import Path

from envbuilder.artifacts.outputs import Outputs
from envbuilder.build.artifacts import build_artifacts
from envbuilder.build.assemble.engine import AssembleEngine
from envbuilder.build.pipeline import make_plan
from envbuilder.commands._build_context import build_context
from envbuilder.commands.context import Session

name, recipes, output = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
shop = build_context(Session(environment=dict(os.environ), color=False), recipes)
_, plan, _ = make_plan(name, shop)
engine = AssembleEngine(store=shop.store, runner=shop.runner, console=shop.console, limits=shop.limits)
if engine.missing(plan):
    sys.exit("the store lacks a layer")
output.mkdir(parents=True, exist_ok=True)
build_artifacts(
    plan, Outputs(folder=output, name=name), engine=engine, runner=shop.runner, console=shop.console,
    part_done=lambda _: None, image_done=lambda _: None,
)  # fmt: skip
