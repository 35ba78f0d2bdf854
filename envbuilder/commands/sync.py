"""`sync`: a SIF to another machine over SSH, without a registry."""

from typing import Annotated

import typer

from envbuilder.artifacts.outputs import load_record, versions_to_keep
from envbuilder.commands._console import open_console
from envbuilder.commands.context import Artifacts, Session, command, recipe_argument
from envbuilder.core.answer import Reply
from envbuilder.core.cache import parse_sha256, sha256_file
from envbuilder.core.process import ProcessRunner
from envbuilder.recipe.load import recipes_folder
from envbuilder.run import sync as ssh
from envbuilder.run.named import need_sif


@command(
    "sync",
    "envbuilder sync a100 login.site.org:/scratch/me/sifs",
    "envbuilder sync build/a100.sif me@login.site.org:sifs",
)
def sync(
    session: Session,
    name: Annotated[str, recipe_argument("a recipe that was built or pulled, or the path of a SIF")],
    target: Annotated[str, typer.Argument(help="a machine that ssh reaches, and a folder there", metavar="HOST:FOLDER")],
    *,
    python: Annotated[str, typer.Option(help="Python 3.8 or later on that machine")] = "python3",
    artifacts: Artifacts,
) -> Reply[ssh.Synced]:  # fmt: skip
    """Send a SIF over SSH, only what the other machine lacks: `envbuilder sync a100 login.site.org:/scratch/me/sifs`."""
    outputs, shown = (
        need_sif(name, artifacts.absolute(), recipes_folder(session.environment)),
        open_console(session),
    )
    record = load_record(outputs)
    with shown.group(f"sync {outputs.name}"):
        sent = ssh.sync(
            outputs, target, sha256=parse_sha256(record.sif) if record else sha256_file(outputs.sif),
            versions=versions_to_keep(session.environment), python=python,
            runner=ProcessRunner(session.environment, whole=True), console=shown,
        )  # fmt: skip
    return Reply(data=sent, text=sent.text())
