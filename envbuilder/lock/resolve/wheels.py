"""Resolve the packages of the python layer, with all companions of torch in its build. `uv_resolver` asks uv for them."""

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuilder.compat.context import load_tables, make_context
from envbuilder.compat.suggest import find_on_package_index
from envbuilder.compat.tables.toolkit import Part, Toolkit
from envbuilder.compat.tables.torch import COMPANIONS, CPU, cuda_of, index_build
from envbuilder.core.errors import FetchError, IncompatibleError, RecipeError
from envbuilder.core.findings import Finding
from envbuilder.core.spelling import nearest
from envbuilder.lock.candidates import TORCH, parse_all
from envbuilder.lock.model import Artifact, Artifacts, LockedBuild
from envbuilder.lock.resolve.context import Target, Task
from envbuilder.lock.resolve.held import Choice, held_back
from envbuilder.lock.resolve.nccl import nccl_package, take_nccl
from envbuilder.lock.resolve.placed_wheels import lock_placed
from envbuilder.lock.resolve.project_metadata import ProjectMetadata
from envbuilder.lock.resolve.sdists import read_sdist
from envbuilder.lock.resolve.uv_files import Question, make_question, uv_settings
from envbuilder.lock.resolve.uv_resolver import Uv
from envbuilder.recipe.fields import RecipeCode
from envbuilder.recipe.model import Recipe
from envbuilder.recipe.wheel_sources import pin_of
from envbuilder.sources.http.reachable import reach
from envbuilder.sources.names import shown

log = logging.getLogger(__name__)
ALWAYS: Final = ("setuptools",)  # torch's `cpp_extension` imports it, and only newer releases declare it
_MIRROR: Final = "ENVBUILDER_PYTORCH_INDEX names a mirror of it, or ENVBUILDER_FOLDERS folders of wheels"
_TOOLKIT_EXTRAS: Final = "cccl,crt,cudart,cuobjdump,nvcc,nvvm"  # a release without one of them leaves it out


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """The Python packages of a layer, and what the sdists among them are built with."""

    artifacts: Artifacts
    builds: tuple[LockedBuild, ...] = ()


def resolve_wheels(
    task: Task, *, toolkit: Toolkit | None = None, prefer: Artifacts = (),
    extensions: tuple[ProjectMetadata, ...] = (), builds: tuple[LockedBuild, ...] = (),
) -> Packages:  # fmt: skip
    """Return the packages of the python layer. Raises IncompatibleError with uv's message if nothing fits.

    `builds` are those of the old lock.
    """
    recipe, row = task.recipe, task.target.torch
    # What torch requires and does not declare. `check` refuses a recipe that cannot meet it.
    undeclared = (("numpy", row.numpy), ("setuptools", row.setuptools)) if row else ()
    bounds = (f"{name}{bound}" for name, bound in undeclared if bound)
    placed = lock_placed(task, prefer)
    elsewhere = {wheel.name for wheel in placed} | {nccl_package(recipe)}
    old, prefer = prefer, tuple(package for package in prefer if package.name not in elsewhere)
    torch, build = torch_requirement(recipe, task.target, folders=task.context.sources().folders)
    asked = map(pin_of, recipe.requirements)
    wanted = (*([torch] if torch else []), *ALWAYS, *asked, *implied_wheels(recipe, toolkit))
    question = replace(
        make_question(task, wanted, prefer=prefer), constraints=(*recipe.constraints, *bounds), build=build,
        extensions=extensions, hashes=recipe.hashes, placed=placed,
    )  # fmt: skip
    uv = Uv(task)
    replaced = take_nccl(uv, question, torch, old) if recipe.nccl_version else ""
    packages, question = _ask_for_one_build(question, uv)
    if replaced:
        log.warning("%s", replaced)
    _need_listed(packages, question, toolkit, task)
    _say_sources(packages, question, {canonicalize_name(Requirement(text).name) for text in recipe.chosen})
    _need_hashes(packages, question, uv)
    _say_held_back(packages, question, uv)
    return _with_builds(packages, question, uv, builds)


def _need_listed(packages: Artifacts, question: Question, toolkit: Toolkit | None, task: Task) -> None:
    """Raise RecipeError for each name of the recipe's indexes that nothing requires: the package that was meant came from elsewhere."""
    implied = parse_all(implied_wheels(task.recipe, toolkit))
    names = {package.name for package in packages} | {canonicalize_name(each.name) for each in implied}
    findings = tuple(
        Finding(
            code=RecipeCode.REQUIREMENT, where=task.recipe.place(f"$.indexes[{at}].packages[{number}]"),
            message=f"the index `{index.name}` is there for `{name}`, and nothing requires it",
            hint=f"{nearest(name, names)}leave it out, or add it to `packages`",
        )
        for at, index in enumerate(question.indexes) for number, name in enumerate(index.packages)
        if not name.endswith("*") and canonicalize_name(name) not in names
    )  # fmt: skip
    if findings:
        raise RecipeError("the recipe's `indexes` have packages that nothing requires", findings=findings)


