"""`detect`: what NCCL should be told on this machine, or on one whose outputs were saved."""

from pathlib import Path
from typing import Annotated

import typer

from envbuilder.commands.context import Artifacts, Recipes, Session, command, complete_recipe
from envbuilder.core.answer import Answer, Reply
from envbuilder.core.errors import UsageError
from envbuilder.core.process import ProcessRunner
from envbuilder.node.detect import detect_here, detect_pasted
from envbuilder.node.nccl.decide import Left, Setting
from envbuilder.node.nccl.facts import Facts, Interface, Nic
from envbuilder.node.nccl.report import LINE, as_text
from envbuilder.run.on_node import measure_in, recipe_versions


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
    "envbuilder detect",
    "envbuilder detect --from saved/ --json",
    "envbuilder detect --save node.json",
)
def detect(
    session: Session, *,
    pasted: Annotated[
        Path | None, typer.Option("--from", metavar="PATH", help="saved outputs of one machine: a file or a folder")
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="write the facts of this machine, for --host")] = None,
    recipe: Annotated[
        str, typer.Option(metavar="NAME", help="decide for the NCCL of this recipe's lock", autocompletion=complete_recipe)
    ] = "",
    measure: Annotated[bool, typer.Option("--measure", help="test P2P on these GPUs, in the SIF of --recipe")] = False,
    artifacts: Artifacts, recipes: Recipes,
) -> Reply[DetectedMachine]:  # fmt: skip
    """Show the NCCL settings for this machine, with a reason for each and for each variable that is left unset."""
    versions = recipe_versions(recipe, recipes)
    if pasted and measure:
        raise UsageError(
            "`--measure` tests this machine, and `--from` reads the outputs of another",
            hint="give one of them",
        )
    measured = measure_in(recipe, artifacts, recipes) if measure else None
    detected = (
        detect_pasted(pasted, versions)
        if pasted
        else detect_here(session.environment, ProcessRunner(session.environment), versions, measured)
    )
    if save:
        detected.save(save)
    facts, decision = detected.facts, detected.decision
    data = DetectedMachine(
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
    text = as_text(facts, decision, {} if pasted else session.environment, session.width or LINE)
    return Reply(data=data, text=text, findings=detected.findings)
