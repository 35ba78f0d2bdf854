"""Resolve the packages of the python layer. `uv_resolver` asks uv for them."""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuilder.compat.tables.toolkit import Toolkit, WheelPart
from envbuilder.compat.tables.torch import Torch, index_build
from envbuilder.core.errors import FetchError, IncompatibleError, RecipeError
from envbuilder.core.findings import Finding
from envbuilder.lock.model import Artifact, LockedBuild
from envbuilder.lock.resolve.companions import TorchBuild, ask_for_one_build
from envbuilder.lock.resolve.context import ResolveContext, Target
from envbuilder.lock.resolve.distributions import Distribution, are_met
from envbuilder.lock.resolve.held import TORCH, Choice, held_back, parse_all
from envbuilder.lock.resolve.sdists import read_sdist
from envbuilder.lock.resolve.uv_question import Facts, Question, uv_settings
from envbuilder.lock.resolve.uv_resolver import ask_once, ask_uv, make_choice
from envbuilder.recipe.fields import RecipeCode
from envbuilder.recipe.model import Recipe

log = logging.getLogger(__name__)
ALWAYS: Final = ("setuptools",)  # torch's `cpp_extension` imports it, and only newer releases declare it
_TOOLKIT_EXTRAS: Final = "cccl,crt,cudart,cuobjdump,nvcc,nvvm"  # a release without one of them leaves it out


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """The Python packages of a layer, and what the sdists among them are built with."""

    artifacts: tuple[Artifact, ...]
    builds: tuple[LockedBuild, ...] = ()


def resolve_wheels(
    recipe: Recipe, target: Target, context: ResolveContext, *,
    toolkit: Toolkit | None, prefer: tuple[Artifact, ...], before: date | None, extensions: tuple[Distribution, ...] = (),
    builds: tuple[LockedBuild, ...] = (),
) -> Packages:  # fmt: skip
    """Return the packages of the python layer. Raises IncompatibleError with uv's message if nothing fits."""
    torch, build = torch_requirement(recipe, target, folders=context.sources().folders)
    question = Question(
        python=recipe.python,
        glibc=target.distribution.glibc,
        processor=target.processor,
        requirements=(
            *([torch] if torch else []),
            *ALWAYS,
            *recipe.packages,
            *implied_wheels(recipe, toolkit),
        ),
        constraints=(*recipe.constraints, *(_undeclared_bounds(target.torch) if target.torch else ())),
        build=build,
        prefer=prefer,
        before=before,
        extensions=extensions,
        hashes=recipe.hashes,
    )
    facts: Facts = {}
    own = TorchBuild(recipe=recipe, target=target, context=context)
    found, question = ask_for_one_build(own, question, facts)
    _need_hashes(recipe, found, question, context, facts)
    _say_held_back(recipe, found, question, context, facts)
    return _with_builds(found, question, context, facts, builds)


def resolve_added(
    recipe: Recipe, target: Target, context: ResolveContext, *,
    below: tuple[Artifact, ...], prefer: tuple[Artifact, ...], before: date | None, extensions: tuple[Distribution, ...] = (),
    builds: tuple[LockedBuild, ...] = (),
) -> Packages:  # fmt: skip
    """Return the packages of `add` that the parent lacks. Raises IncompatibleError if they need another version of one of its own."""
    assert recipe.parent, "only a recipe with `add` has one"
    if not recipe.add and are_met(extensions, below, recipe.python, target.processor):
        return Packages(artifacts=())
    pins = {one.name: f"{one.name}=={one.version}" for one in below}
    torch = {"torch": f"torch=={recipe.pytorch}"} if recipe.pytorch else {}
    question = Question(
        python=recipe.python,
        glibc=target.distribution.glibc,
        processor=target.processor,
        requirements=recipe.add,
        constraints=(*recipe.constraints, *(torch | pins).values()),
        build=torch_requirement(recipe, target, folders=context.sources().folders)[1],
        prefer=(*below, *prefer),
        before=before,
        parent=recipe.parent.stem,
        extensions=extensions,
        hashes=recipe.hashes,
    )
    facts: Facts = {}
    own = TorchBuild(recipe=recipe, target=target, context=context)
    found, question = ask_for_one_build(own, question, facts)
    _need_hashes(recipe, found, question, context, facts, below=pins)
    added = tuple(one for one in found if one.name not in pins)
    if not added and recipe.add:
        has = ", ".join(pins[one.name] for one in found)
        raise IncompatibleError(f"`{recipe.parent.stem}` has all that `{recipe.name}` adds: {has}")
    _say_held_back(recipe, found, question, context, facts)
    return _with_builds(added, question, context, facts, builds)


