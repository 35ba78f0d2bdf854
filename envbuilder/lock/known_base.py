"""What is known of a recipe's base image without asking its registry."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from envbuilder.compat.image_facts import PLATFORM, Base
from envbuilder.core.cache import Store, sha256_text
from envbuilder.core.errors import LockError
from envbuilder.core.models import read_node
from envbuilder.core.places import Mistakes, load_text, parse_json
from envbuilder.lock.file import load_lock
from envbuilder.lock.model import Lock, LockedBase
from envbuilder.recipe.model import Recipe

FORMAT: Final = 1  # of what is kept; a new number has every image looked into again
BASE: Final = "base.json"


def lock_path(recipe: Recipe) -> Path:
    """Return where the recipe's lock lies."""
    return recipe.path.with_suffix(".lock")


def known_base(recipe: Recipe, *, store: Store, read_lock: Callable[[Path], Lock] = load_lock) -> Base | None:
    """Return what the lock knows of the recipe's base image, otherwise what the last attempt to lock it found."""
    try:
        base = read_lock(lock_path(recipe)).base
    except LockError:
        base = None
    if base is None or base.reference != recipe.image:
        base = recall(store, recipe.image)
    return base.inside if base else None


def recall(store: Store, reference: str) -> LockedBase | None:
    """Return what was found in the image when it was last read, or None: never, or by another envbuilder."""
    path = kept_folder(store, reference) / BASE
    mistakes = Mistakes()
    text = load_text(path, mistakes) if path.is_file() else None
    root = parse_json(text, str(path), mistakes) if text else None
    return read_node(LockedBase, root, mistakes) if root else None


def kept_folder(store: Store, reference: str) -> Path:
    """Return the folder of the cache with what was found in an image."""
    return store.base(sha256_text(f"{FORMAT} {PLATFORM} {reference}"))
