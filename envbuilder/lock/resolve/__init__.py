"""Resolve a recipe into a lock: choose each version, and name every file that a build needs.

A part of the old lock whose inputs are the same is taken over as it is, so that locking after an edit of an extension
asks nobody and takes no time. Parts that are resolved anew keep the old lock's Python versions where they still fit.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuilder.compat.image_as_distribution import as_distribution
from envbuilder.compat.tables.distribution import load_distributions
from envbuilder.compat.tables.toolkit import WheelPart, load_toolkits
from envbuilder.compat.tables.torch import load_torches
from envbuilder.core.errors import IncompatibleError, UsageError
from envbuilder.lock.base_image.locked import LockedBase
from envbuilder.lock.model import Artifact, Lock, lock_artifacts, recipe_inputs
from envbuilder.lock.resolve.base_image import Transfer, look, status_of
from envbuilder.lock.resolve.context import LockOptions, ResolveContext, Target
from envbuilder.lock.resolve.debs import os_packages, resolve_debs, resolve_toolkit_debs, upgrade_debs
from envbuilder.lock.resolve.extensions import lock_extensions, store_sources
from envbuilder.lock.resolve.wheels import implied_wheels, resolve_toolkit_wheels, resolve_wheels
from envbuilder.recipe.model import Recipe

__all__ = [
    "LockOptions",
    "ResolveContext",
    "Target",
    "Transfer",
    "lock_extensions",
    "look",
    "make_target",
    "resolve",
    "status_of",
    "store_sources",
]

log = logging.getLogger(__name__)

PLATFORM: Final = "linux/amd64"


def make_target(recipe: Recipe, base: LockedBase | None = None, status: Callable[[], str] = str) -> Target:
    """Look up the recipe's pins in the tables. Raises IncompatibleError for pins that `check` refuses too.

    `base` is the image of a recipe that stands on one, `status` gives dpkg's note of what it holds.
    """
    rows = {row.name: row for row in load_distributions().rows}
    distribution = as_distribution(base.inside, recipe.python, rows) if base else rows.get(recipe.base)
    if distribution is None:
        raise IncompatibleError(
            f"{recipe.place('$.base')}: no suite `{recipe.base}` is known"
            if base is None
            else f"{recipe.place('$.base')}: nothing can be built on `{base.reference}`",
            hint="`envbuilder check` says more",
        )
    own = bool(base and base.inside.toolkit(recipe.cuda))
    toolkit = None if own else load_toolkits().get(recipe.cuda)
    if recipe.cuda and toolkit is None and not own:
        raise IncompatibleError(
            f"{recipe.place('$.cuda')}: CUDA {recipe.cuda} cannot be laid out by this envbuilder"
        )
    torch = next((row for row in load_torches().rows if row.version == recipe.pytorch), None)
    return Target(distribution=distribution, torch=torch, toolkit=toolkit, base=base, status=status)


def resolve(
    recipe: Recipe, target: Target, *, old: Lock | None, options: LockOptions, context: ResolveContext
) -> Lock:
    """Make the lock; raises RecipeError, IncompatibleError, FetchError, or UsageError for options without effect.

    The epoch is 00:00 UTC of the day on which a recipe was first locked. It is part of every layer's key, so it is kept as
    long as possible: only a full upgrade that changes an artifact moves it.
    """
    extensions = lock_extensions(recipe, context, old=None if options.upgrade else old)
    kept = _taken_over(recipe, target, old, options)
    moving = {canonicalize_name(name) for name in options.upgrade_only}
    anew = options.upgrade or (options.before is not None and not options.upgrade_only)
    prefer = tuple(one for one in old.wheels if one.name not in moving) if old and not anew else ()
    debs, toolkit, wheels = kept.debs, kept.toolkit, kept.wheels
    if debs is None:
        debs = resolve_debs(recipe, target, context, options=options)
    elif names := [deb.name for deb in debs if deb.name in options.upgrade_only]:
        if target.base:
            debs = resolve_debs(recipe, target, context, options=replace(options, upgrade=True))
        else:
            debs = upgrade_debs(debs, target, context, names=names, options=options)
    if toolkit is None:
        toolkit = _resolve_toolkit(recipe, target, context, options=options)
    if wheels is None:
        wheels = resolve_wheels(recipe, target, context, prefer=prefer, before=options.before)
    lock = Lock(
        recipe=recipe.digest,
        epoch=int(datetime.combine(options.today, time(), UTC).timestamp()),
        platform=PLATFORM,
        inputs=recipe_inputs(recipe),
        debs=debs,
        toolkit=toolkit,
        wheels=wheels,
        extensions=extensions,
        base=target.base,
    )
    if old is not None and (not options.upgrade or lock_artifacts(old) == lock_artifacts(lock)):
        return replace(lock, epoch=old.epoch)
    return lock


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """The parts of the old lock that are kept; None for a part that must be resolved."""

    debs: tuple[Artifact, ...] | None = None
    toolkit: tuple[Artifact, ...] | None = None
    wheels: tuple[Artifact, ...] | None = None


def _taken_over(recipe: Recipe, target: Target, old: Lock | None, options: LockOptions) -> _Kept:
    """Keep each part with unchanged inputs, unless this version of envbuilder needs other packages."""
    if old is None or options.upgrade:
        return _Kept()
    inputs = recipe_inputs(recipe)
    deb_names = {one.name for one in old.debs}
    wheel_names = {one.name for one in old.wheels}
    toolkit_names = {one.name for one in old.toolkit}
    names = deb_names | wheel_names | toolkit_names
    as_of_another_day = options.before is not None and not options.upgrade_only
    unknown = [name for name in options.upgrade_only if not {name, canonicalize_name(name)} & names]
    if unknown:
        raise UsageError(
            f"the lock holds no {' or '.join(f'`{name}`' for name in unknown)}, so there is nothing to upgrade",
            hint=f"`envbuilder lock {recipe.path}` takes up what is new in the recipe",
        )
    same_debs = (
        inputs.debs == old.inputs.debs
        and (
            old.base.manifest == target.base.manifest
            if old.base and target.base
            else all(name in deb_names for name in os_packages(recipe) if not name.startswith("?"))
        )
        and not as_of_another_day
    )
    same_wheels = (
        inputs.wheels == old.inputs.wheels
        and all(_is_met(requirement, old.wheels) for requirement in implied_wheels(recipe, target))
        and not wheel_names.intersection(map(canonicalize_name, options.upgrade_only))
        and not as_of_another_day
    )
    same_toolkit = (
        inputs.toolkit == old.inputs.toolkit
        and _fits(old.toolkit, target)
        and not toolkit_names.intersection(options.upgrade_only)
        and not as_of_another_day
    )
    return _Kept(
        debs=old.debs if same_debs else None,
        toolkit=old.toolkit if same_toolkit else None,
        wheels=old.wheels if same_wheels else None,
    )


def _resolve_toolkit(
    recipe: Recipe, target: Target, context: ResolveContext, *, options: LockOptions
) -> tuple[Artifact, ...]:
    parts = (
        *resolve_toolkit_debs(target, context, options=options),
        *resolve_toolkit_wheels(recipe, target, context),
    )
    return tuple(sorted(parts, key=lambda part: part.name))


def _fits(toolkit: tuple[Artifact, ...], target: Target) -> bool:
    """Return whether the locked parts are those of the table's row."""
    parts = target.toolkit.parts if target.toolkit else ()
    wanted = {(part.name, part.version if isinstance(part, WheelPart) else "") for part in parts}
    return wanted == {(part.name, part.version if part.kind == "wheel" else "") for part in toolkit}


def _is_met(requirement: str, wheels: tuple[Artifact, ...]) -> bool:
    wanted = Requirement(requirement)
    return any(
        one.name == canonicalize_name(wanted.name) and wanted.specifier.contains(one.version)
        for one in wheels
    )
