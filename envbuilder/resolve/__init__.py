"""Recipe → lock: makes every choice that the recipe leaves open, and names every file that a build will need.

A part of the old lock whose inputs are the same is taken over as it is, so that locking after an edit of an extension
asks nobody and takes no time. Parts that are resolved anew keep the old lock's Python versions where they still fit.
"""

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, time

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuilder.errors import IncompatibleError, UsageError
from envbuilder.lock import Artefact, Lock, recipe_inputs
from envbuilder.recipe import Recipe
from envbuilder.resolve.deb import OS_PACKAGES, os_packages, resolve_debs, resolve_toolkit_debs
from envbuilder.resolve.extension import lock_extensions, source_digests, store_sources
from envbuilder.resolve.means import Means, Target, Wish
from envbuilder.resolve.wheel import resolve_toolkit_wheels, resolve_wheels
from envbuilder.tables.distribution import load_distributions
from envbuilder.tables.toolkit import WheelPart, load_toolkits
from envbuilder.tables.torch import load_torches

__all__ = ["Means", "Target", "Wish", "lock_extensions", "make_target", "resolve", "source_digests", "store_sources"]

log = logging.getLogger(__name__)

PLATFORM = "linux/amd64"


def make_target(recipe: Recipe) -> Target:
    """Look the recipe's pins up in the tables; raises IncompatibleError for what `check` refuses as well."""
    distribution = next((row for row in load_distributions().rows if row.name == recipe.base), None)
    if distribution is None:
        raise IncompatibleError(f"{recipe.place('$.base')}: no suite `{recipe.base}` is known", hint="`envbuilder check` lists them")
    toolkit = load_toolkits().get(recipe.cuda)
    if recipe.cuda and toolkit is None:
        raise IncompatibleError(f"{recipe.place('$.cuda')}: CUDA {recipe.cuda} cannot be laid out by this envbuilder")
    torch = next((row for row in load_torches().rows if row.version == recipe.pytorch), None)
    return Target(distribution=distribution, torch=torch, toolkit=toolkit)


def resolve(recipe: Recipe, target: Target, *, old: Lock | None, wish: Wish, means: Means) -> Lock:
    """Make the lock; raises RecipeError, IncompatibleError or FetchError.

    The epoch is 00:00 UTC of the day on which a recipe was first locked; it is part of every layer's key, so it is kept as
    long as possible: only a full upgrade that changes an artefact moves it.
    """
    extensions = lock_extensions(recipe)
    stays = _taken_over(recipe, target, old, wish)
    kept = _kept_versions(old, wish)
    with ThreadPoolExecutor(max_workers=3) as pool:  # apt, uv and servers take turns to wait
        debs = pool.submit(lambda: stays.debs or resolve_debs(recipe, target, means, renew=wish.upgrade))
        toolkit = pool.submit(lambda: stays.toolkit if stays.toolkit is not None else _resolve_toolkit(recipe, target, means, wish))
        wheels = pool.submit(lambda: stays.wheels or resolve_wheels(recipe, target, means, prefer=kept, before=wish.before))
    lock = Lock(
        recipe=recipe.digest,
        epoch=int(datetime.combine(wish.today, time(), UTC).timestamp()),
        platform=PLATFORM,
        inputs=recipe_inputs(recipe),
        debs=debs.result(),
        toolkit=toolkit.result(),
        wheels=wheels.result(),
        extensions=extensions,
    )
    ...
