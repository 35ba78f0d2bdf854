"""Choose the source of the CUDA toolkit, and resolve its packages."""

import logging
import re
from collections.abc import Iterable
from typing import Final

from envbuilder.compat.problem import distance, either
from envbuilder.compat.tables.table import version_key
from envbuilder.compat.tables.toolkit import (
    AptPart,
    ArchivePart,
    DebPart,
    Layout,
    Source,
    Toolkit,
    WheelPart,
    all_releases,
    load_toolkits,
    toolkit_of,
)
from envbuilder.core.errors import FetchError, IncompatibleError
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.context import LockOptions, ResolveContext, Target
from envbuilder.lock.resolve.debs import resolve_repository_debs, resolve_toolkit_debs
from envbuilder.lock.resolve.redist import SETTING, resolve_archives
from envbuilder.lock.resolve.wheels import resolve_toolkit_wheels
from envbuilder.recipe.model import Recipe
from envbuilder.sources.names import shown

log = logging.getLogger(__name__)

_NAMES: Final[dict[Source, str]] = {
    "archive": "NVIDIA's archive",
    "wheels": "the package index",
    "debs": "Debian",
    "apt": "an apt source",
}
_OFF: Final = "switched off, because ENVBUILDER_CUDA_REDIST is empty"


def locked_toolkit(recipe: Recipe, locked: Iterable[Artifact]) -> Toolkit | None:
    """Return the toolkit that the locked packages make for the recipe, None if they make none."""
    found = toolkit_of(recipe.cuda_minor, locked, load_toolkits().rows)
    return found[1] if found else None


def resolve_toolkit(
    recipe: Recipe,
    target: Target,
    context: ResolveContext,
    *,
    old: tuple[Artifact, ...],
    options: LockOptions,
) -> tuple[Artifact, ...]:
    """Return the packages of the first source that has the recipe's CUDA.

    The source of the `old` packages is asked first, then the others by preference.

    Those that only bring headers are among them; `without_headers` leaves them out. Raises IncompatibleError with what
    each source says if none has it.
    """
    rows = load_toolkits().rows
    before = toolkit_of(recipe.cuda_minor, old, rows)
    layouts = [row for row in rows if row.may_have(recipe.cuda)]
    if before:
        layouts.sort(key=lambda row: row.source != before[0].source)
    refusals: dict[Source, str] = {}
    for layout in layouts:
        if layout.source == "archive" and not context.sources().cuda:
            refusals[layout.source] = _OFF
            continue
        try:
            found = _resolve(layout, recipe, target, context, options=options)
        except (FetchError, IncompatibleError) as error:
            refusals[layout.source] = error.message
            continue
        for why in refusals.values():
            if why != _OFF:
                log.warning("CUDA %s comes from %s: %s", recipe.cuda, _NAMES[layout.source], why)
        return tuple(sorted(found, key=lambda part: part.name))
    raise _refused(recipe, refusals, context)


def without_headers(
    recipe: Recipe, parts: tuple[Artifact, ...], wheels: tuple[Artifact, ...]
) -> tuple[Artifact, ...] | None:
    """Return the toolkit's packages without those that only bring headers which the Python environment has.

    Returns None if some that it lacks are not among the packages. Old builds of torch, and some of PyTorch's own index,
    have NVIDIA's libraries inside; 1.13 has some of them inside.
    """
    found = toolkit_of(recipe.cuda_minor, parts, load_toolkits().rows)
    names = {part.name for part in found[0].parts_of(recipe.cuda_minor, headers=True)} if found else set()
    brought = {re.sub(r"-cu\d+$", "", wheel.name) for wheel in wheels}
    needed = {name for name in names if _wheel_with(name) not in brought}
    if not needed <= {part.name for part in parts}:
        return None
    return tuple(part for part in parts if part.name not in names - needed)


def _wheel_with(part: str) -> str:
    """Return the wheel with the headers of a part: nvidia-cublas of libcublas and of libcublas-dev-11-3."""
    return f"nvidia-{re.sub(r'-dev-[0-9-]+$', '', part).removeprefix('lib').replace('_', '-')}"


def _resolve(
    layout: Layout, recipe: Recipe, target: Target, context: ResolveContext, *, options: LockOptions
) -> tuple[Artifact, ...]:
    minor = recipe.cuda_minor
    parts = (*layout.parts_of(minor), *layout.parts_of(minor, headers=True))
    debs = tuple(part for part in parts if isinstance(part, DebPart))
    wheels = tuple(part for part in parts if isinstance(part, WheelPart))
    archives = tuple(part for part in parts if isinstance(part, ArchivePart))
    packages = [part.name for part in parts if isinstance(part, AptPart)]
    found = resolve_toolkit_debs(recipe, debs, context, options=options) if debs else ()
    found += resolve_repository_debs(recipe, target, packages, context, options=options) if packages else ()
    found += resolve_toolkit_wheels(recipe, target, wheels, context, before=options.before) if wheels else ()
    found += resolve_archives(recipe.cuda, archives, layout, context, options=options) if archives else ()
    return found


def _refused(recipe: Recipe, refusals: dict[Source, str], context: ResolveContext) -> IncompatibleError:
    """Return the error to raise: what each source says, what it has, and the nearest pin of another source."""
    rows = load_toolkits().rows
    lines = []
    for source, name in _NAMES.items():
        own = [row for row in rows if row.source == source]
        has = _spans(all_releases(own))
        where = (
            f" ({shown(context.sources().cuda)})" if source == "archive" and context.sources().cuda else ""
        )
        why = refusals.get(source, f"no {recipe.cuda}")
        lines.append(f"  {name}{where} has {has}: {why}")
    others = [release for row in rows if row.source not in refusals for release in row.releases]
    near = min(others, key=lambda one: distance(one, recipe.cuda), default="")
    hint = SETTING + (
        f'; the nearest of another source is `cuda: "{near.rpartition(".")[0]}"`' if near else ""
    )
    return IncompatibleError(
        f"{recipe.place('$.cuda')}: no source of this machine gives CUDA {recipe.cuda}\n" + "\n".join(lines),
        hint=hint,
    )


def _spans(releases: tuple[str, ...]) -> str:
    """Return the minor versions of these releases: 11.2, 11.8 or 12.4; many as 11.4 to 13.4."""
    minors = sorted({release.rpartition(".")[0] for release in releases}, key=version_key)
    return either(minors, "and") if len(minors) < 4 else f"{minors[0]} to {minors[-1]}"
