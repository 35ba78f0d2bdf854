"""Resolve the packages of the os layer: those that every environment needs, and those of the recipe."""

import re
from typing import Final

from envbuilder.compat.image_facts import suite_of
from envbuilder.compat.tables.distribution import load_distributions
from envbuilder.compat.tables.table import version_key
from envbuilder.compat.tables.toolkit import DebPart
from envbuilder.core.errors import IncompatibleError
from envbuilder.core.places import nearest
from envbuilder.lock.model import Artifact, LockedBase
from envbuilder.lock.resolve.apt import Suite, open_suite
from envbuilder.lock.resolve.context import LockOptions, ResolveContext, Target
from envbuilder.recipe.model import Recipe

# The distribution's base, a compiler for extensions of its own Python, and what torch's build calls.
OS_PACKAGES: Final = (
    "?essential",  # apt's pattern: coreutils, bash, dpkg, … and apt itself
    "ca-certificates",
    "libc6-dev", "libcrypt-dev",  # crypt.h; libc6-dev no longer brings it in newer suites
    "gcc-{gcc}", "g++-{gcc}", "binutils",
    "make", "ninja-build",
    "python{python}", "python{python}-dev",  # no pip, no venv: uv fills /opt/env
)  # fmt: skip
# NCCL needs them for InfiniBand and RoCE; without them it silently falls back to sockets.
RDMA_PACKAGES: Final = ("libibverbs1", "ibverbs-providers")
# Debian packages distutils separately, and uv refuses a Python older than 3.10 without it.
OLD_PYTHON_PACKAGES: Final = ("python3-distutils",)
# The packages that are not needed if an image has a compiler or a Python from elsewhere.
_OWN: Final = {"gcc": ("gcc-{gcc}", "g++-{gcc}"), "python": ("python{python}", "python{python}-dev")}
# Installed if the suite has it, instead of usrmerge with its Perl modules: the root is merged from the start.
IF_THERE: Final = ("usr-is-merged",)


def resolve_debs(
    recipe: Recipe, target: Target, context: ResolveContext, *, options: LockOptions
) -> tuple[Artifact, ...]:
    """Return the packages of the os layer. Raises IncompatibleError if the suite lacks a pinned one."""
    if target.base:
        return _resolve_additions(recipe, target.base, context, options=options)
    suite = open_suite(target.distribution.suite, "main", context, options)
    names = suite.names()
    _need(f"gcc-{recipe.gcc}", r"gcc-\d+", "$.gcc", names=names, suite=suite)
    _need(f"python{recipe.python}", r"python3\.\d+", "$.python", names=names, suite=suite)
    _need_listed(recipe, names, suite)
    debs = suite.closure((*os_packages(recipe), *(name for name in IF_THERE if name in names)))
    _check_libxcrypt(recipe, debs, suite)
    return debs


def _resolve_additions(
    recipe: Recipe, base: LockedBase, context: ResolveContext, *, options: LockOptions
) -> tuple[Artifact, ...]:
    """Return the packages that an image lacks, as apt would install them; none if no suite's packages fit it.

    A compiler or a Python that the image has from elsewhere is used as it is.
    """
    inside = base.inside
    suite_row = suite_of(inside, load_distributions().by_name)
    if suite_row is None:
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
    wanted = tuple(name for name in os_packages(recipe) if not name.startswith("?") and name not in there)
    if not wanted:
        return ()
    from envbuilder.lock.resolve.base_image import status_of  # noqa: PLC0415 - asks registries, for images alone

    suite = open_suite(suite_row.suite, "main", context, options)
    _need_listed(recipe, suite.names() | have, suite)
    return suite.additions(wanted, status_of(base, context))


def os_packages(recipe: Recipe) -> tuple[str, ...]:
    """Return the arguments for apt: package names and one pattern."""
    older = OLD_PYTHON_PACKAGES if version_key(recipe.python) < version_key("3.10") else ()
    rdma = RDMA_PACKAGES if recipe.cuda else ()
    plain = (name.format(gcc=recipe.gcc, python=recipe.python) for name in OS_PACKAGES)
    return (*plain, *older, *rdma, *recipe.apt)


def resolve_toolkit_debs(
    target: Target, context: ResolveContext, *, options: LockOptions
) -> tuple[Artifact, ...]:
    """Return the toolkit's own packages without dependencies: those are in the wheels or not wanted."""
    toolkit = target.toolkit
    parts = [part for part in toolkit.parts if isinstance(part, DebPart)] if toolkit else []
    debs: list[Artifact] = []
    for place in sorted({(part.suite, part.component) for part in parts}):
        suite = open_suite(*place, context, options)
        debs += suite.packages(tuple(part.name for part in parts if (part.suite, part.component) == place))
    for deb in debs:
        if toolkit and deb.name == "nvidia-cuda-toolkit" and not deb.version.startswith(f"{toolkit.cuda}."):
            raise IncompatibleError(
                f"the mirror's `{deb.name}` is {deb.version}, expected CUDA {toolkit.cuda}",
                hint="the suite has moved on: use a newer envbuilder, or a mirror that still has this version",
            )
    return tuple(debs)


def _need_listed(recipe: Recipe, names: frozenset[str], suite: Suite) -> None:
    """Raise IncompatibleError for a package of the recipe's `apt` list that is not among the names."""
    for package in recipe.apt:
        if package not in names:
            raise IncompatibleError(
                f"{recipe.place('$.apt')}: {suite.name} has no package `{package}`",
                hint=nearest(package, names).strip(),
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
