"""`history`: the versions of a SIF that its folder keeps, and which of them has the name."""

from pathlib import Path
from typing import Annotated

import typer

from envbuilder.artifacts import history as past
from envbuilder.artifacts.outputs import VERSIONS, find_outputs, versions_to_keep
from envbuilder.commands.context import Artifacts, Session, command, recipe_argument
from envbuilder.core.answer import Answer, Reply
from envbuilder.core.errors import UsageError
from envbuilder.core.plain import columns
from envbuilder.recipe.load import recipes_folder
from envbuilder.run.named import need_file


class History(Answer):
    """The versions, the newest first, and those that `--prune` removed."""

    sif: Path
    versions: tuple[past.Version, ...]
    removed: tuple[str, ...]


@command(
    "history",
    "envbuilder history a100",
    "envbuilder history a100 --rollback",
    "envbuilder history a100 --switch 3f9c1b",
    "envbuilder history a100 --prune 2",
)
def history(
    session: Session,
    name: Annotated[str, recipe_argument("a recipe that was built or pulled, or the path of a SIF")],
    *,
    switch: Annotated[str, typer.Option(metavar="VERSION", help="give the name to this version: the first digits suffice")] = "",
    rollback: Annotated[bool, typer.Option("--rollback", help="give the name to the version before the current one")] = False,
    prune: Annotated[int | None, typer.Option(metavar="N", min=1, help="keep N versions, the current one among them")] = None,
    artifacts: Artifacts,
) -> Reply[History]:  # fmt: skip
    """List the versions of a SIF that its folder keeps, and switch to another one. Running jobs keep their file."""
    sif = find_outputs(name, artifacts.absolute()).sif
    if sum((bool(switch), rollback, prune is not None)) > 1:
        raise UsageError("`--switch`, `--rollback` and `--prune` exclude each other", hint="give one of them")
    need_file(sif, name, recipes_folder(session.environment))
    if switch or rollback:
        if rollback and past.versions(sif):
            past.adopt(sif)  # a copy of a version decides which one is before it
        chosen = past.choose(sif, switch)
        past.adopt(sif)
        past.switch(sif, chosen)
    removed = past.prune(sif, prune) if prune else ()
    listed = tuple(past.versions(sif))
    rows = [
        ("*" if row.current else "", row.version, row.time, f"{row.bytes / 1e9:.2f} GB") for row in listed
    ]
    text = columns([("", "VERSION", "SINCE", "SIZE"), *rows], session.width)
    if not listed:
        keep = versions_to_keep(session.environment)
        hint = (
            f"{VERSIONS} is {keep}" if keep > 1 else f"`export {VERSIONS}=3` keeps three from the next one on"
        )
        text = f"{sif.name} has no earlier versions: {hint}"
    return Reply(data=History(sif=sif, versions=listed, removed=removed), text=text)
