"""`detect`: what NCCL should be told on this machine, or on one whose outputs were saved."""

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from envbuilder.commands.context import Output, Recipes, Session, command, complete_recipe
from envbuilder.core.answer import Answer
from envbuilder.core.errors import BuildError, UsageError
from envbuilder.core.process import ProcessRunner
from envbuilder.lock.file import load_lock
from envbuilder.lock.known_base import lock_path
from envbuilder.node.detect import detect_here, detect_pasted
from envbuilder.node.nccl.decide import Left, Setting
from envbuilder.node.nccl.facts import Facts, Interface, Measured, Nic, origin
from envbuilder.node.nccl.profile import parse_measured
from envbuilder.node.nccl.report import LINE, as_text
from envbuilder.recipe.load import find_recipe
from envbuilder.recipe.load import load as load_recipe
from envbuilder.run.container import Surroundings, run_in_sif
from envbuilder.run.named import need_sif

MEASURE: Final = ("/opt/env/bin/python", "/opt/envbuilder/lib/envbuilder_nccl", "--measure")


class DetectedMachine(Answer):
    """The facts of a machine and what follows for NCCL: settings, and variables that are left unset, with reasons."""

    gpus: int | None
    links: tuple[tuple[str, ...], ...]
    nics: tuple[Nic, ...]
    interfaces: tuple[Interface, ...]
    settings: tuple[Setting, ...]
    hints: tuple[str, ...]
    left: tuple[Left, ...]
    damage: tuple[str, ...]
    facts: Facts


@command(
    "detect",
    ("envbuilder detect", "envbuilder detect --from saved/ --json", "envbuilder detect --save node.json"),
    DetectedMachine,
)
def detect(
    session: Session,
    *,
    pasted: Annotated[
        Path | None,
        typer.Option("--from", metavar="PATH", help="saved outputs of one machine: a file or a folder"),
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="write a profile for --host")] = None,
    recipe: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="decide for the NCCL of this recipe's lock", autocompletion=complete_recipe
        ),
    ] = "",
    measure: Annotated[
        bool, typer.Option("--measure", help="test P2P on these GPUs, in the SIF of --recipe")
    ] = False,
    output: Output,
    recipes: Recipes,
) -> None:
    """Show the NCCL settings for this machine, with a reason for each and for each variable that is left unset."""
    versions = recipe_versions(recipe, recipes)
    if pasted and measure:
        raise UsageError(
            "`--measure` tests this machine, and `--from` reads the outputs of another",
            hint="give one of them",
        )
    measured = measure_in(recipe, output, recipes) if measure else None
    found = (
        detect_pasted(pasted, versions)
        if pasted
        else detect_here(session.environment, ProcessRunner(session.environment), versions, measured)
    )
    if save:
        found.save(save)
    session.findings = found.findings
    facts, decision = found.facts, found.decision
    session.data = DetectedMachine(
        gpus=None if facts.gpus is None else len(facts.gpus),
        links=facts.links or (),
        nics=facts.nics or (),
        interfaces=facts.interfaces or (),
        settings=decision.settings,
        hints=decision.hints,
        left=decision.left,
        damage=facts.damage,
        facts=facts,
    )
    own = {} if pasted else session.environment
    session.text = as_text(facts, decision, own, session.width or LINE)


def recipe_versions(name: str, folder: Path) -> Facts:
    """Return the versions in a recipe's lock, or none without a name.

    Raises RecipeError, UsageError or LockError.
    """
    if not name:
        return Facts()
    lock = load_lock(lock_path(load_recipe(find_recipe(name, folder))), recipe=name)
    found = {wheel.name: wheel.version for wheel in lock.wheels}
    nccl = next((version for name, version in found.items() if name.startswith("nvidia-nccl-cu")), "")
    known = {
        name: version for name, version in (("nccl", nccl), ("torch", found.get("torch", ""))) if version
    }
    sources = origin(**dict.fromkeys(known, "the recipe's lock"))
    return Facts(nccl=known.get("nccl"), torch=known.get("torch"), sources=sources)


def measure_in(recipe: str, output: Path, recipes: Path) -> Measured:
    """Test P2P on this machine's GPUs with the torch and NCCL of a SIF.

    Raises UsageError where the test cannot run, what `need_sif` raises, and BuildError where it ends without an answer.
    """
    if not recipe:
        raise UsageError("`--measure` runs inside an environment", hint="name it: `--recipe a100`")
    sif = need_sif(recipe, output, recipes).sif
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
