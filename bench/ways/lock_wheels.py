"""Choose only the wheels of a recipe's lock: `lock_wheels.py NAME RECIPES`. The last line says what choosing alone took."""

import json
import os
import resource
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from envbuilder.commands._console import build_context
from envbuilder.commands.context import Session
from envbuilder.lock.resolve import make_target
from envbuilder.lock.resolve.context import LockOptions, Task, open_context
from envbuilder.lock.resolve.wheels import resolve_wheels
from envbuilder.recipe.load import find_recipe, load


def cpu() -> float:
    """Return the CPU seconds of this process and of its programs so far."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


shop = build_context(Session(environment=dict(os.environ), color=False), Path(sys.argv[2]))
recipe = load(find_recipe(sys.argv[1], shop.recipes))
resolving = open_context(shop.store, shop.runner, shop.environment, shop.console, offline=False)
task = Task(
    recipe=recipe,
    target=make_target(recipe),
    options=LockOptions(today=datetime.now(UTC).date()),
    context=resolving,
)
resolving.sources()  # a whole lock has read the settings before, for apt
start, before = time.monotonic(), cpu()
found = resolve_wheels(task)
told = {"wall": time.monotonic() - start, "cpu": cpu() - before}
print(*(f"{one.name}=={one.version}" for one in found.artifacts))
print(json.dumps(told))
