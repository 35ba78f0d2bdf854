"""Resolve a recipe into a lock: choose each version, and name every file that a build needs.

A part with unchanged inputs is copied from the old lock, so locking after an edit of an extension is fast and
needs no network. Wheels that are resolved anew keep the old lock's versions where they still fit.
"""

from dataclasses import replace
from datetime import UTC, datetime, time
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuilder.compat.check import examine, load_tables, need_sound
from envbuilder.compat.image_facts import PLATFORM, as_distribution
from envbuilder.compat.tables.distribution import load_distributions
from envbuilder.compat.tables.toolkit import WheelPart, load_toolkits
from envbuilder.compat.tables.torch import load_torches
from envbuilder.core.cache import save_text
from envbuilder.core.console import Console
from envbuilder.core.errors import IncompatibleError, UsageError
from envbuilder.lock.diff import diff_locks
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.lock.known_base import lock_path
from envbuilder.lock.model import Artifact, Lock, LockedBase, lock_artifacts, recipe_inputs
from envbuilder.lock.resolve.apt import open_suite
from envbuilder.lock.resolve.context import LockOptions, ResolveContext, Target
from envbuilder.lock.resolve.debs import os_packages, resolve_debs, resolve_toolkit_debs
from envbuilder.lock.resolve.extensions import lock_extensions
from envbuilder.lock.resolve.wheels import implied_wheels, resolve_toolkit_wheels, resolve_wheels
from envbuilder.recipe.load import find_recipe, load
from envbuilder.recipe.model import Recipe


def lock_recipe(
    name: str, recipes: Path, context: ResolveContext, console: Console, *, options: LockOptions, save: bool
) -> tuple[str, ...]:
    """Resolve the recipe and, with `save`, write its lock beside it. Returns the changes, one line each."""
    recipe = load(find_recipe(name, recipes))
    path = lock_path(recipe)
    with context.store.in_use():
        old = load_lock(path, recipe=name) if path.exists() else None
        known = old.base if old else None
        base = None
        if recipe.image:
            from envbuilder.lock.resolve.base_image import resolve_image  # noqa: PLC0415 - asks registries, for images alone

            base = resolve_image(recipe, context, old=known, options=options)
        need_sound(recipe, examine(recipe, load_tables(), base=base.inside if base else None))
        with console.step(f"lock {recipe.name}"):
            new = resolve(recipe, make_target(recipe, base), old=old, options=options, context=context)
    if save and new != old:
        save_text(path, lock_text(new))
    return tuple(map(str, diff_locks(old, new))) if old else (f"+ {path}",)


def make_target(recipe: Recipe, base: LockedBase | None = None) -> Target:
    """Look up the recipe's pins in the tables. Raises IncompatibleError for pins that `check` refuses too."""
    rows = {row.name: row for row in load_distributions().rows if row.buildable}
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
    return Target(distribution=distribution, torch=torch, toolkit=toolkit, base=base)


def resolve(
    recipe: Recipe, target: Target, *, old: Lock | None, options: LockOptions, context: ResolveContext
) -> Lock:
    """Make the lock; raises RecipeError, IncompatibleError, FetchError, or UsageError for options without effect.

    The epoch is 00:00 UTC of the day on which a recipe was first locked. It is part of every layer's key, so it is kept as
    long as possible: only a full upgrade that changes an artifact moves it.
    """
    extensions = lock_extensions(recipe, context, old=None if options.upgrade else old)
    kept = _kept_parts(recipe, target, old, options)
    moving = {canonicalize_name(name) for name in options.upgrade_only}
    anew = options.upgrade or (options.before is not None and not options.upgrade_only)
    prefer = tuple(one for one in old.wheels if one.name not in moving) if old and not anew else ()
    debs, toolkit, wheels = kept.get("debs"), kept.get("toolkit"), kept.get("wheels")
    if debs is None:
        debs = resolve_debs(recipe, target, context, options=options)
    elif names := [deb.name for deb in debs if deb.name in options.upgrade_only]:
        fresh = replace(options, upgrade=True)
        if target.base:
            debs = resolve_debs(recipe, target, context, options=fresh)
        else:
            debs = open_suite(target.distribution.suite, "main", context, fresh).upgrade(debs, names)
    if toolkit is None:
        parts = resolve_toolkit_debs(target, context, options=options)
        parts += resolve_toolkit_wheels(recipe, target, context)
        toolkit = tuple(sorted(parts, key=lambda part: part.name))
    if wheels is None:
        wheels = resolve_wheels(recipe, target, context, prefer=prefer, before=options.before)
    lock = Lock(
        recipe=recipe.digest,
        epoch=int(datetime.combine(options.today, time(), UTC).timestamp()),
        platform=f"linux/{PLATFORM}",
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


def _kept_parts(
    recipe: Recipe, target: Target, old: Lock | None, options: LockOptions
) -> dict[str, tuple[Artifact, ...]]:
    """Return the old lock's parts to keep: with unchanged inputs, and with all that this envbuilder needs."""
    if old is None or options.upgrade:
        return {}
    deb_names = {one.name for one in old.debs}
    wheel_names = {one.name for one in old.wheels}
    toolkit_names = {one.name for one in old.toolkit}
    names = deb_names | wheel_names | toolkit_names
    unknown = [name for name in options.upgrade_only if not {name, canonicalize_name(name)} & names]
    if unknown:
        raise UsageError(
            f"the lock holds no {' or '.join(f'`{name}`' for name in unknown)}, so there is nothing to upgrade",
            hint=f"`envbuilder lock {recipe.path}` locks what is new in the recipe",
        )
    if options.before is not None and not options.upgrade_only:
        return {}
    if old.base and target.base:
        has_debs = old.base.manifest == target.base.manifest
    else:
        has_debs = all(name in deb_names for name in os_packages(recipe) if not name.startswith("?"))
    has_wheels = all(_is_met(requirement, old.wheels) for requirement in implied_wheels(recipe, target))
    moving = set(options.upgrade_only)
    stays = {
        "debs": has_debs,
        "toolkit": _fits(old.toolkit, target) and not toolkit_names & moving,
        "wheels": has_wheels and not wheel_names & set(map(canonicalize_name, moving)),
    }
    inputs = recipe_inputs(recipe)
    return {
        part: getattr(old, part)
        for part, is_fit in stays.items()
        if is_fit and getattr(inputs, part) == getattr(old.inputs, part)
    }


def _fits(toolkit: tuple[Artifact, ...], target: Target) -> bool:
    """Return whether the locked parts are those of the table's row."""
    parts = target.toolkit.parts if target.toolkit else ()
    wanted = {(part.name, part.version if isinstance(part, WheelPart) else "") for part in parts}
    return wanted == {(part.name, part.version if part.kind == "wheel" else "") for part in toolkit}


def _is_met(requirement: str, wheels: tuple[Artifact, ...]) -> bool:
    wanted = Requirement(requirement)
    name = canonicalize_name(wanted.name)
    return any(one.name == name and wanted.specifier.contains(one.version) for one in wheels)
