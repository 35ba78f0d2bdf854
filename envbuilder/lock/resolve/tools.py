"""Resolve the programs for x86-64 that build an environment for another processor."""

import re
from dataclasses import replace
from typing import Final

from envbuilder.compat.tables.distribution import load_distributions
from envbuilder.core.errors import IncompatibleError
from envbuilder.core.processor import X86_64
from envbuilder.lock.model import Artifact, Tools
from envbuilder.lock.resolve.context import LockOptions, ResolveContext, Target
from envbuilder.lock.resolve.debs import older_packages
from envbuilder.lock.resolve.pockets import open_base, open_release
from envbuilder.lock.resolve.toolkit import resolve_toolkit
from envbuilder.recipe.model import Recipe
from envbuilder.sources.names import DEBIAN

# One qemu for every suite: it is static, so it runs anywhere, and older ones crash on what this machine's /sys says.
_EMULATOR: Final = (f"{DEBIAN}/trixie", "qemu-user")
# The cross compiler, and the usual one, for the library of `steady.c` that programs of x86-64 load.
_PACKAGES: Final = ("gcc-{gcc}-{gnu}", "g++-{gcc}-{gnu}", "gcc-{gcc}", "libc6-dev")
_PYTHON: Final = ("python{python}-minimal", "libpython{python}-stdlib")
# The environment has the C library and its headers itself, and their copies for cross compilers name other paths.
_LEFT_OUT: Final = re.compile(r"(libc6|libc6-dev|linux-libc-dev)-.*-cross")


def resolve_tools(
    recipe: Recipe,
    target: Target,
    parts: tuple[Artifact, ...],
    context: ResolveContext,
    *,
    options: LockOptions,
) -> Tools:
    """Return the tools beside the toolkit `parts` of the environment. Raises IncompatibleError if the suite lacks one."""
    native, here = replace(context, processor=X86_64), replace(target, processor=X86_64)
    names = (*_PACKAGES, *(() if target.standalone else (*_PYTHON, *older_packages(recipe.python))))
    gnu = target.processor.gnu.replace("_", "-")
    suite = open_base(target.distribution, recipe, None, native, options)
    debs = suite.closure(tuple(name.format(gcc=recipe.gcc, gnu=gnu, python=recipe.python) for name in names))
    row = load_distributions().by_name[_EMULATOR[0]]
    (emulator,) = open_release(row, native, options, security=False).packages(_EMULATOR[1:])
    toolkit = resolve_toolkit(recipe, here, native, old=parts, options=options) if parts else ()
    if {(one.name, one.version) for one in parts} != {(one.name, one.version) for one in toolkit}:
        raise IncompatibleError(
            f"{recipe.place('$.cuda')}: the toolkit for {target.processor.title} and that for {X86_64.title}, which compiles for it, "
            "are of different releases",
            hint=f'pin a release that both have, such as `cuda: "{recipe.cuda_minor}.0"`',
        )
    return Tools(
        emulator=emulator,
        debs=tuple(one for one in debs if not _LEFT_OUT.fullmatch(one.name)),
        toolkit=toolkit,
    )
