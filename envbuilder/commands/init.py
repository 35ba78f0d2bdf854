"""`init`: write a first recipe: from questions, from the files of a project, or from an example."""

import functools
import re
import shlex
import shutil
import sys
import tempfile
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from envbuilder.builder.batch import Outcome
from envbuilder.builder.choice import EngineChoice
from envbuilder.commands._build_context import KEPT, build_context
from envbuilder.commands.context import Output, Recipes, Session, command
from envbuilder.compat.check import load_tables
from envbuilder.compat.project_code import describe_layout
from envbuilder.core.answer import Answer
from envbuilder.core.errors import EnvbuilderError, UsageError
from envbuilder.core.plain import need_no_credentials
from envbuilder.core.process import ProcessRunner, Runner
from envbuilder.core.text.redact import plain
from envbuilder.init import WrittenRecipe, make, read_source
from envbuilder.init.examples import copy_example
from envbuilder.init.prompt import ask_missing, offered, take_gpus, take_version
from envbuilder.init.readers.machine import read_machine
from envbuilder.init.readers.project import read_git
from envbuilder.init.requests import Requests
from envbuilder.lock.git import check_out, find_commit
from envbuilder.recipe.load import new_path
from envbuilder.recipe.requirement_file import parse_place


class NewRecipe(Answer):
    """The recipe that was written, with its pins. `reached` is checked, or with `--try` or an example locked or built."""

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
    reached: str


@command(
    "init",
    (
        "envbuilder init mine",
        "envbuilder init --example a100",
        "envbuilder init mine --gpu A100 --pytorch 2.6.0",
        "envbuilder init mine --from . --gpu A100 --try",
        "envbuilder init mine --from environment.yml --gpu A100",
    ),
    NewRecipe,
)
def init(
    session: Session,
    new: Annotated[str, typer.Argument(help="the name of the new recipe", metavar="NAME")] = "",
    *,
    example: Annotated[
        str,
        typer.Option(
            "--example",
            metavar="EXAMPLE",
            help="copy an example such as a100, with its lock and sources; it keeps its name",
        ),
    ] = "",
    projects: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="PROJECT",
            help="a folder, the address of a git repository, requirements.txt, environment.yml, pyproject.toml, setup.py, a Dockerfile or a definition file; may be repeated",
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
    goes_on: Annotated[
        bool, typer.Option("--try", help="go on to `lock` and `build`, and report how far it came")
    ] = False,
    output: Output,
    recipes: Recipes,
) -> None:
    """Write a first recipe: from three questions, from what a project or this machine has, or from an example."""
    if example:
        if new or projects or from_machine or gpus or pytorch or python:
            raise UsageError(
                "`--example` takes neither a name nor pins",
                hint=f"`envbuilder init --example {example}`, then edit the recipe",
            )
        recipe, reached = copy_example(example, recipes), "locked"
        written = WrittenRecipe(path=recipe.path, recipe=recipe, findings=())
        session.text = f"{recipe.path}\n$ envbuilder build {written.typed()}"
        if goes_on:
            reached = _go_on(recipe.path, session, recipes, output)
        session.data = _answer(written, reached)
        return
    if not new:
        raise UsageError(
            "which name has the new recipe?",
            hint="`envbuilder init NAME`, or `envbuilder init --example a100`",
        )
    new_path(new, recipes)
    gathered, tables = Requests(), load_tables()
    runner = ProcessRunner(session.environment)
    if from_machine:
        read_machine(session.environment, runner, gathered)
    for source in projects or ():
        need_no_credentials(source)
        if re.match(r"git\+|\w+://", source):
            _read_repository(source, runner, gathered)
        else:
            read_git(Path(source), runner, gathered)
            read_source(Path(source), gathered)
    if gpus:
        take_gpus(gpus, tables, gathered)
    for key, given in (("pytorch", pytorch), ("python", python)):
        if given:
            take_version(key, given, offered(tables)[key], gathered, f"`--{key}`")
    if sys.stdin.isatty() and sys.stderr.isatty() and not session.as_json:
        ask_missing(gathered, tables, _ask, _report)
    elif gathered.gpus is None:
        raise UsageError(
            "without a terminal, `init` requires `--gpu MODEL`, such as A100, or `--gpu none`",
            hint=f"{shlex.join(('envbuilder', *session.typed))} --gpu MODEL",
        )
    sources = (*(["this machine"] if from_machine else []), *(projects or ()))
    written = make(new, recipes, gathered, sources)
    session.text = "\n".join((written.text(), *describe_layout(written.recipe)))
    session.findings, reached = written.findings, "checked"
    if goes_on:
        reached = _go_on(written.path, session, recipes, output)
    session.data = _answer(written, reached)


def _answer(written: WrittenRecipe, reached: str) -> NewRecipe:
    keys = NewRecipe.model_fields.keys() - {"file", "reached"}
    values = {key: getattr(written.recipe, key) for key in keys}
    return NewRecipe.model_validate({"file": written.path, "reached": reached, **values})


def _go_on(path: Path, session: Session, recipes: Path, output: Path) -> str:
    """Lock and build the recipe. Returns what was reached last; the session gets the reason of a failure."""
    from envbuilder.builder.pipeline import build_recipe, lock_new  # noqa: PLC0415 - all of a build, for `--try` alone

    context = build_context(session, recipes)
    session.kept = KEPT
    lock = functools.partial(lock_new, path, context, today=datetime.now(UTC).date())
    build = functools.partial(
        build_recipe, str(path), context, output=output, offline=False, host=None, choice=EngineChoice()
    )
    reached, lines = "checked", [f"{path}: checked"]
    for name, step in (("locked", lock), ("built", build)):
        try:
            step()
        except EnvbuilderError as error:
            failed = Outcome(name=str(path), seconds=0, error=error)
            session.findings = (*session.findings, *failed.findings())
            session.exit_code = error.exit_code
            lines.append(f"{path}: not {name}, exit code {error.exit_code}")
            break
        reached = name
        lines.append(f"{path}: {name}")
    session.text = "\n".join(lines)
    return reached


def _read_repository(text: str, runner: Runner, requests: Requests) -> None:
    """Read the files of a git repository, and request its extensions by its commit."""
    found = parse_place(text if text.startswith("git+") else f"git+{text}")
    commit = find_commit(found.git, found.revision or "HEAD", runner)
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch).resolve() / found.name
        check_out(found.git, commit, tree, runner)
        read_source(tree / found.path, requests)
        read_git(tree / found.path, runner, requests)
        requests.move(tree, found.git, commit)


def _report(words: str) -> None:
    print(textwrap.fill(plain(words), shutil.get_terminal_size().columns - 1), file=sys.stderr)


def _ask(question: str, default: str) -> str:
    return str(typer.prompt(question, default=default, err=True))
