"""Resolve the packages of the python layer. `uv_resolver` asks uv for them."""

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuilder.compat.tables.toolkit import Part, Toolkit
from envbuilder.compat.tables.torch import Torch, index_build
from envbuilder.core.errors import FetchError, IncompatibleError, RecipeError
from envbuilder.core.findings import Finding
from envbuilder.lock.model import Artifact, LockedBuild
from envbuilder.lock.resolve.companions import TorchBuild, ask_for_one_build
from envbuilder.lock.resolve.context import ResolveContext, Target
from envbuilder.lock.resolve.distributions import Distribution, are_met
from envbuilder.lock.resolve.held import TORCH, Choice, held_back, parse_all
from envbuilder.lock.resolve.sdists import read_sdist
from envbuilder.lock.resolve.uv_question import Question, uv_settings
from envbuilder.lock.resolve.uv_resolver import Uv
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
    wanted = (*([torch] if torch else []), *ALWAYS, *recipe.packages, *implied_wheels(recipe, toolkit))
    question = Question(
        python=recipe.python, glibc=target.distribution.glibc, processor=target.processor, requirements=wanted,
        constraints=(*recipe.constraints, *(_undeclared_bounds(target.torch) if target.torch else ())),
        build=build, prefer=prefer, before=before, extensions=extensions, hashes=recipe.hashes,
    )  # fmt: skip
    uv = Uv(context)
    packages, question = ask_for_one_build(
        TorchBuild(recipe=recipe, target=target, context=context), question, uv
    )
    _need_hashes(recipe, packages, question, uv)
    _say_held_back(recipe, packages, question, uv)
    return _with_builds(packages, question, uv, builds)


def resolve_added(
    recipe: Recipe, target: Target, context: ResolveContext, *,
    below: tuple[Artifact, ...], prefer: tuple[Artifact, ...], before: date | None, extensions: tuple[Distribution, ...] = (),
    builds: tuple[LockedBuild, ...] = (),
) -> Packages:  # fmt: skip
    """Return the packages of `add` that the parent lacks. Raises IncompatibleError if they need another version of one of its own."""
    assert recipe.parent, "only a recipe with `add` has one"
    if not recipe.add and are_met(extensions, below, recipe.python, target.processor):
        return Packages(artifacts=())
    pins = {wheel.name: f"{wheel.name}=={wheel.version}" for wheel in below}
    torch = {"torch": f"torch=={recipe.pytorch}"} if recipe.pytorch else {}
    question = Question(
        python=recipe.python, glibc=target.distribution.glibc, processor=target.processor, requirements=recipe.add,
        constraints=(*recipe.constraints, *(torch | pins).values()), prefer=(*below, *prefer), before=before,
        build=torch_requirement(recipe, target, folders=context.sources().folders)[1], parent=recipe.parent.stem,
        extensions=extensions, hashes=recipe.hashes,
    )  # fmt: skip
    uv = Uv(context)
    packages, question = ask_for_one_build(
        TorchBuild(recipe=recipe, target=target, context=context), question, uv
    )
    _need_hashes(recipe, packages, question, uv, below=pins)
    added = tuple(package for package in packages if package.name not in pins)
    if not added and recipe.add:
        has = ", ".join(pins[package.name] for package in packages)
        raise IncompatibleError(f"`{recipe.parent.stem}` has all that `{recipe.name}` adds: {has}")
    _say_held_back(recipe, packages, question, uv)
    return _with_builds(added, question, uv, builds)


def _say_held_back(recipe: Recipe, packages: tuple[Artifact, ...], question: Question, uv: Uv) -> None:
    """Say what holds back each package whose version is chosen now."""
    written = (*recipe.packages, *recipe.add, *recipe.constraints)
    pinned = {canonicalize_name(bound.name) for bound in parse_all(written) if "==" in str(bound.specifier)}
    chosen = (package.name for package in packages if not question.prefers(package))
    names = tuple(name for name in chosen if name not in {TORCH, *pinned})
    if not names:
        return
    versions = {package.name: package.version for package in packages}

    def newer(name: str) -> str:
        """Ask uv for a newer release, and say whether there is one that fits."""
        wanted = f"{name}>={versions[name]},!={versions[name]}"
        try:
            answer = uv.ask(replace(question, requirements=(*question.requirements, wanted), prefer=()))
        except IncompatibleError:
            return "nothing newer fits all requirements"
        version = next(package.version for package in answer if package.name == name)
        return f"`{name}>={version}` in `packages` takes it"

    try:
        every = replace(question, requirements=names, constraints=(), prefer=(), dependencies=False)
        newest = {package.name: package for package in Uv(uv.context).ask_once(every)}
        if any(package.version != versions[name] for name, package in newest.items() if name in versions):
            for line in held_back(uv.make_choice(written, packages, question), newest, newer):
                log.warning("%s", line)
    except (FetchError, IncompatibleError) as error:  # the lock does not depend on it
        log.info("whether newer releases are held back is not known: %s", error.message)


