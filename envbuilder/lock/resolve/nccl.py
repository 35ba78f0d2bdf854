"""Lock another NCCL than torch requires: what torch says of it is replaced, and what other packages require still counts."""

import re
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuilder.core.errors import FetchError, IncompatibleError
from envbuilder.lock.candidates import TORCH
from envbuilder.lock.model import Artifact, Artifacts
from envbuilder.lock.resolve.context import Task
from envbuilder.lock.resolve.held import read_requirements
from envbuilder.lock.resolve.sdists import SdistFacts
from envbuilder.lock.resolve.uv_files import Question
from envbuilder.lock.resolve.uv_resolver import Uv
from envbuilder.recipe.model import Recipe

_EXTRA: Final = re.compile(r"extra == ['\"]([\w.-]+)")


def nccl_package(recipe: Recipe) -> str:
    """Return the name of NCCL's package for the recipe's CUDA, "" where torch chooses its version."""
    return f"nvidia-nccl-cu{recipe.cuda.partition('.')[0]}" if recipe.nccl_version else ""


def take_nccl(uv: Uv, question: Question, torch: str, old: Artifacts) -> str:
    """Let uv take the recipe's NCCL for torch's. Returns what to say of it, "" if the old lock has it too.

    Raises IncompatibleError if no index has it, or if NCCL is inside torch's own libraries.
    """
    recipe, name = uv.task.recipe, nccl_package(uv.task.recipe)
    wanted = f"{name}=={recipe.nccl_version}"
    wheel = next(package for package in uv.ask_alone(question, torch, wanted) if package.name == TORCH)
    try:
        required = read_requirements(wheel, uv.context)
    except FetchError:  # of a server that gives whole files alone; a build needs the wheel too
        with uv.context.transfer(f"fetch {wheel.filename} to read what it requires", wheel.size) as progress:
            uv.context.fetcher.fetch((wheel,), progress)
        required = read_requirements(wheel, uv.context)
    replaced = [each for each in required if canonicalize_name(each.name) == name]
    if not replaced:
        raise _no_place(wheel, name, uv.task)
    texts = [str(each) for each in required if each not in replaced]
    texts += (_with_version(each, recipe.nccl_version) for each in replaced)
    extras = tuple(dict.fromkeys(_EXTRA.findall("\n".join(texts))))
    uv.facts[TORCH, wheel.version] = SdistFacts(
        builds_with=(), requires=tuple(texts), extras=extras, python=""
    )
    if any((package.name, package.version) == (name, recipe.nccl_version) for package in old):
        return ""
    theirs = " and ".join(str(each.specifier).removeprefix("==") for each in replaced)
    where = recipe.place("$.nccl.version")
    return f"{where}: {name} is {recipe.nccl_version} in the place of {theirs}, which torch {wheel.version} requires"


def _with_version(requirement: Requirement, version: str) -> str:
    marker = f" ; {requirement.marker}" if requirement.marker else ""
    return f"{requirement.name}=={version}{marker}"


def _no_place(torch: Artifact, name: str, task: Task) -> IncompatibleError:
    return IncompatibleError(
        f"{task.recipe.place('$.nccl.version')}: torch {torch.version} does not require `{name}`: its own libraries "
        "contain NCCL, and no other takes its place",
        hint="leave `version` out of `nccl`, or take a torch that requires the package: those of the package index do since 2.0.0",
    )
