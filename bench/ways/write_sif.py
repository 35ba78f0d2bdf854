"""Write image and SIF of a recipe whose layers are in the store: `write_sif.py NAME RECIPES OUTPUT`."""

import os
import sys
from pathlib import Path

from envbuilder.artifacts.outputs import Outputs
from envbuilder.builder.artifacts import ImageLoader, build_artifacts
from envbuilder.builder.context import RunnerChoice
from envbuilder.builder.pipeline import open_step_runner
from envbuilder.commands._console import build_context
from envbuilder.commands.context import Session
from envbuilder.plan.make import make_plan

name, recipes, output = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
shop = build_context(Session(environment=dict(os.environ), color=False), recipes)
_, plan, _ = make_plan(name, shop.recipes, shop.store)
runner = open_step_runner(plan, RunnerChoice(), shop)
if runner.job.missing():
    sys.exit("the store lacks a layer")
output.mkdir(parents=True, exist_ok=True)
build_artifacts(runner, Outputs(folder=output, name=name), ImageLoader(None, name, shop.console))
