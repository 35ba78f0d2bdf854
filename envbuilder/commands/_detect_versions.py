"""What `detect` takes from an environment: the versions in its lock, and a P2P test inside its SIF."""

import json
from pathlib import Path
from typing import Final

from envbuilder.artifacts.outputs import find_outputs
from envbuilder.core.errors import BuildError, UsageError
from envbuilder.lock import model as locks
from envbuilder.node.detect import Versions
from envbuilder.node.nccl.facts import Measured
from envbuilder.node.nccl.profile import parse_measured
from envbuilder.recipe.model import find_recipe
from envbuilder.recipe.model import load as load_recipe
from envbuilder.run.container import Surroundings, run_in_sif

MEASURE: Final = ("/opt/env/bin/python", "/opt/envbuilder/lib/envbuilder_nccl", "--measure")


def recipe_versions(name: str, folder: Path) -> Versions:
    """Return the versions in a recipe's lock, or none without a name.

    Raises RecipeError, UsageError or LockError.
    """
    if not name:
        return Versions()
    lock = locks.load(load_recipe(find_recipe(name, folder)).path.with_suffix(".lock"), recipe=name)
    found = {wheel.name: wheel.version for wheel in lock.wheels}
    nccl = next((version for name, version in found.items() if name.startswith("nvidia-nccl-cu")), "")
    return Versions(nccl=nccl, torch=found.get("torch", ""))


def measure_in(recipe: str, output: Path) -> Measured:
    """Test P2P on this machine's GPUs with the torch and NCCL of a SIF.

    Raises UsageError where the test cannot run, and BuildError where it ends without an answer.
    """
    if not recipe:
        raise UsageError("`--measure` runs inside an environment", hint="name it: `--recipe a100`")
    sif = find_outputs(recipe, output).sif
    if not sif.exists():
        raise UsageError(f"there is no SIF `{sif}`", hint=f"`envbuilder build {recipe}` makes it")
    ran = run_in_sif(sif, MEASURE, Surroundings(folder=Path("/"), gpu=True))
    answer = next((line for line in reversed(ran.output.splitlines()) if line.startswith("{")), "")
    if ran.code or not answer:
        raise BuildError(f"the test in `{sif}` ended with exit code {ran.code}\n{ran.output[-2000:]}")
    result = json.loads(answer)
    if "error" in result:
        raise UsageError(
            result["error"], hint="run it on the node with the GPUs, in a job that has all of them"
        )
    return parse_measured(result["measured"])