def _say_sources(packages: Artifacts, question: Question, chosen: Collection[str]) -> None:
    """Say where each package comes from that is chosen now, if the recipe decides it. Of the `chosen`, `lock` says it."""
    for package in packages:
        if not question.prefers(package):
            index = question.listed(package.name)
            if package.name in chosen:
                continue
            if package in question.placed:
                log.warning("%s %s comes from its address in `packages`", package.name, package.version)
            elif index:
                log.warning(
                    "%s %s comes from `%s`: %s", package.name, package.version, index.name, shown(index.place)
                )


def _say_held_back(packages: Artifacts, question: Question, uv: Uv) -> None:
    """Say what holds back each package whose version is chosen now."""
    recipe = uv.task.recipe
    written = (*map(pin_of, recipe.requirements), *recipe.constraints)
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
        every = replace(
            question, requirements=names, constraints=(), prefer=(), dependencies=False, sized=False
        )
        newest = {package.name: package for package in Uv(uv.task).ask_once(every)}
        if any(package.version != versions[name] for name, package in newest.items() if name in versions):
            for line in held_back(uv.make_choice(written, packages, question), newest, newer):
                log.warning("%s", line)
    except (FetchError, IncompatibleError) as error:  # the lock does not depend on it
        log.info("whether newer releases are held back is not known: %s", error.message)


def _with_builds(packages: Artifacts, question: Question, uv: Uv, old: tuple[LockedBuild, ...]) -> Packages:
    """Lock what the sdists are built with: wheels for the same target, whatever the environment has.

    A version of `old` stays where it fits, as a package's does, unless its sdist is another one now.
    """
    builds, context = [], uv.context
    for sdist in (package for package in packages if package.kind == "sdist"):
        key = sdist.name, sdist.version
        if key not in uv.facts:  # its requirements are static
            context.fetcher.fetch((sdist,))
            settings = uv_settings(question, context.sources())
            uv.facts[key] = read_sdist(sdist, context, settings, question.listed)
        if requirements := uv.facts[key].builds_with:
            before = next((build.wheels for build in old if build.name == sdist.name), ())
            prefer = before if question.prefers(sdist) else ()
            needs = replace(make_question(uv.task, requirements, prefer=prefer), wheels_only=True)
            builds.append(LockedBuild(name=sdist.name, wheels=Uv(uv.task).ask(needs)))
    return Packages(artifacts=packages, builds=tuple(builds))


def implied_wheels(recipe: Recipe, toolkit: Toolkit | None) -> tuple[str, ...]:
    """Return the requirements besides torch in an environment with CUDA: the toolkit's own and nvidia-ml-py."""
    constraints = toolkit.constraints if toolkit else ()
    return (*constraints, *(("nvidia-ml-py",) if recipe.cuda else ()))


def resolve_toolkit_wheels(task: Task, parts: Sequence[Part]) -> Artifacts:
    """Return the toolkit's own wheels: those of fixed versions, or those that the package `cuda-toolkit` requires."""
    names = {part.name for part in parts}
    pins = tuple(f"{part.name}=={part.version}" for part in parts if part.version)
    wanted = pins or (f"cuda-toolkit[{_TOOLKIT_EXTRAS}]=={task.recipe.cuda}.*",)
    question = replace(make_question(task, wanted), wheels_only=True, dependencies=not pins)
    return tuple(wheel for wheel in Uv(task).ask(question) if wheel.name in names)


def torch_requirement(recipe: Recipe, target: Target, *, folders: Sequence[Path]) -> tuple[str, str]:
    """Return the requirement on torch ("" without it) and the PyTorch index that has it ("" for a folder or the package index)."""
    if not recipe.pytorch:
        return "", ""
    build = index_build(target.torch, recipe.cuda_minor)
    if not build:
        return f"torch=={recipe.pytorch}", ""
    there = any(any(folder.glob(f"torch-{recipe.pytorch}+{build}-*.whl")) for folder in folders)
    return f"torch=={recipe.pytorch}+{build}", "" if there else build


# ---- torchvision and torchaudio: each is compiled against one build of torch and does not load beside another


