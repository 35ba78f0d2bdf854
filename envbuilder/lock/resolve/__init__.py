"""Resolve a recipe into a lock: choose each version, and name every file that a build needs.

A part with unchanged inputs is copied from the old lock, so locking after an edit of an extension is fast and
needs no network. Wheels that are resolved anew keep the old lock's versions where they still fit.
"""

import contextlib
import functools
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Final
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuilder.compat.check import examine, load_tables, need_sound
from envbuilder.compat.context import CheckCode, make_context
from envbuilder.compat.image_facts import is_version
from envbuilder.compat.repositories import addresses
from envbuilder.compat.tables.cuda import CudaPackage, load_cuda_packages
from envbuilder.compat.tables.distribution import load_distributions
from envbuilder.compat.tables.toolkit import Toolkit
from envbuilder.core.cache import Sha256, save_text
from envbuilder.core.console import Console
from envbuilder.core.errors import FetchError, IncompatibleError, UsageError
from envbuilder.core.findings import Finding
from envbuilder.core.places import Mistakes, load_text
from envbuilder.core.plain import pasted
from envbuilder.core.processor import X86_64
from envbuilder.core.spelling import nearest
from envbuilder.lock.candidates import TORCH
from envbuilder.lock.changes import diff_locks
from envbuilder.lock.file import MOST, lock_path, lock_text
from envbuilder.lock.model import (
    Artifact,
    Artifacts,
    Lock,
    LockedBase,
    LockedExtension,
    SourceFile,
    Tools,
    lock_artifacts,
    needs_toolkit,
    recipe_inputs,
)
from envbuilder.lock.resolve.chosen import PackageChoices
from envbuilder.lock.resolve.conda_solver import resolve_conda, say_shared
from envbuilder.lock.resolve.context import Judge, LockOptions, ResolveContext, Target, Task
from envbuilder.lock.resolve.debs import (
    older_packages,
    open_base,
    open_release,
    os_packages,
    resolve_debs,
    upgrade_debs,
)
from envbuilder.lock.resolve.extensions import lock_extensions, lock_warm, store_sources
from envbuilder.lock.resolve.held import is_met
from envbuilder.lock.resolve.hub import lock_kernels
from envbuilder.lock.resolve.mend import LOST, read_old, without_lost
from envbuilder.lock.resolve.project_metadata import (
    ProjectMetadata,
    are_met,
    need_places,
    read_distributions,
    say_gaps,
)
from envbuilder.lock.resolve.toolkit import locked_toolkit, resolve_toolkit, without_headers
from envbuilder.lock.resolve.wheels import implied_wheels, of_other_builds, resolve_wheels
from envbuilder.lock.source_files import reasons
from envbuilder.recipe.extension import Form
from envbuilder.recipe.load import find_recipe, load
from envbuilder.recipe.model import Recipe
from envbuilder.sources.names import DEBIAN, STANDALONE

log = logging.getLogger(__name__)
_COMPILER: Final = "cuda-nvcc-"  # begins the names of NVIDIA's packages with the compiler
_CPYTHON: Final = "cpython"
# One qemu for every suite: it is static, so it runs anywhere, and older ones crash on what this machine's /sys says.
_EMULATOR: Final = (f"{DEBIAN}/trixie", "qemu-user")
# The cross compiler, and the usual one, for the library of `steady.sh` that programs of x86-64 load.
_PACKAGES: Final = ("gcc-{gcc}-{gnu}", "g++-{gcc}-{gnu}", "gcc-{gcc}", "libc6-dev")
_PYTHON: Final = ("python{python}-minimal", "libpython{python}-stdlib")
# The environment has the C library and its headers itself, and their copies for cross compilers name other paths.
_LEFT_OUT: Final = re.compile(r"(libc6|libc6-dev|linux-libc-dev)-.*-cross")


def lock_variants(
    names: Sequence[str], recipes: Path, context: ResolveContext, console: Console, *,
    options: LockOptions, judge: Judge, save: bool,
) -> tuple[tuple[str, ...], tuple[Finding, ...]]:  # fmt: skip
    """Do what `lock_recipe` does for each. Returns the changes, and what requirements files say otherwise of what was chosen now."""
    changes: list[str] = []
    notes: tuple[Finding, ...] = ()
    for name in names:
        with console.group(f"lock {name}"):
            lines = lock_recipe(name, recipes, context, console, options=options, judge=judge, save=save)
        if lines:
            notes += load(find_recipe(name, recipes)).notes
        changes += (f"{name}: {line}" if len(names) > 1 else line for line in lines)
    return tuple(changes), notes


