"""Chooses the wheels of a recipe and nothing else of its lock: `lock_wheels.py NAME RECIPES`."""

import os
import sys
from pathlib import Path

from envbuilder.recipe import find_recipe, load
from envbuilder.resolve import make_target
from envbuilder.resolve.wheel import resolve_wheels
from envbuilder.session import Session, workshop

shop = workshop(Session(environment=dict(os.environ), color=False), Path(sys.argv[2]))
recipe = load(find_recipe(sys.argv[1], shop.recipes))
found = resolve_wheels(recipe, make_target(recipe), shop.means(offline=False), prefer=(), before=None)
print(*(f"{one.name}=={one.version}" for one in found))
