"""`detect`: what NCCL should be told on this machine, or on one whose outputs were saved."""

from pathlib import Path
from typing import Annotated

import typer

from envbuilder.commands.context import Artifacts, Recipes, Session, command, complete_recipe
from envbuilder.core.answer import Reply
from envbuilder.core.errors import UsageError
from envbuilder.core.process import ProcessRunner
from envbuilder.node.detect import DetectedMachine, answer, detect_here, detect_pasted, save_profile
from envbuilder.node.nccl.decide import decide
from envbuilder.node.nccl.report import LINE, as_text
from envbuilder.run.on_node import measure_in, recipe_versions


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
    facts, findings = (
        detect_pasted(pasted, versions)
        if pasted
        else detect_here(session.environment, ProcessRunner(session.environment), versions, measured)
    )
    decision = decide(facts)
    if save:
        save_profile(save, facts, decision)
    set_here = {} if pasted else session.environment
    text = as_text(facts, decision, set_here, session.width or LINE)
    return Reply(data=answer(facts, decision), text=text, findings=findings)
