"""`module`: a module file, and commands that run in the SIF."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from envbuilder.commands._console import say_closed
from envbuilder.commands.context import Artifacts, BuiltName, Profile, Session, command
from envbuilder.core.answer import Answer, Reply
from envbuilder.recipe.load import recipes_folder
from envbuilder.run.environment_pins import probe_pins
from envbuilder.run.launch.site import find_site, need_shape
from envbuilder.run.modulefile import VERSION, Module, save_module
from envbuilder.run.named import need_sif


class WrittenModule(Answer):
    """The folder for `module use`, and the commands that the module brings."""

    modulefiles: Path
    commands: tuple[str, ...]


@command("module", "envbuilder module a100 --write modulefiles", "envbuilder module a100 --version 2026.11")
def module(
    session: Session, name: BuiltName, *,
    write: Annotated[Path, typer.Option(metavar="FOLDER", help="the folder of the module")] = Path("modules"),
    version: Annotated[str, typer.Option(help="write the module NAME/VERSION, whose SIF stays when NAME is built again")] = "",
    profile: Profile, artifacts: Artifacts,
) -> Reply[WrittenModule]:  # fmt: skip
    """Write a module file and its commands: after `module load NAME`, `python` and `torchrun` run in the SIF."""
    need_shape("--version", (version,) if version else (), VERSION)
    outputs, site = need_sif(name, artifacts, recipes_folder(session.environment)), find_site(profile)
    sif = outputs.sif.resolve()
    pins = probe_pins(sif)
    stem = outputs.name.removesuffix(f"-{version}") if version else outputs.name
    written = Module(name=stem, sif=sif, torch=pins.torch, cuda=pins.cuda, site=site, version=version)
    files = save_module(written, write.absolute())
    commands = files.parent / "commands" / written.full_name
    say_closed(session, write, files, commands, instead="choose another `--write`")
    say_closed(session, sif, sif, instead="give the path of a SIF in an open folder")
    return Reply(
        data=WrittenModule(modulefiles=files, commands=written.commands),
        text=shlex.join(("module", "use", str(files))) + f" && module load {written.full_name}",
    )
