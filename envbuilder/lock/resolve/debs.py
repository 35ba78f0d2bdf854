"""Resolve the packages of the os layer: those that every environment needs, and those of the recipe."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from envbuilder.compat.image_facts import suite_of
from envbuilder.compat.tables.distribution import Distribution, load_distributions
from envbuilder.compat.tables.table import version_key
from envbuilder.compat.tables.toolkit import DebPart
from envbuilder.core.errors import IncompatibleError
from envbuilder.lock.model import Artifact, LockedBase
from envbuilder.lock.package_lists import find_unlisted
from envbuilder.lock.repositories import tag
from envbuilder.lock.resolve.apt import Suite, open_suite
from envbuilder.lock.resolve.context import LockOptions, ResolveContext, Target
from envbuilder.lock.resolve.pockets import open_base, open_release, read_image, repository_sources
from envbuilder.recipe.model import Recipe
from envbuilder.sources.names import DEBIAN

# The distribution's base, a compiler for extensions of its own Python, and what torch's build calls.
OS_PACKAGES: Final = (
    "?essential",  # apt's pattern: coreutils, bash, dpkg, … and apt itself
    "ca-certificates",
    "libc6-dev", "libcrypt-dev",  # crypt.h; libc6-dev no longer brings it in newer suites
    "gcc-{gcc}", "g++-{gcc}", "binutils",
    "make", "ninja-build",
)  # fmt: skip
PYTHON_PACKAGES: Final = ("python{python}", "python{python}-dev")  # no pip, no venv: uv fills /opt/env
# NCCL needs them for InfiniBand and RoCE; without them it silently falls back to sockets.
RDMA_PACKAGES: Final = ("libibverbs1", "ibverbs-providers")
# Debian packages distutils separately, and uv refuses a Python older than 3.10 without it.
OLD_PYTHON_PACKAGES: Final = ("python3-distutils",)
# The packages that are not needed if an image has a compiler or a Python from elsewhere.
_OWN: Final = {"gcc": ("gcc-{gcc}", "g++-{gcc}"), "python": PYTHON_PACKAGES}
# Installed if the suite has it, instead of usrmerge with its Perl modules: the root is merged from the start.
IF_THERE: Final = ("usr-is-merged",)


def resolve_debs(
    recipe: Recipe, target: Target, context: ResolveContext, *, options: LockOptions
) -> tuple[Artifact, ...]:
    """Return the packages of the os layer. Raises IncompatibleError if the suite lacks a pinned one."""
    if target.base:
        return _resolve_additions(recipe, target, target.base, context, options=options)
    suite = open_base(target.distribution, recipe, None, context, options)
    names = suite.names()
    _need(f"gcc-{recipe.gcc}", r"gcc-\d+", "$.gcc", names=names, suite=suite)
    if target.standalone is None:
        _need(f"python{recipe.python}", r"python3\.\d+", "$.python", names=names, suite=suite)
    _need_listed(recipe, names, suite)
    debs = suite.closure(
        (
            *os_packages(recipe, standalone=target.standalone is not None),
            *(name for name in IF_THERE if name in names),
        )
    )
    _check_libxcrypt(recipe, debs, suite)
    return debs


def _resolve_additions(
    recipe: Recipe, target: Target, base: LockedBase, context: ResolveContext, *, options: LockOptions
) -> tuple[Artifact, ...]:
    """Return the packages that an image lacks, as apt would install them; none if no suite's packages fit it.

    A compiler or a Python that the image has from elsewhere is used as it is.
    """
    inside = base.inside
    if _suite_row(base) is None:
        return ()
    have = {package.partition("=")[0] for package in base.packages}
    owned = [("gcc", inside.gcc(recipe.gcc)), ("python", inside.python(recipe.python))]
    brought = {
        name.format(gcc=recipe.gcc, python=recipe.python)
        for kind, fact in owned
        if fact
        for name in _OWN[kind]
        if kind == "gcc" or fact.path.startswith("/usr/local/") or inside.has_headers(recipe.python)
    }
    there = have | brought
    wanted = tuple(
        name
        for name in os_packages(recipe, standalone=target.standalone is not None)
        if not name.startswith("?") and name not in there
    )
    if not wanted:
        return ()
    suite, status = _open_suite(recipe, target, context, options)
    _need_listed(recipe, suite.names() | have, suite)
    return suite.additions(wanted, status)


def upgrade_debs(
    debs: tuple[Artifact, ...],
    recipe: Recipe,
    target: Target,
    context: ResolveContext,
    *,
    options: LockOptions,
) -> tuple[Artifact, ...]:
    """Return the locked packages, with those upgraded that the options name, or that lack a security update."""
    wanted = tuple(deb.name for deb in debs if deb.name in options.upgrade_only)
    if not wanted and not options.security_only:
        return debs
    if target.base and _suite_row(target.base) is None:
        return debs
    suite, status = _open_suite(recipe, target, context, replace(options, upgrade=True))
    if options.security_only:
        wanted += suite.security_updates(debs)
    return suite.upgrade(debs, wanted, status) if wanted else debs


def _suite_row(base: LockedBase) -> Distribution | None:
    return suite_of(base.inside, load_distributions().by_name)


def _open_suite(
    recipe: Recipe, target: Target, context: ResolveContext, options: LockOptions
) -> tuple[Suite, str]:
    """Open the suite that a recipe's packages come from. Returns dpkg's status of its image as well, "" for a suite."""
    base = target.base
    if base is None:
        return open_base(target.distribution, recipe, None, context, options), ""
    row = _suite_row(base)
    assert row is not None
    return open_base(row, recipe, base, context, options), read_image(base, context)[0]


def os_packages(recipe: Recipe, *, standalone: bool = False) -> tuple[str, ...]:
    """Return the arguments for apt: package names and one pattern. A `standalone` Python replaces the suite's."""
    pythons = () if standalone else (*PYTHON_PACKAGES, *older_packages(recipe.python))
    rdma = RDMA_PACKAGES if recipe.cuda else ()
    plain = (name.format(gcc=recipe.gcc, python=recipe.python) for name in (*OS_PACKAGES, *pythons))
    return (*plain, *rdma, *recipe.apt)