def _need_hashes(
    recipe: Recipe,
    found: tuple[Artifact, ...],
    question: Question,
    context: ResolveContext,
    facts: Facts,
    *,
    below: Collection[str] = (),
) -> None:
    asked = [*question.requirements, *(text for one in question.extensions for text in one.requires or ())]
    given = {canonicalize_name(one.name) for one in parse_all(asked)} | set(below)
    need_hashes(recipe, found, given, lambda: make_choice((), found, question, context, facts))


def _say_held_back(
    recipe: Recipe, found: tuple[Artifact, ...], question: Question, context: ResolveContext, facts: Facts
) -> None:
    """Say what holds back each package whose version is chosen now."""
    kept = {(one.name, one.version) for one in question.prefer}
    own = (*recipe.packages, *recipe.add, *recipe.constraints)
    pinned = {canonicalize_name(one.name) for one in parse_all(own) if "==" in str(one.specifier)}
    names = tuple(
        one.name for one in found if (one.name, one.version) not in kept and one.name not in {TORCH, *pinned}
    )
    if not names:
        return
    every = replace(question, requirements=names, constraints=(), prefer=(), dependencies=False)
    versions = {one.name: one.version for one in found}

    def newer(name: str) -> str:
        """Ask uv for a newer release, and say whether there is one that fits."""
        wanted = f"{name}>={versions[name]},!={versions[name]}"
        another = replace(question, requirements=(*question.requirements, wanted), prefer=())
        try:
            answer = ask_uv(another, context, facts)
        except IncompatibleError:
            return "nothing newer fits all requirements"
        version = next(one.version for one in answer if one.name == name)
        return f"`{name}>={version}` in `packages` takes it"

    try:
        newest = {one.name: one for one in ask_once(every, context, {})}
        older = (one for one in found if one.name in newest and newest[one.name].version != one.version)
        if any(older):
            for line in held_back(make_choice(own, found, question, context, facts), newest, newer):
                log.warning("%s", line)
    except (FetchError, IncompatibleError) as error:  # the lock does not depend on it
        log.info("whether newer releases are held back is not known: %s", error.message)


def _with_builds(
    found: tuple[Artifact, ...],
    question: Question,
    context: ResolveContext,
    facts: Facts,
    old: tuple[LockedBuild, ...],
) -> Packages:
    """Lock what the sdists are built with: wheels for the same target, whatever the environment has.

    A version of `old` stays where it fits, as a package's does, unless its sdist is another one now.
    """
    builds = []
    kept = {(one.name, one.version) for one in question.prefer}
    for sdist in (one for one in found if one.kind == "sdist"):
        key = sdist.name, sdist.version
        if key not in facts:  # its requirements are static
            context.fetcher.fetch((sdist,))
            facts[key] = read_sdist(sdist, context, uv_settings(question, context.sources()))
        if requirements := facts[key].builds_with:
            needs = Question(
                python=question.python,
                glibc=question.glibc,
                processor=question.processor,
                requirements=requirements,
                before=question.before,
                prefer=next((one.wheels for one in old if one.name == sdist.name), ()) if key in kept else (),
                wheels_only=True,
            )
            builds.append(LockedBuild(name=sdist.name, wheels=ask_uv(needs, context)))
    return Packages(artifacts=found, builds=tuple(builds))


def implied_wheels(recipe: Recipe, toolkit: Toolkit | None) -> tuple[str, ...]:
    """Return the requirements besides torch in an environment with CUDA: the toolkit's own and nvidia-ml-py."""
    constraints = toolkit.constraints if toolkit else ()
    return (*constraints, *(("nvidia-ml-py",) if recipe.cuda else ()))