def lock_recipe(
    name: str, recipes: Path, context: ResolveContext, console: Console, *, options: LockOptions, judge: Judge, save: bool
) -> tuple[str, ...]:  # fmt: skip
    """Resolve the recipe and, with `save`, write its lock beside it. Returns the changes, one line each.

    `judge` gets each lock with other wheels than the old one.
    """
    recipe = load(find_recipe(name, recipes))
    path = lock_path(recipe)
    with context.store.in_use():
        old, options = read_old(path, name, recipe, options=options, save=save)
        known = old.base if old else None
        base = None
        if recipe.image and recipe.processor is X86_64:
            from envbuilder.lock.resolve.base_image import resolve_image  # noqa: PLC0415 - asks registries, for images alone

            base = resolve_image(recipe, context, old=known, options=options)
        report = examine(recipe, load_tables(), base=base.inside if base else None)
        need_sound(recipe, report)
        for finding in (each for each in report.findings if each.code == CheckCode.ALONE):
            log.warning("%s; %s", finding, finding.hint)
        with console.step(f"lock {recipe.name}"):
            task = Task(recipe=recipe, target=make_target(recipe, base), options=options, context=context)
            new = lock_best(task, old, judge, load_cuda_packages().by_name)
    assert LOST not in {artifact.sha256 for artifact in lock_artifacts(new)}, "each lost entry is found again"
    text = lock_text(new)
    if save and not (path.is_file() and load_text(path, Mistakes(), most=MOST) == text):
        save_text(path, text)
    if old and old.recipe == LOST:
        old = replace(without_lost(old), recipe=new.recipe)
    return tuple(_shown(recipe, old, new)) if old else (f"+ {path}",)


def lock_best(task: Task, old: Lock | None, judge: Judge, rows: Mapping[str, CudaPackage]) -> Lock:
    """Return the lock with the best candidates that fit, for packages with CUDA code that these rows know."""
    choices = PackageChoices(task, old, rows)
    while True:
        settled = replace(task, recipe=choices.settled())
        try:
            new = replace(resolve(settled, old), chosen=choices.locked())
            if old is None or (old.wheels, old.kernels) != (new.wheels, new.kernels):
                judge(settled, new)
        except (IncompatibleError, FetchError) as error:
            if not choices.refuse(error):
                raise
        else:
            choices.say()
            return new


def _shown(recipe: Recipe, old: Lock, new: Lock) -> Iterator[str]:
    """Yield the changes, and why each source of an extension counts."""
    changes = diff_locks(old, new)
    why = reasons(recipe, old) if any(change.name.startswith("extension ") for change in changes) else {}
    for change in changes:
        reason = why.get(change.name.partition(": ")[2], "")
        yield f"{change} ({reason})" if reason else f"{change}"


def make_target(recipe: Recipe, base: LockedBase | None = None) -> Target:
    """Look up the recipe's pins in the tables. Raises IncompatibleError for pins that `check` refuses too."""
    checked = make_context(recipe, load_tables(), base=base.inside if base else None)
    if checked.distribution is None:
        raise IncompatibleError(
            f"{recipe.place('$.base')}: no suite `{recipe.base}` is known"
            if base is None
            else f"{recipe.place('$.base')}: nothing can be built on `{base.reference}`",
            hint="`envbuilder check` says more",
        )
    return Target(
        distribution=checked.distribution, torch=checked.torch, base=base, standalone=checked.standalone,
        processor=checked.processor,
    )  # fmt: skip


