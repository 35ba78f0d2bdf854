"""What `detect` and `doctor` compare this node with: the recipes of environments, and torch in a SIF."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from envbuilder.artifacts.outputs import SIF, find_outputs
from envbuilder.compat.context import load_tables, make_context
from envbuilder.compat.host_file import HostFacts
from envbuilder.compat.rules.driver import check_driver, check_host_gpus
from envbuilder.core.errors import BuildError, EnvbuilderError, UsageError
from envbuilder.core.findings import Severity
from envbuilder.core.plain import pasted
from envbuilder.lock.file import load_lock, lock_path
from envbuilder.node.doctor.machine import CheckSubject, DoctorCode, DoctorItem
from envbuilder.node.nccl.facts import Facts, Measured, origin
from envbuilder.node.nccl.profile import parse_measured
from envbuilder.recipe.load import expand, find_recipe, load
from envbuilder.recipe.model import Recipe
from envbuilder.run.container import Surroundings, run_in_sif
from envbuilder.run.named import need_sif

MEASURE: Final = ("/opt/env/bin/python", "/opt/envbuilder/lib/envbuilder_nccl", "--measure")


def recipe_versions(name: str, recipes: Path) -> Facts:
    """Return the versions in a recipe's lock, or none without a name.

    Raises RecipeError, UsageError or LockError.
    """
    if not name:
        return Facts()
    lock = load_lock(lock_path(load(find_recipe(name, recipes))), recipe=name)
    nccl = next((wheel.version for wheel in lock.wheels if wheel.name.startswith("nvidia-nccl-cu")), None)
    torch = next((wheel.version for wheel in lock.wheels if wheel.name == "torch"), None)
    known = [key for key, version in (("nccl", nccl), ("torch", torch)) if version]
    return Facts(nccl=nccl, torch=torch, sources=origin(**dict.fromkeys(known, "the recipe's lock")))


def measure_in(name: str, artifacts: Path, recipes: Path) -> Measured:
    """Test P2P on this machine's GPUs with the torch and NCCL of a SIF.

    Raises UsageError where the test cannot run, what `need_sif` raises, and BuildError where it ends without an answer.
    """
    if not name:
        raise UsageError("`--measure` runs inside an environment", hint="name it: `--recipe a100`")
    sif = need_sif(name, artifacts, recipes).sif
    ran = run_in_sif(sif, MEASURE, Surroundings(folder=Path("/"), gpu=True))
    answer = next((line for line in reversed(ran.output.splitlines()) if line.startswith("{")), "")
    if ran.code or not answer:
        raise BuildError(f"the test in `{sif}` ended with exit code {ran.code}\n{ran.output[-2000:]}")
    result = json.loads(answer)
    if "error" in result:
        hint = "run it on the node with the GPUs, in a job that has all of them"
        raise UsageError(result["error"], hint=hint)
    return parse_measured(result["measured"])


def recipes_meant(name: str, recipes: Path, artifacts: Path) -> tuple[Recipe, ...]:
    """Return the recipe in the SIF that a name means, else in its file. Without a name, those of all SIFs in the folder of artifacts.

    Raises EnvbuilderError for an unknown name, a SIF of others and a recipe with mistakes. Without a name, these are left out.
    """
    if not name:
        read = []
        for sif in sorted(artifacts.glob(f"*{SIF}")):
            with contextlib.suppress(EnvbuilderError):
                read.append(_recipe_in(sif))
        return tuple(read)
    sif = find_outputs(name, artifacts).sif
    if sif.is_file() or name.endswith(SIF):
        return (_recipe_in(sif),)
    return tuple(load(find_recipe(variant, recipes)) for variant in expand(name, recipes))


def _recipe_in(sif: Path) -> Recipe:
    """Return what decides the GPUs and drivers that a SIF runs on."""
    from envbuilder.run.environment_pins import probe_pins  # noqa: PLC0415 - `doctor --help` does without zstandard

    pins = probe_pins(sif)
    return Recipe(
        name=sif.stem, path=sif, gpus=pins.gpus, cuda=pins.cuda, pytorch=pins.torch,
        base="", python="", gcc="", libxcrypt="", apt=(), extensions=(), env=(),
    )  # fmt: skip


def check_recipes(recipes: Sequence[Recipe], driver: str, gpus: Sequence[str]) -> Iterator[DoctorItem]:
    """Compare each recipe with CUDA with a driver and GPUs, by the rules of `check --host`."""
    tables = load_tables()
    host = HostFacts(path=Path("this machine"), driver=driver, gpus=tuple(gpus) or None)
    why = "an environment needs the driver of its CUDA and code for the GPU at hand"
    for recipe in filter(lambda recipe: recipe.cuda, recipes):
        subject = CheckSubject(DoctorCode.RECIPE, f"recipe {recipe.name}", why)
        context = make_context(recipe, tables, host)
        problems = [*check_driver(context), *check_host_gpus(context)]
        errors = [problem for problem in problems if problem.severity is Severity.ERROR]
        if messages := "; ".join(problem.message for problem in errors or problems):
            yield subject.warning(messages, f"envbuilder check {pasted(recipe.name)} --host FILE")
        else:
            yield subject.ok(f"CUDA {recipe.cuda} runs on {driver}")
