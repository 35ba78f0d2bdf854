"""`init`: write a first recipe, from questions or from the files of a project."""

import shlex
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from envbuilder.commands.context import Recipes, Session, command
from envbuilder.compat.check import load_tables
from envbuilder.compat.init import make, new_path, read_source
from envbuilder.compat.init.prompt import ask_missing, offered, take_gpus, take_version
from envbuilder.compat.init.readers.machine import read_machine
from envbuilder.compat.init.readers.project import read_age
from envbuilder.compat.init.requests import Requests
from envbuilder.core.answer import Answer
from envbuilder.core.errors import UsageError
from envbuilder.core.process import ProcessRunner


class NewRecipe(Answer):
    """The recipe that was written, with its pins."""

    name: str
    file: Path
    base: str
    python: str
    cuda: str
    gcc: str
    libxcrypt: str
    pytorch: str
    gpus: tuple[str, ...]
    packages: tuple[str, ...]
    apt: tuple[str, ...]


@command(
    "init",
    (
        "envbuilder init mine",
        "envbuilder init mine --gpu A100 --pytorch 2.6.0",
        "envbuilder init mine --from . --gpu A100",
        "envbuilder init mine --from environment.yml --gpu A100",
    ),
    NewRecipe,
)
def init(
    session: Session,
    new: Annotated[str, typer.Argument(help="the name of the new recipe", metavar="NAME")],
    *,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="PROJECT",
            help="a folder, requirements.txt, environment.yml, pyproject.toml, setup.py, a Dockerfile or a definition file; may be repeated",
        ),
    ] = None,
    from_machine: Annotated[
        bool, typer.Option("--from-machine", help="the GPUs, nvcc, gcc, Python and torch of this machine")
    ] = False,
    gpus: Annotated[
        list[str] | None,
        typer.Option("--gpu", metavar="MODEL", help="such as A100, or none; may be repeated"),
    ] = None,
    pytorch: Annotated[str, typer.Option(metavar="VERSION", help="such as 2.6.0")] = "",
    python: Annotated[str, typer.Option(metavar="VERSION", help="such as 3.11")] = "",
    recipes: Recipes,
) -> None:
    """Write a first recipe: from three questions, or from what a project or this machine has."""
    new_path(new, recipes)
    gathered, tables = Requests(), load_tables()
    runner = ProcessRunner(session.environment)
    if from_machine:
        read_machine(session.environment, runner, gathered)
    for file in files or ():
        read_source(file, gathered)
        read_age(file, runner, gathered)
    if gpus:
        take_gpus(gpus, tables, gathered)
    for key, given in (("pytorch", pytorch), ("python", python)):
        if given:
            take_version(key, given, offered(tables)[key], gathered, f"`--{key}`")
    if sys.stdin.isatty() and sys.stderr.isatty() and not session.as_json:
        ask_missing(gathered, tables, _ask, _report)
    elif missing := _missing(gathered, has_source=bool(files or from_machine)):
        raise UsageError(
            f"without a terminal to ask at, `init` needs {' and '.join(f'`{flag}`' for flag in missing)}",
            hint=" ".join((shlex.join(("envbuilder", *session.typed)), *missing)),
        )
    sources = (*(["this machine"] if from_machine else []), *(str(file) for file in files or ()))
    written = make(new, recipes, gathered, sources)
    keys = NewRecipe.model_fields.keys() - {"file"}
    values = {key: getattr(written.recipe, key) for key in keys}
    session.data = NewRecipe.model_validate({"file": written.path, **values})
    session.text, session.findings = written.text(), written.findings


def _report(words: str) -> None:
    print(textwrap.fill(words, shutil.get_terminal_size().columns - 1), file=sys.stderr)


def _ask(question: str, default: str) -> str:
    return str(typer.prompt(question, default=default, err=True))


def _missing(gathered: Requests, *, has_source: bool) -> list[str]:
    flags = ["--gpu MODEL"] if gathered.gpus is None else []
    return flags if has_source or gathered.pins else [*flags, "--pytorch VERSION"]