def _undeclared_bounds(torch: Torch) -> tuple[str, ...]:
    """Return torch's undeclared requirements. `check` refuses a recipe that cannot meet them."""
    bounds = (("numpy", torch.numpy), ("setuptools", torch.setuptools))
    return tuple(f"{name}{bound}" for name, bound in bounds if bound)


def resolve_toolkit_wheels(
    recipe: Recipe, target: Target, parts: Sequence[WheelPart], context: ResolveContext, *, before: date | None
) -> tuple[Artifact, ...]:  # fmt: skip
    """Return the toolkit's own wheels: those of fixed versions, or those that the package `cuda-toolkit` requires."""
    names = {part.name for part in parts}
    pins = tuple(f"{part.name}=={part.version}" for part in parts if part.version)
    question = Question(
        python=recipe.python,
        glibc=target.distribution.glibc,
        processor=target.processor,
        requirements=pins or (f"cuda-toolkit[{_TOOLKIT_EXTRAS}]=={recipe.cuda}.*",),
        dependencies=not pins,
        before=before,
        wheels_only=True,
    )
    return tuple(wheel for wheel in ask_uv(question, context) if wheel.name in names)


def torch_requirement(recipe: Recipe, target: Target, *, folders: Sequence[Path]) -> tuple[str, str]:
    """Return the requirement on torch ("" without it) and the PyTorch index that has it ("" for a folder or the package index)."""
    if not recipe.pytorch:
        return "", ""
    build = index_build(target.torch, recipe.cuda_minor)
    if not build:
        return f"torch=={recipe.pytorch}", ""
    there = any(any(folder.glob(f"torch-{recipe.pytorch}+{build}-*.whl")) for folder in folders)
    return f"torch=={recipe.pytorch}+{build}", "" if there else build


def need_hashes(
    recipe: Recipe, found: tuple[Artifact, ...], given: Collection[str], choose: Callable[[], Choice]
) -> None:
    """Raise RecipeError for each file with another hash, and for packages without one that hashed ones require.

    `given` are the packages that the recipe brings. What they and torch require needs no hash.
    """
    if not recipe.hashes:
        return
    findings = [*_other_files(recipe, found), *_unhashed(recipe, found, given, choose)]
    if findings:
        count = f"{len(findings)} package" + ("s do" if len(findings) > 1 else " does")
        raise RecipeError(f"{count} not have the hashes of the requirements files", findings=tuple(findings))


def _other_files(recipe: Recipe, found: tuple[Artifact, ...]) -> Iterator[Finding]:
    for one in found:
        lines = [line for line in recipe.hashes if line.is_about(one.name, one.version)]
        expected = dict.fromkeys(digest for line in lines for digest in line.sha256)
        if not lines or one.sha256 in expected:
            continue
        if Version(one.version).local and not any("+" in line.requirement for line in lines):
            log.warning(
                "%s: the hashes of %s are not compared: the recipe chooses the build %s",
                lines[0].where,
                one.name,
                one.version,
            )
            continue
        message = f"`{one.filename}` has sha256 {one.sha256}, and for {one.name} the file expects {' or '.join(expected)}"
        hint = "compare the two with the package's page; the index may have another file under this name"
        yield Finding(code=RecipeCode.HASH, where=lines[0].where, message=message, hint=hint)


def _unhashed(
    recipe: Recipe, found: tuple[Artifact, ...], given: Collection[str], choose: Callable[[], Choice]
) -> Iterator[Finding]:
    """Yield the packages that only hashed ones require. pip refuses these too."""
    hashed = {line.name for line in recipe.hashes}
    if not {one.name for one in found} - hashed - set(given):
        return
    choice = choose()
    free = choice.needed_by({TORCH, *given} - hashed)
    for one in found:
        if one.name not in hashed and one.name not in free:
            parents = ", ".join(name for name in choice.parents.get(one.name, ()) if name not in free)
            where = next((line.where for line in recipe.hashes if line.name in parents.split(", ")), "")
            yield Finding(
                code=RecipeCode.HASH,
                where=where or recipe.hashes[0].where,
                message=f"{parents} requires {one.name} {one.version}, and the file has no hash of it",
                hint=f"`uv pip compile --generate-hashes` writes all; or write `{one.name}` into `packages` of the recipe",
            )