def _with_builds(
    packages: tuple[Artifact, ...], question: Question, uv: Uv, old: tuple[LockedBuild, ...]
) -> Packages:
    """Lock what the sdists are built with: wheels for the same target, whatever the environment has.

    A version of `old` stays where it fits, as a package's does, unless its sdist is another one now.
    """
    builds, context = [], uv.context
    for sdist in (package for package in packages if package.kind == "sdist"):
        key = sdist.name, sdist.version
        if key not in uv.facts:  # its requirements are static
            context.fetcher.fetch((sdist,))
            uv.facts[key] = read_sdist(sdist, context, uv_settings(question, context.sources()))
        if requirements := uv.facts[key].builds_with:
            before = next((build.wheels for build in old if build.name == sdist.name), ())
            needs = Question(
                python=question.python, glibc=question.glibc, processor=question.processor, requirements=requirements,
                before=question.before, prefer=before if question.prefers(sdist) else (), wheels_only=True,
            )  # fmt: skip
            builds.append(LockedBuild(name=sdist.name, wheels=Uv(context).ask(needs)))
    return Packages(artifacts=packages, builds=tuple(builds))


def implied_wheels(recipe: Recipe, toolkit: Toolkit | None) -> tuple[str, ...]:
    """Return the requirements besides torch in an environment with CUDA: the toolkit's own and nvidia-ml-py."""
    constraints = toolkit.constraints if toolkit else ()
    return (*constraints, *(("nvidia-ml-py",) if recipe.cuda else ()))


def _undeclared_bounds(torch: Torch) -> tuple[str, ...]:
    """Return torch's undeclared requirements. `check` refuses a recipe that cannot meet them."""
    bounds = (("numpy", torch.numpy), ("setuptools", torch.setuptools))
    return tuple(f"{name}{bound}" for name, bound in bounds if bound)


def resolve_toolkit_wheels(
    recipe: Recipe, target: Target, parts: Sequence[Part], context: ResolveContext, *, before: date | None
) -> tuple[Artifact, ...]:  # fmt: skip
    """Return the toolkit's own wheels: those of fixed versions, or those that the package `cuda-toolkit` requires."""
    names = {part.name for part in parts}
    pins = tuple(f"{part.name}=={part.version}" for part in parts if part.version)
    question = Question(
        python=recipe.python, glibc=target.distribution.glibc, processor=target.processor, before=before, wheels_only=True,
        requirements=pins or (f"cuda-toolkit[{_TOOLKIT_EXTRAS}]=={recipe.cuda}.*",), dependencies=not pins,
    )  # fmt: skip
    return tuple(wheel for wheel in Uv(context).ask(question) if wheel.name in names)


def torch_requirement(recipe: Recipe, target: Target, *, folders: Sequence[Path]) -> tuple[str, str]:
    """Return the requirement on torch ("" without it) and the PyTorch index that has it ("" for a folder or the package index)."""
    if not recipe.pytorch:
        return "", ""
    build = index_build(target.torch, recipe.cuda_minor)
    if not build:
        return f"torch=={recipe.pytorch}", ""
    there = any(any(folder.glob(f"torch-{recipe.pytorch}+{build}-*.whl")) for folder in folders)
    return f"torch=={recipe.pytorch}+{build}", "" if there else build


# ---- hashes of requirements files, compared as pip does


def _need_hashes(
    recipe: Recipe, packages: tuple[Artifact, ...], question: Question, uv: Uv, *, below: Collection[str] = ()
) -> None:
    """Raise RecipeError for each file with another hash, and for packages without one that hashed ones require.

    What the recipe's own packages, those `below` and torch require needs no hash.
    """
    if not recipe.hashes:
        return
    asked = [
        *question.requirements,
        *(text for project in question.extensions for text in project.requires or ()),
    ]
    given = {canonicalize_name(wanted.name) for wanted in parse_all(asked)} | set(below)
    findings = [*_other_files(recipe, packages)]
    if {package.name for package in packages} - {line.name for line in recipe.hashes} - given:
        findings += _unhashed(recipe, packages, given, uv.make_choice((), packages, question))
    if findings:
        count = f"{len(findings)} package" + ("s do" if len(findings) > 1 else " does")
        raise RecipeError(f"{count} not have the hashes of the requirements files", findings=tuple(findings))


def _other_files(recipe: Recipe, packages: tuple[Artifact, ...]) -> Iterator[Finding]:
    for package in packages:
        name, version = package.name, package.version
        lines = [line for line in recipe.hashes if line.is_about(name, version)]
        expected = dict.fromkeys(digest for line in lines for digest in line.sha256)
        if not lines or package.sha256 in expected:
            continue
        if Version(version).local and not any("+" in line.requirement for line in lines):
            message = "%s: the hashes of %s are not compared: the recipe chooses the build %s"
            log.warning(message, lines[0].where, name, version)
            continue
        message = f"`{package.filename}` has sha256 {package.sha256}, and for {name} the file expects {' or '.join(expected)}"
        hint = "compare the two with the package's page; the index may have another file under this name"
        yield Finding(code=RecipeCode.HASH, where=lines[0].where, message=message, hint=hint)


def _unhashed(
    recipe: Recipe, packages: tuple[Artifact, ...], given: Collection[str], choice: Choice
) -> Iterator[Finding]:
    """Yield the packages that only hashed ones require. pip refuses these too."""
    hashed = {line.name for line in recipe.hashes}
    free = choice.needed_by({TORCH, *given} - hashed)
    for name, version in ((package.name, package.version) for package in packages):
        if name not in hashed and name not in free:
            parents = ", ".join(parent for parent in choice.parents.get(name, ()) if parent not in free)
            where = next((line.where for line in recipe.hashes if line.name in parents.split(", ")), "")
            yield Finding(
                code=RecipeCode.HASH, where=where or recipe.hashes[0].where,
                message=f"{parents} requires {name} {version}, and the file has no hash of it",
                hint=f"`uv pip compile --generate-hashes` writes all; or write `{name}` into `packages` of the recipe",
            )  # fmt: skip
