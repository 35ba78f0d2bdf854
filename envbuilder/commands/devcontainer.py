"""`devcontainer`: let VS Code open a project in the environment, through Docker or through SSH."""

from pathlib import Path
from typing import Annotated

import typer

from envbuilder.artifacts.outputs import find_outputs, image_name
from envbuilder.commands.context import Name, Output, Profile, Recipes, Session, command
from envbuilder.core.answer import Answer
from envbuilder.core.errors import UsageError
from envbuilder.core.process import ProcessRunner
from envbuilder.lock.file import load_lock
from envbuilder.lock.known_base import lock_path
from envbuilder.recipe.load import find_recipe, load
from envbuilder.run.devcontainer import EditorFacts, make_file, save_file
from envbuilder.run.launch.site import find_site
from envbuilder.run.ssh_session import SshSession, set_up_session


class DevContainerFile(Answer):
    """The file's path, empty where it was not written, and its text."""

    file: str
    text: str


class SshHost(Answer):
    """The SSH settings that were written, and the name of the host in them."""

    config: Path
    host: str


@command(
    "devcontainer",
    ("envbuilder devcontainer a100", "envbuilder devcontainer a100 --print"),
    DevContainerFile | SshHost,
)
def devcontainer(
    session: Session,
    name: Name,
    *,
    image: Annotated[
        str, typer.Option(metavar="REFERENCE", help="the image; default: the one that `build` loads")
    ] = "",
    host: Annotated[
        str,
        typer.Option(
            "--ssh", metavar="HOST", help="without Docker: set up SSH sessions in the SIF on that host"
        ),
    ] = "",
    write: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="the project; with --ssh, the folder of settings and keys"),
    ] = None,
    show: Annotated[bool, typer.Option("--print", help="print the file; write nothing")] = False,
    force: Annotated[bool, typer.Option("--force", help="replace a file with other content")] = False,
    profile: Profile,
    output: Output,
    recipes: Recipes,
) -> None:
    """Write `.devcontainer/devcontainer.json`, so that VS Code opens a project in the environment."""
    if host and (image or show):
        raise UsageError(
            "`--ssh` cannot be combined with `--image` or `--print`",
            hint="leave `--ssh` out to write a dev container for Docker",
        )
    if host:
        outputs, folder = find_outputs(name, output), (write or Path.home() / ".ssh/envbuilder").absolute()
        ssh = SshSession(
            name=outputs.name, sif=outputs.sif.absolute(), host=host, site=find_site(profile), folder=folder
        )
        runner = ProcessRunner(session.environment, whole=True)
        config = set_up_session(ssh, runner, force=force)
        session.data = SshHost(config=config, host=ssh.alias)
        session.text = (
            f"{config}: `ssh -F {config} {ssh.alias}`; with `Include {config}` as the first line of ~/.ssh/config "
            f"VS Code knows `{ssh.alias}`, too"
        )
        return
    recipe = load(find_recipe(name, recipes))
    path = lock_path(recipe)
    facts = EditorFacts(
        python=recipe.python, has_cuda=bool(recipe.cuda), has_user=not recipe.image,
        has_standalone=path.exists() and load_lock(path, recipe=name).interpreter is not None,
    )  # fmt: skip
    text = make_file(recipe.name, image or image_name(recipe.name), facts)
    saved = None if show else save_file(write or Path(), text, force=force)
    session.data = DevContainerFile(file=str(saved or ""), text=text)
    session.text = str(saved or text.rstrip())
