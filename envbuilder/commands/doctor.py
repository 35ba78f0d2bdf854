"""`doctor`: what this machine can do for envbuilder, and what repairs the rest."""

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from pydantic import Field

from envbuilder.commands.context import (
    OUTPUT,
    RECIPES,
    Answer,
    Json,
    NoColor,
    Output,
    Recipes,
    Verbose,
    cache_folder,
    examples,
    new_app,
    offer,
    open_session,
)
from envbuilder.compat.context import load_tables, make_context
from envbuilder.compat.host_file import HostFacts
from envbuilder.compat.rules.driver import check_driver, check_host_gpus
from envbuilder.compat.tables.toolkit import load_toolkits
from envbuilder.core.errors import EnvbuilderError, UsageError
from envbuilder.core.findings import Severity
from envbuilder.core.process import ProcessRunner
from envbuilder.node.doctor import Purpose, RecipeNeeds, exit_code, findings, report, run_checks
from envbuilder.node.doctor.machine import probe_machine
from envbuilder.node.doctor.node import has_slurm
from envbuilder.recipe.load import list_recipes, load

EXAMPLES: Final = ("envbuilder doctor", "envbuilder doctor --for run")
app = new_app()


class DoctorRow(Answer):
    """One check: what was found, why it matters, what repairs it, and whether `--fix` does."""

    purpose: str = Field(alias="for")  # a keyword of Python
    code: str
    name: str
    state: str
    found: str
    why: str
    repair: str
    fixable: bool


class DoctorReport(Answer):
    """The checks, and what `--fix` repaired."""

    looks: tuple[DoctorRow, ...]
    fixed: tuple[str, ...]


ANSWER: Final = DoctorReport


@app.command(epilog=examples(EXAMPLES))
def doctor(
    *,
    purpose: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="build|run",
            help="default: both; in a Slurm cluster `run`",
            autocompletion=offer(*Purpose),
        ),
    ] = "",
    fix: Annotated[
        bool, typer.Option("--fix", help="make the safe repairs and report them; installs nothing")
    ] = False,
    output: Output = OUTPUT,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Check whether this machine can build and run environments, and say what repairs the rest."""
    with open_session("doctor", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        if purpose not in ("", *Purpose):
            raise UsageError(
                f"`--for` takes `build` or `run`, found `{purpose}`", hint="leave it out for both"
            )
        env, cache = session.environment, cache_folder(session)
        runner = ProcessRunner(env)
        usual = [Purpose.RUN] if has_slurm(env, Path("/")) else list(Purpose)
        seen = run_checks(
            lambda: probe_machine(
                env, runner, cache=cache, output=output, needs=functools.partial(recipe_needs, recipes)
            ),
            [Purpose(purpose)] if purpose else usual,
            fix=fix,
            tell=lambda line: print(line, file=sys.stderr),
        )
        session.data = DoctorReport.model_validate(report.data(seen))
        session.text = report.text(seen, session.width)
        session.exit_code = exit_code(seen)
        if as_json:  # the text says the same, and on stdout
            session.findings = findings(seen)


def recipe_needs(folder: Path, driver: str, gpus: Sequence[str]) -> tuple[RecipeNeeds, ...]:
    """Compare each recipe with CUDA with a driver and GPUs, by the rules of `check --host`.

    A recipe that cannot be read is left out: `check` says what is wrong with it.
    """
    tables = load_tables(load_toolkits())
    host = HostFacts(path=Path("this machine"), driver=driver, gpus=tuple(gpus) or None)
    found = []
    for name in list_recipes(folder):
        try:
            recipe = load(folder / f"{name}.yaml")
        except EnvbuilderError:
            continue
        if not recipe.cuda:
            continue
        context = make_context(recipe, tables, host)
        problems = [*check_driver(context), *check_host_gpus(context)]
        errors = [problem for problem in problems if problem.severity is Severity.ERROR]
        messages = tuple(problem.message for problem in errors or problems)
        found.append(RecipeNeeds(name=name, cuda=recipe.cuda, messages=messages))
    return tuple(found)