def older_packages(python: str) -> tuple[str, ...]:
    """Return what uv needs beside an older Python."""
    return OLD_PYTHON_PACKAGES if version_key(python) < version_key("3.10") else ()


def resolve_toolkit_debs(
    recipe: Recipe, parts: Sequence[DebPart], context: ResolveContext, *, options: LockOptions
) -> tuple[Artifact, ...]:
    """Return the toolkit's own packages without dependencies: those are in the wheels or not wanted."""
    debs: list[Artifact] = []
    distributions = load_distributions().by_name
    for place in sorted({(part.suite, part.component) for part in parts}):
        row, component = distributions[f"{DEBIAN}/{place[0]}"], place[1]
        # The release alone: security updates of Debian do not cover NVIDIA's compilers (debian.org/security/faq).
        suite = open_release(row, context, options, security=False, components=(component,))
        debs += suite.packages(tuple(part.name for part in parts if (part.suite, part.component) == place))
    for deb in debs:
        if deb.name == "nvidia-cuda-toolkit" and not deb.version.startswith(f"{recipe.cuda_minor}."):
            raise IncompatibleError(
                f"the mirror's `{deb.name}` is {deb.version}, expected CUDA {recipe.cuda_minor}",
                hint="the suite has moved on: use a newer envbuilder, or a mirror that still has this version",
            )
    return tuple(debs)


def resolve_repository_debs(
    recipe: Recipe, target: Target, names: Sequence[str], context: ResolveContext, *, options: LockOptions
) -> tuple[Artifact, ...]:
    """Return packages of the repositories beside the base, without dependencies. Raises IncompatibleError."""
    sources = repository_sources(recipe, target.base, context, options)
    if not sources:
        raise IncompatibleError("the recipe has no `apt_sources`, and no image that has some")
    folder = context.store.resolver("apt") / f"more-{context.processor.debian}-{tag(sources)}"
    return open_suite(sources, folder, context, options).packages(tuple(names))


def _need_listed(recipe: Recipe, names: frozenset[str], suite: Suite) -> None:
    """Raise IncompatibleError for packages of the recipe's `apt` list that are not among the names."""
    unlisted = tuple(find_unlisted(recipe, names))
    if unlisted:
        unread = ", ".join(f"{source.told} ({source.name})" for source in suite.unread)
        others = " and the sources beside it have" if any(one.is_extra for one in suite.sources) else " has"
        raise IncompatibleError(
            "\n".join(f"{one.place}: {suite.name}{others} no package `{one.name}`" for one in unlisted),
            hint=f"it may be in {unread}, which could not be read"
            if unread
            else " ".join(one.hint for one in unlisted if one.hint),
        )


def _need(package: str, others: str, key: str, *, names: frozenset[str], suite: Suite) -> None:
    if package not in names:
        having = sorted(name for name in names if re.fullmatch(others, name))
        raise IncompatibleError(
            f"{key}: {suite.name} has no `{package}`", hint=f"it has {', '.join(having) or 'none'}"
        )


def _check_libxcrypt(recipe: Recipe, debs: tuple[Artifact, ...], suite: Suite) -> None:
    found = next(deb.version for deb in debs if deb.name == "libcrypt-dev").rpartition(":")[2]
    if recipe.libxcrypt and not re.match(rf"{re.escape(recipe.libxcrypt)}(?![0-9])", found):
        raise IncompatibleError(
            f"{recipe.place('$.libxcrypt')}: libxcrypt {recipe.libxcrypt} is pinned, {suite.name} has {found}",
            hint=f'write `libxcrypt: "{".".join(found.split(".")[:2])}"`',
        )