def resolve(task: Task, old: Lock | None) -> Lock:
    """Make the lock; raises RecipeError, IncompatibleError, FetchError, or UsageError for options without effect.

    The epoch is 00:00 UTC of the day on which a recipe was first locked. It is part of every layer's key, so it is kept as
    long as possible: only a full upgrade that changes an artifact moves it.
    """
    recipe, target, options, context = task.recipe, task.target, task.options, task.context
    if old and old.platform != target.processor.platform:
        old = None  # no file of another processor serves
    context.fetcher.know(addresses(recipe, target.inside))
    extensions = lock_extensions(recipe, context, old=None if options.upgrade else old)
    unchanged = _kept_parts(task, old)
    debs, parts, wheels = unchanged.get("debs"), unchanged.get("toolkit"), unchanged.get("wheels")
    conda = unchanged.get("conda")
    if conda is None:
        conda = resolve_conda(task, old.conda if old else ())
    debs = resolve_debs(task) if debs is None else upgrade_debs(task, debs)
    interpreter = unchanged.get("interpreter") or resolve_interpreter(task)
    find_toolkit = functools.partial(resolve_toolkit, task, old=old.toolkit if old else ())
    if parts is None:
        parts = find_toolkit() if needs_toolkit(recipe, target.base) else ()
    toolkit = locked_toolkit(recipe, parts)
    builds = old.builds if old else ()
    if wheels is None or not _are_met(task, wheels, toolkit, extensions):
        answer = resolve_wheels(
            task, toolkit=toolkit, prefer=options.to_keep(old.wheels if old else ()),
            extensions=_known_distributions(task, extensions), builds=builds,
        )  # fmt: skip
        wheels, builds = answer.artifacts, answer.builds
    if recipe.keeps_torch and any(wheel.name == TORCH for wheel in wheels):
        raise IncompatibleError(
            f"{recipe.place('$.packages')}: `packages` require torch, and `pytorch: image` has that of the image",
            hint="leave out what requires it, or what the image has; or write the version of torch",
        )
    say_shared(recipe, conda, wheels)
    fitting = without_headers(recipe, parts, wheels)
    if fitting is None:  # the wheels were with headers before
        parts = find_toolkit()
        fitting = without_headers(recipe, parts, wheels) or parts
    _need_one_toolkit(recipe, debs, fitting)
    tools = old.tools if old and (old.debs, old.toolkit) == (debs, fitting) and not options.upgrade else None
    if target.processor is X86_64:
        tools = None
    elif tools is None:
        tools = resolve_tools(task, fitting)
    lock = Lock(
        recipe=recipe.digest, epoch=int(datetime.combine(options.today, time(), UTC).timestamp()),
        platform=target.processor.platform, inputs=recipe_inputs(recipe),
        debs=debs, toolkit=fitting, wheels=wheels, extensions=extensions,
        locks=tuple(SourceFile(path=pins.path, sha256=pins.sha256, size=pins.size) for pins in recipe.locks),
        base=target.base, interpreter=next(iter(interpreter), None), builds=builds, tools=tools, conda=conda,
        warm=lock_warm(recipe), kernels=lock_kernels(task, None if options.upgrade else old),
    )  # fmt: skip
    if old is not None and (not options.upgrade or lock_artifacts(old) == lock_artifacts(lock)):
        return replace(lock, epoch=old.epoch or lock.epoch)
    return lock


def _are_met(
    task: Task, wheels: Sequence[Artifact], toolkit: Toolkit | None, extensions: tuple[LockedExtension, ...]
) -> bool:
    """Return whether wheels are of one build of torch, and all that the toolkit and the extensions require."""
    recipe, versions = task.recipe, {wheel.name: wheel.version for wheel in wheels}
    implied = map(Requirement, implied_wheels(recipe, toolkit))
    projects = read_distributions(recipe, extensions, task.context)
    return (
        all(is_met(requirement, versions) for requirement in implied)
        and are_met(projects, wheels, recipe.python, task.target.processor)
        and not of_other_builds(wheels, task)
    )


def _known_distributions(task: Task, extensions: tuple[LockedExtension, ...]) -> tuple[ProjectMetadata, ...]:
    """Return the distributions of all projects among the extensions, and say which cannot be read."""
    projects = tuple(project for project in extensions if project.form is Form.PROJECT)
    store_sources(task.recipe, projects, task.context)
    archives = filter(None, (project.archive for project in projects))
    task.context.fetcher.fetch(archive for archive in archives if archive.kind == "sdist")
    distributions = read_distributions(task.recipe, projects, task.context)
    say_gaps(distributions, {extension.name for extension in task.recipe.implied})
    need_places(task.recipe, distributions)
    return distributions


def _need_one_toolkit(recipe: Recipe, debs: Artifacts, parts: Artifacts) -> None:
    """Raise IncompatibleError if NVIDIA's own packages would install the compiler beside that of `cuda`."""
    double = [deb.name for deb in debs if deb.name.startswith(_COMPILER)]
    if double and parts:
        raise IncompatibleError(
            f'{recipe.place("$.apt")}: `{double[0]}` would come beside the toolkit that `cuda: "{recipe.cuda}"` brings',
            hint="leave NVIDIA's compiler and `cuda-toolkit-…` out of `apt`",
        )


