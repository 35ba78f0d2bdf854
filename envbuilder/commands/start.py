"""The verb that a project begins with: init."""

import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuilder.commands.context import RECIPES, Json, NoColor, Recipes, Verbose, verb
from envbuilder.core.errors import UsageError

if TYPE_CHECKING:
    from envbuilder.compat.init.requests import Requests

app = typer.Typer()


@app.command()
def init(
    new: Annotated[str, typer.Argument(help="the name of the new recipe", metavar="NAME")],
    *,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="requirements.txt, environment.yml or a Dockerfile; may be repeated",
        ),
    ] = None,
    from_machine: Annotated[
        bool, typer.Option("--from-machine", help="the GPUs, nvcc, gcc, Python and torch of this machine")
    ] = False,
    gpus: Annotated[
        list[str] | None,
        typer.Option("--gpu", metavar="MODEL", help="such as A100, or none; may be repeated"),
    ] = None,
    pytorch: Annotated[str, typer.Option("--pytorch", metavar="VERSION", help="such as 2.6.0")] = "",
    python: Annotated[str, typer.Option("--python", metavar="VERSION", help="such as 3.11")] = "",
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Write a first recipe: from three questions, or from what a project or this machine has."""
    from envbuilder.compat import init as make  # noqa: PLC0415
    from envbuilder.compat.check import load_tables  # noqa: PLC0415
    from envbuilder.compat.init.prompt import ask_missing, offered, take_gpus, take_version  # noqa: PLC0415
    from envbuilder.compat.init.requests import Requests  # noqa: PLC0415
    from envbuilder.compat.tables.toolkit import load_toolkits  # noqa: PLC0415
    from envbuilder.core.process import ProcessRunner  # noqa: PLC0415

    with verb("init", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        make.new_path(new, recipes)
        gathered, tables = Requests(), load_tables(load_toolkits())
        if from_machine:
            from envbuilder.compat.init.readers.machine import read_machine  # noqa: PLC0415

            runner = ProcessRunner(session.environment)
            read_machine(session.environment, runner, gathered)
        for file in files or ():
            make.read_source(file, gathered)
        if gpus:
            take_gpus(gpus, tables, gathered)
        for key, given in (("pytorch", pytorch), ("python", python)):
            if given:
                take_version(key, given, offered(tables)[key], gathered, f"`--{key}`")
        if sys.stdin.isatty() and sys.stderr.isatty() and not as_json:
            ask_missing(gathered, tables, _ask, _tell)
        elif missing := _missing(gathered, has_source=bool(files or from_machine)):
            raise UsageError(
                f"without a terminal to ask at, `init` needs {' and '.join(f'`{flag}`' for flag in missing)}",
                hint=f"envbuilder init {new} {' '.join(missing)}",
            )
        sources = (*(["this machine"] if from_machine else []), *(str(file) for file in files or ()))
        made = make.make(new, recipes, gathered, sources)
        session.data, session.text, session.findings = made.data(), made.text(), made.findings


def _tell(words: str) -> None:
    print(textwrap.fill(words, shutil.get_terminal_size().columns - 1), file=sys.stderr)


def _ask(question: str, default: str) -> str:
    return str(typer.prompt(question, default=default, err=True))


def _missing(gathered: "Requests", *, has_source: bool) -> list[str]:
    flags = ["--gpu MODEL"] if gathered.gpus is None else []
    return flags if has_source or gathered.pins else [*flags, "--pytorch VERSION"]
