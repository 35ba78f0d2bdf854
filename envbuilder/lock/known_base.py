"""What is known of a recipe's base image without asking its registry."""

from pathlib import Path

from envbuilder.compat.image_facts import Base
from envbuilder.core.cache import Store
from envbuilder.core.errors import LockError
from envbuilder.lock.file import load_lock
from envbuilder.lock.resolve import recall
from envbuilder.recipe.model import Recipe


def lock_path(recipe: Recipe) -> Path:
    """Return where the recipe's lock lies."""
    return recipe.path.with_suffix(".lock")


def known_base(recipe: Recipe, *, store: Store) -> Base | None:
    """Return what the lock knows of the recipe's base image, otherwise what the last attempt to lock it found."""
    try:
        base = load_lock(lock_path(recipe)).base
    except LockError:
        base = None
    if base is None or base.reference != recipe.image:
        base = recall(store, recipe.image)
    return base.inside if base else None
