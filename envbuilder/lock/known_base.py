"""Find what the lock or the cache knows of a recipe's base image, without a request to its registry."""

from pathlib import Path
from typing import Final

from envbuilder.compat.image_facts import PLATFORM, Base
from envbuilder.core.cache import Store, sha256_text
from envbuilder.core.errors import LockError
from envbuilder.core.models import read_node
from envbuilder.core.places import Mistakes, load_text, parse_json
from envbuilder.lock.file import load_lock
from envbuilder.lock.model import LockedBase
from envbuilder.recipe.model import Recipe

FORMAT: Final = 3  # of the cached facts; with a new number, every image is inspected again
BASE: Final = "base.json"


def lock_path(recipe: Recipe) -> Path:
    return recipe.path.with_name(f"{recipe.name}.lock")


def known_base(recipe: Recipe, *, store: Store) -> Base | None:
    """Return the facts about the base image from the lock, otherwise from the last attempt to lock it."""
    base = known_locked_base(recipe, store=store)
    return base.inside if base else None


def known_locked_base(recipe: Recipe, *, store: Store) -> LockedBase | None:
    """Return the base image with its packages, as `known_base` finds it."""
    try:
        base = load_lock(lock_path(recipe)).base
    except LockError:
        base = None
    return base if base and base.reference == recipe.image else recall(store, recipe.image)


def recall(store: Store, reference: str) -> LockedBase | None:
    """Return the cached facts of the image, or None if no envbuilder with this format has read it, or they are damaged."""
    folder = kept_folder(store, reference)
    mistakes = Mistakes()
    text = load_text(folder / BASE, mistakes) if store.holds(folder, whole=True) else None
    root = parse_json(text, str(folder / BASE), mistakes) if text else None
    return read_node(LockedBase, root, mistakes) if root else None


def kept_folder(store: Store, reference: str) -> Path:
    """Return the cache folder with the facts of an image."""
    return store.base(sha256_text(f"{FORMAT} {PLATFORM} {reference}"))