def _kept_parts(task: Task, old: Lock | None) -> dict[str, Artifacts]:
    """Return the old lock's parts to keep: with unchanged inputs, and with all that this envbuilder needs."""
    recipe, target, options = task.recipe, task.target, task.options
    if old is None or options.upgrade:
        return {}
    parts = (old.debs, old.wheels, old.toolkit, old.interpreters, old.conda)
    deb_names, wheel_names, toolkit_names, more, conda_names = (
        {package.name for package in part} for part in parts
    )
    names = (
        deb_names | wheel_names | toolkit_names | more | conda_names | {choice.name for choice in old.chosen}
    )
    unknown = [name for name in options.upgrade_only if not {name, canonicalize_name(name)} & names]
    if unknown:
        raise UsageError(
            f"the lock holds no {' or '.join(f'`{name}`' for name in unknown)}, so there is nothing to upgrade",
            hint=f"{nearest(unknown[0], names)}`envbuilder lock {pasted(recipe.path)}` locks what is new in the recipe",
        )
    if options.before is not None and not options.upgrade_only:
        return {}
    if old.base and target.base:
        has_debs = old.base.manifest == target.base.manifest
    else:
        packages = os_packages(recipe, standalone=target.standalone is not None)
        has_debs = all(name in deb_names for name in packages if not name.startswith("?"))
    need = needs_toolkit(recipe, target.base)
    has_toolkit = bool(locked_toolkit(recipe, old.toolkit)) if need else not old.toolkit
    stays = {
        "debs": has_debs,
        "toolkit": has_toolkit and toolkit_names.isdisjoint(options.upgrade_only),
        "wheels": wheel_names.isdisjoint(options.moving) and old.settle(recipe).chosen == recipe.chosen,
        "conda": conda_names.isdisjoint(options.upgrade_only),
    }
    if options.security_only and not recipe.security:
        raise UsageError(
            "the recipe has `security: false`, so its lock takes no security updates",
            hint=f"remove this line of {recipe.path}",
        )
    inputs = recipe_inputs(recipe)
    staying = {
        part: getattr(old, part)
        for part, is_fit in stays.items()
        if is_fit and getattr(inputs, part) == getattr(old.inputs, part)
    }
    has_python = all(is_version(package.version, recipe.python) for package in old.interpreters)
    if target.standalone and has_python and _CPYTHON not in options.upgrade_only:
        staying["interpreter"] = old.interpreters
    return staying


def resolve_interpreter(task: Task) -> Artifacts:
    """Return the newest build of the tables, nothing if none is needed.

    Raises IncompatibleError for a build after `options.before`, or FetchError if no source tells its size.
    """
    build, processor, before = task.target.standalone, task.target.processor, task.options.before
    if build is None:
        return ()
    day = datetime.strptime(build.release, "%Y%m%d").date()  # noqa: DTZ007 - a day, not a time
    if before and day >= before:
        raise IncompatibleError(
            f"{task.recipe.place('$.python')}: the tables have Python {build.version} of {day}, which is not before {before}",
            hint="lock without `--before`, or take a suite with this Python",
        )
    digest, path = Sha256(build.digest(processor)), build.path(processor)
    python = Artifact(
        kind="archive", name=_CPYTHON, version=f"{build.version}+{build.release}", sha256=digest,
        size=_size(path, digest, task.context), source=STANDALONE, path=path,
    )  # fmt: skip
    return (python,)


def _size(path: str, digest: Sha256, context: ResolveContext) -> int:
    """Return the size of an archive in bytes: from the cache, a folder, or the first release that answers."""
    sources = context.sources()
    name = path.rpartition("/")[2]
    if context.store.has_artifact(digest):
        return context.store.artifact(digest).stat().st_size
    for file in (folder / name for folder in sources.folders):
        if file.is_file():
            return file.stat().st_size
    *others, last = (base + quote(path) for base in sources.standalone)
    for url in others:
        with contextlib.suppress(FetchError):
            return context.fetcher.measure([url])[0]
    return context.fetcher.measure([last])[0]


def resolve_tools(task: Task, parts: Artifacts) -> Tools:
    """Return the tools beside the toolkit `parts` of the environment. Raises IncompatibleError if the suite lacks one."""
    recipe, target = task.recipe, task.target
    here = replace(task, target=replace(target, processor=X86_64, base=None))
    names = (*_PACKAGES, *(() if target.standalone else (*_PYTHON, *older_packages(recipe.python))))
    gnu = target.processor.gnu.replace("_", "-")
    suite, _ = open_base(here)
    debs = suite.closure(tuple(name.format(gcc=recipe.gcc, gnu=gnu, python=recipe.python) for name in names))
    row = load_distributions().by_name[_EMULATOR[0]]
    (emulator,) = open_release(here, row).packages(_EMULATOR[1:])
    toolkit = resolve_toolkit(here, parts) if parts else ()
    there, native = ({(part.name, part.version) for part in some} for some in (parts, toolkit))
    if there != native:
        raise IncompatibleError(
            f"{recipe.place('$.cuda')}: the toolkit for {target.processor.title} and that for {X86_64.title}, which compiles for it, "
            "are of different releases",
            hint=f'pin a release that both have, such as `cuda: "{recipe.cuda_minor}.0"`',
        )
    compilers = tuple(deb for deb in debs if not _LEFT_OUT.fullmatch(deb.name))
    return Tools(emulator=emulator, debs=compilers, toolkit=toolkit)
