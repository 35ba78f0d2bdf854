"""Choose only the wheels of a recipe's lock: `lock_wheels.py NAME RECIPES`."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from envbuilder.commands._console import build_context
from envbuilder.commands.context import Session
from envbuilder.lock.resolve import make_target
from envbuilder.lock.resolve.context import LockOptions, Task, open_context
from envbuilder.lock.resolve.wheels import resolve_wheels
from envbuilder.recipe.load import find_recipe, load

shop = build_context(Session(environment=dict(os.environ), color=False), Path(sys.argv[2]))
recipe = load(find_recipe(sys.argv[1], shop.recipes))
resolving = open_context(shop.store, shop.runner, shop.environment, shop.console, offline=False)
task = Task(
    recipe=recipe,
    target=make_target(recipe),
    options=LockOptions(today=datetime.now(UTC).date()),
    context=resolving,
)
found = resolve_wheels(task)
print(*(f"{one.name}=={one.version}" for one in found.artifacts))
