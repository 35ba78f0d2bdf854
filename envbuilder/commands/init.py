"""`init`: write a first recipe: from questions, from the files of a project, or from an example."""

import shutil
import sys
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from envbuilder.commands._console import KEPT, build_context
from envbuilder.commands.context import Output, Recipes, Session, command
from envbuilder.compat.project_code import describe_layout
from envbuilder.core.answer import Reply
from envbuilder.core.errors import UsageError
from envbuilder.core.process import ProcessRunner
from envbuilder.core.text.redact import plain
from envbuilder.init import NewRecipe, RecipeSources, as_text, as_typed, copy_example, write_recipe


@command(
    "init",
    "envbuilder init mine",
    "envbuilder init --example cpu",
    "envbuilder init mine --gpu A100 --pytorch 2.6.0",
    "envbuilder init mine --from . --gpu A100 --try",
    "envbuilder init mine --from environment.yml --gpu A100",
    "envbuilder init mine --from uv.lock --with dev --gpu A100",
    "envbuilder init mine --from nvcr.io/nvidia/pytorch:25.01-py3 --gpu H100",
    "envbuilder init mine --from-env ~/miniconda3/envs/mine --gpu A100",
)
def init(
    session: Session,
    new: Annotated[str, typer.Argument(help="the name of the new recipe", metavar="NAME")] = "",
    *,
    example: Annotated[
        str, typer.Option("--example", metavar="EXAMPLE",
                          help="copy an example such as a100, with its lock and sources; it keeps its name")
    ] = "",
    projects: Annotated[
        list[str] | None, typer.Option("--from", metavar="PROJECT",
            help="a folder, the address of a git repository, requirements.txt, environment.yml, pyproject.toml, setup.py, "
                 "a lock such as uv.lock, a Dockerfile, a definition file, a shell script, or an image such as "
                 "nvcr.io/nvidia/pytorch:25.01-py3; may be repeated")
    ] = None,
    wanted: Annotated[list[str] | None, typer.Option("--with", metavar="NAME",
        help="a group or an extra beside what a lock installs by itself, or another environment of pixi; may be repeated")] = None,
    meanings: Annotated[list[str] | None, typer.Option("--meaning", metavar="NAME=MEANING",
        help="of a name that PyPI gives another meaning, such as apex: source, wheel, pypi or none; may be repeated")] = None,
    live: Annotated[Path | None, typer.Option("--from-env", metavar="PREFIX",
        help="an environment of pip, uv or conda that is installed: its folder or its Python; nothing of it runs")] = None,
    from_machine: Annotated[
        bool, typer.Option("--from-machine", help="the GPUs, nvcc, gcc, Python and torch of this machine")
    ] = False,
    without_image: Annotated[bool, typer.Option("--without-image",
        help="take the versions of an image, and build on a distribution of its own")] = False,
    gpus: Annotated[list[str] | None, typer.Option("--gpu", metavar="MODEL",
                                                   help="such as A100, or none; may be repeated")] = None,
    pytorch: Annotated[str, typer.Option(metavar="VERSION", help="such as 2.6.0")] = "",
    python: Annotated[str, typer.Option(metavar="VERSION", help="such as 3.11")] = "",
    goes_on: Annotated[bool, typer.Option("--try", help="go on to `lock` and `build`, and report how far it came")] = False,
    output: Output, recipes: Recipes,
) -> Reply[NewRecipe]:  # fmt: skip
    """Write a first recipe: from three questions, from what a project or this machine has, or from an example."""
    if not example:
        sources = RecipeSources(
            projects=tuple(projects or ()), machine=from_machine, gpus=tuple(gpus or ()), wanted=tuple(wanted or ()), live=live,
            is_base=not without_image, meanings=tuple(meanings or ()),
            versions={"pytorch": pytorch, "python": python},
        )  # fmt: skip
        is_asked = sys.stdin.isatty() and sys.stderr.isatty() and not session.as_json
        recipe, findings = write_recipe(
            new, recipes, sources, session.environment, ProcessRunner(session.environment),
            ask=_ask if is_asked else None, report=_report, typed=session.typed,
        )  # fmt: skip
        text, reached = "\n".join((as_text(recipe), *describe_layout(recipe))), "checked"
    else:
        if new or projects or live or wanted or meanings or from_machine or gpus or pytorch or python:
            hint = f"`envbuilder init --example {example}`, then edit the recipe"
            raise UsageError("`--example` takes neither a name nor pins", hint=hint)
        (recipe, is_new), findings, reached = copy_example(example, recipes), (), "locked"
        there = "" if is_new else ": is there already, and nothing was copied"
        text = f"{recipe.path}{there}\n$ envbuilder build {as_typed(recipe)}"
    code = 0
    if goes_on:
        from envbuilder.builder.new_recipe import try_recipe  # noqa: PLC0415 - all of a build, for `--try` alone

        context = build_context(session, recipes, note=KEPT)
        reached, lines, outcome = try_recipe(recipe.path, context, output)
        text, findings, code = "\n".join(lines), (*findings, *outcome.findings()), outcome.exit_code
    return Reply(data=NewRecipe.of(recipe, reached), text=text, findings=findings, exit_code=code)


def _report(words: str) -> None:
    print(textwrap.fill(plain(words), shutil.get_terminal_size().columns - 1), file=sys.stderr)


def _ask(question: str, default: str) -> str:
    return str(typer.prompt(question, default=default, err=True))