def _ask_for_one_build(question: Question, uv: Uv) -> tuple[Artifacts, Question]:
    """Return uv's answer with all companions of torch in torch's build, and the question that was asked for it.

    Where torch itself comes from a folder, PyTorch's own index is searched only if the folder lacks a companion.
    """
    task = uv.task

    def ask(question: Question, what: str) -> Artifacts:
        try:
            return uv.ask(question)
        except (FetchError, IncompatibleError) as error:
            if question.build:
                _need_own_index(task, what, error)
            raise

    packages = ask(question, "torch {}")
    others = of_other_builds(packages, task)
    # A version that names its build can be excluded.
    without = (f"{wheel.name}!={wheel.version}" for wheel in others if "+" in wheel.version)
    narrower = replace(question, build=_own_build(task), constraints=(*question.constraints, *without))
    if others and narrower != question:
        packages, question = ask(narrower, f"{others[0].name} for torch {{}}"), narrower
        others = of_other_builds(packages, task)
    if others:
        raise _refused(others[0], task)
    return packages, question


def of_other_builds(packages: Sequence[Artifact], task: Task) -> list[Artifact]:
    """Return the companions that are compiled against another build than the environment's torch."""
    if not task.recipe.pytorch:
        return []
    wanted = _own_build(task) or _packaged_build(task)
    return [wheel for wheel in packages if wheel.name in COMPANIONS and _build(wheel, task) != wanted]


def _own_build(task: Task) -> str:
    """Return the build of torch if PyTorch's own index alone has it, otherwise ""."""
    return index_build(task.target.torch, task.recipe.cuda_minor) if task.recipe.pytorch else ""


def _own_index(task: Task) -> str:
    return f"{task.context.sources().pytorch}{_own_build(task)}/"


def _packaged_build(task: Task) -> str:
    return task.target.torch.pypi if task.target.torch else ""


def _build(wheel: Artifact, task: Task) -> str:
    return wheel.path.partition("/")[0] if wheel.source == "pytorch" else _packaged_build(task)


def _refused(other: Artifact, task: Task) -> IncompatibleError:
    """Return the error for a build that PyTorch's own index should have replaced."""
    build, name = _build(other, task), f"{other.name} {other.version}"
    made = f"for CUDA {cuda_of(build)}" if build not in ("", CPU) else "for another build"
    where = " of the package index" if other.source == "pypi" else ""
    wanted = f"{other.name} {other.version.partition('+')[0]}+{_own_build(task)}"
    return IncompatibleError(
        f"{name}{where} is compiled {made} and does not load beside torch {task.recipe.pytorch}+{_own_build(task)}; "
        f"{wanted} was expected, and {shown(_own_index(task))} does not have it",
        hint=_MIRROR,
    )


def _need_own_index(task: Task, what: str, error: FetchError | IncompatibleError) -> None:
    """Raise FetchError if PyTorch's own index, which alone has this build, does not answer."""
    (reached,) = reach((_own_index(task),), task.context.sources().certificates)
    if not reached.trouble:
        return
    packaged = find_on_package_index(make_context(task.recipe, load_tables(), base=task.target.inside))
    ways = [f"or write {packaged.words()}: that build is in the package index"] if packaged else []
    name = what.format(f"{task.recipe.pytorch}+{_own_build(task)}")
    raise FetchError(
        f"{name} is in PyTorch's own index alone, and {reached.url} does not answer: {reached.trouble}",
        hint="; ".join([_MIRROR, *ways]),
    ) from error


# ---- hashes of requirements files, compared as pip does


def _need_hashes(packages: Artifacts, question: Question, uv: Uv) -> None:
    """Raise RecipeError for each file with another hash, and for packages without one that hashed ones require.

    What the recipe's own packages and torch require needs no hash.
    """
    recipe = uv.task.recipe
    if not recipe.hashes:
        return
    required = (text for project in question.extensions for text in project.requires or ())
    asked = parse_all([*question.requirements, *required])
    given = {canonicalize_name(requirement.name) for requirement in asked}
    findings = [*_other_files(recipe, packages)]
    if {package.name for package in packages} - {line.name for line in recipe.hashes} - given:
        findings += _unhashed(recipe, packages, given, uv.make_choice((), packages, question))
    if findings:
        count = f"{len(findings)} package" + ("s do" if len(findings) > 1 else " does")
        raise RecipeError(f"{count} not have the hashes of the requirements files", findings=tuple(findings))


def _other_files(recipe: Recipe, packages: Artifacts) -> Iterator[Finding]:
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
    recipe: Recipe, packages: Artifacts, given: Collection[str], choice: Choice
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
