"""`devcontainer`: let VS Code open a project in the environment, through Docker or through SSH."""

import os
import shlex
from pathlib import Path
from typing import Annotated, Final

import typer

from envbuilder.artifacts.outputs import find_outputs, image_name
from envbuilder.commands.context import Name, Output, Profile, Recipes, Session, command
from envbuilder.core.answer import Answer
from envbuilder.core.console import Console
from envbuilder.core.errors import ToolError, UsageError
from envbuilder.core.plain import pasted
from envbuilder.core.process import ProcessRunner
from envbuilder.lock.file import load_lock
from envbuilder.lock.known_base import lock_path
from envbuilder.recipe.load import find_recipe, load
from envbuilder.run.devcontainer import FILE, FOLDER, EditorFacts, make_files, save_files
from envbuilder.run.exec import warn_of_missing_image
from envbuilder.run.launch.site import find_site
from envbuilder.run.named import need_sif
from envbuilder.run.ssh_session import SshSession, set_up_session
from envbuilder.sources.names import UBUNTU, probe_sources, shown

SETTINGS: Final = Path("~/.ssh/envbuilder")  # of SSH sessions
Srun = Annotated[
    str,
    typer.Option(
        metavar="OPTIONS", help="in a Slurm job with these options of srun: '--gpus=1 --time=4:00:00'"
    ),
]


class DevContainerFile(Answer):
    """The file's path, empty where it was not written, its text, and the texts of the files beside it."""

    file: str
    text: str
    beside: dict[str, str]


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
    compose: Annotated[
        bool, typer.Option("--compose", help="for Docker Compose, with the GPUs in a second file")
    ] = False,
    srun: Srun = "",
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
    """Write `.devcontainer`, so that VS Code opens a project in the environment."""
    if (host or srun) and (image or show or compose):
        raise UsageError(
            "`--ssh` and `--srun` cannot be combined with `--image`, `--compose` or `--print`",
            hint="leave them out to write a dev container for Docker",
        )
    if host or srun:
        outputs, folder = find_outputs(name, output), (write or SETTINGS.expanduser()).absolute()
        if os.path.lexists(outputs.sif):  # otherwise it is on that host alone
            need_sif(name, output, recipes)
        ssh = SshSession(
            name=outputs.name,
            sif=outputs.sif.absolute(),
            host=host,
            site=find_site(profile),
            folder=folder,
            srun=parse_srun(srun),
        )
        runner = ProcessRunner(session.environment, whole=True)
        config = set_up_session(ssh, runner, force=force)
        session.data = SshHost(config=config, host=ssh.alias)
        session.text = (
            f"{config}: `{pasted('ssh', '-F', config, ssh.alias)}`; with `Include {config}` as the first line of ~/.ssh/config "
            f"VS Code knows `{ssh.alias}`, too"
        )
        return
    recipe = load(find_recipe(name, recipes))
    path = lock_path(recipe)
    facts = EditorFacts(
        python=recipe.python, has_cuda=bool(recipe.cuda), has_user=not recipe.image,
        has_standalone=path.exists() and load_lock(path, recipe=name).interpreter is not None,
    )  # fmt: skip
    mirrors: tuple[str, ...] = ()
    try:
        sources = probe_sources(session.environment, ProcessRunner(session.environment))
        mirrors = sources.ubuntu if recipe.base.startswith(UBUNTU) else sources.debian
    except (UsageError, ToolError) as error:  # the editor's container starts without a mirror
        Console(color=session.color).say(f"warning: {error.message}")
    files = make_files(
        recipe.name, image or image_name(recipe.name), facts, base=recipe.base,
        compose=(write or Path()).absolute().name or "root" if compose else "",
        mirror=shown(mirrors[0]) if mirrors else "",
    )  # fmt: skip
    if not (show or image):
        outputs = find_outputs(recipe.name, output)
        warn_of_missing_image(name, recipe.processor, outputs, recipes, session.environment)
    saved = () if show else save_files(write or Path(), files, force=force)
    text = files.pop(FILE)
    session.data = DevContainerFile(file=str(saved[0]) if saved else "", text=text, beside=files)
    shown_files = "".join(f"\n==> {FOLDER}/{name} <==\n{one}" for name, one in files.items())
    session.is_document = show
    session.text = "\n".join(map(str, saved)) or f"{text}{shown_files}".rstrip()


def parse_srun(text: str) -> tuple[str, ...] | None:
    """Return the options of srun, None for no job; raises UsageError for a word that is no option."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"`--srun` has an open quote: {text}") from error
    if wrong := next((word for word in words if not word.startswith("-")), ""):
        raise UsageError(
            f"`--srun` takes options of srun, found `{wrong}`",
            hint="write an option and its value as one word: `--gpus=1`",
        )
    return words or None
