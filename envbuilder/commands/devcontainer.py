"""`devcontainer`: let VS Code open a project in the environment, through Docker or through SSH."""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from envbuilder.artifacts.outputs import find_outputs, image_name
from envbuilder.commands.context import Artifacts, Force, Name, Profile, Recipes, Session, command
from envbuilder.core.answer import Answer, Reply
from envbuilder.core.console import Console
from envbuilder.core.errors import UsageError
from envbuilder.recipe.load import find_recipe, load
from envbuilder.run.devcontainer import FILE, FOLDER, facts_of, make_files, probe_mirror, save_files
from envbuilder.run.exec import warn_of_missing_image
from envbuilder.run.named import need_sif
from envbuilder.run.ssh_session import open_remote

_SRUN: Final = "in a Slurm job with these options of srun: '--gpus=1 --time=4:00:00'"
Srun = Annotated[str, typer.Option(metavar="OPTIONS", help=_SRUN)]


class DevContainerFile(Answer):
    """The file's path, empty where it was not written, its text, and the texts of the files beside it."""

    file: str
    text: str
    beside: dict[str, str]


class SshHost(Answer):
    """The SSH settings that were written, and the name of the host in them."""

    config: Path
    host: str


@command("devcontainer", "envbuilder devcontainer a100", "envbuilder devcontainer a100 --print")
def devcontainer(
    session: Session, name: Name, *,
    image: Annotated[str, typer.Option(metavar="REFERENCE", help="the image; default: the one that `build` loads")] = "",
    ssh: Annotated[str, typer.Option(metavar="HOST", help="without Docker: set up SSH sessions in the SIF on that host")] = "",
    compose: Annotated[bool, typer.Option("--compose", help="for Docker Compose, with the GPUs in a second file")] = False,
    srun: Srun = "",
    write: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="the project; with --ssh, the folder of settings and keys")
    ] = None,
    show: Annotated[bool, typer.Option("--print", help="print the file; write nothing")] = False,
    force: Force, profile: Profile, artifacts: Artifacts, recipes: Recipes,
) -> Reply[DevContainerFile | SshHost]:  # fmt: skip
    """Write `.devcontainer`, so that VS Code opens a project in the environment."""
    if (ssh or srun) and (image or show or compose):
        raise UsageError(
            "`--ssh` and `--srun` cannot be combined with `--image`, `--compose` or `--print`",
            hint="leave them out to write a dev container for Docker",
        )
    if ssh or srun:
        outputs = find_outputs(name, artifacts)
        if os.path.lexists(outputs.sif):  # otherwise it is on that host alone
            need_sif(name, artifacts, recipes)
        remote, config = open_remote(
            outputs, session.environment, host=ssh, srun=srun, profile=profile, folder=write, force=force
        )
        return Reply(data=SshHost(config=config, host=remote.alias), text=remote.how_to_use(config))
    recipe = load(find_recipe(name, recipes))
    files = make_files(
        recipe.name, image or image_name(recipe.name), facts_of(recipe, name), base=recipe.base,
        compose=(write or Path()).absolute().name or "root" if compose else "",
        mirror=probe_mirror(recipe.base, session.environment, Console(color=session.color).say),
    )  # fmt: skip
    if not (show or image):
        outputs = find_outputs(recipe.name, artifacts)
        warn_of_missing_image(name, recipe.processor, outputs, recipes, session.environment)
    saved = () if show else save_files(write or Path(), files, force=force)
    text = files.pop(FILE)
    beside = "".join(f"\n==> {FOLDER}/{file} <==\n{lines}" for file, lines in files.items())
    return Reply(
        data=DevContainerFile(file=str(saved[0]) if saved else "", text=text, beside=files),
        text="\n".join(map(str, saved)) or f"{text}{beside}".rstrip(), is_document=show,
    )  # fmt: skip
