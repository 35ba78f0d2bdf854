"""The layers of a recipe as the sandbox makes them, without image and SIF."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from envbuilder.builder.context import RunnerChoice
from envbuilder.builder.pipeline import open_step_runner, resolve_context
from envbuilder.commands import context as sessions
from envbuilder.commands._console import build_context
from envbuilder.layers.layer import Layer
from envbuilder.lock.resolve.extensions import store_sources
from envbuilder.plan.make import make_plan


def make_layers(recipe: Path) -> tuple[Layer, ...]:
    """Make all layers of a locked recipe in the user's cache."""
    shop = build_context(sessions.Session(environment=dict(os.environ)), recipe.parent)
    read, plan, _ = make_plan(str(recipe), shop.recipes, shop.store)
    resolving = resolve_context(shop, offline=False)
    store_sources(read, plan.extensions, resolving)
    runner = open_step_runner(plan, RunnerChoice(), shop)
    resolving.fetcher.fetch(runner.artifacts())
    with ThreadPoolExecutor(16) as pool:
        return tuple(one.result() for one in runner.start(pool))
