"""`doctor`: what this machine can do for envbuilder, and what repairs the rest."""

import contextlib
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from envbuilder.artifacts.outputs import SIF, find_outputs
from envbuilder.commands.context import Output, Recipes, Session, command, offer, recipe_argument
from envbuilder.compat.context import load_tables, make_context
from envbuilder.compat.host_file import HostFacts
from envbuilder.compat.rules.driver import check_driver, check_host_gpus
from envbuilder.core.answer import Answer
from envbuilder.core.cache import cache_folder
from envbuilder.core.errors import EnvbuilderError, UsageError
from envbuilder.core.findings import Severity
from envbuilder.core.process import ProcessRunner
from envbuilder.core.text.redact import plain
from envbuilder.node.doctor import Purpose, as_text, exit_code, findings, run_checks
from envbuilder.node.doctor.item import Item
from envbuilder.node.doctor.machine import RecipeNeeds, probe_machine
from envbuilder.node.doctor.node import has_slurm
from envbuilder.recipe.load import expand, find_recipe, load
from envbuilder.recipe.model import Recipe


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


@command("doctor", ("envbuilder doctor", "envbuilder doctor a100 --for run"), DoctorReport)
def doctor(
    session: Session,
    name: Annotated[
        str, recipe_argument("compare this recipe with the GPUs; default: those that were built")
    ] = "",
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
    output: Output,
    recipes: Recipes,
) -> None:
    """Check whether this machine can build and run environments, and say what repairs the rest."""
    if purpose not in ("", *Purpose):
        raise UsageError(f"`--for` takes `build` or `run`, found `{purpose}`", hint="leave it out for both")
    env, cache = session.environment, cache_folder(session.environment)
    runner = ProcessRunner(env)
    usual = [Purpose.RUN] if has_slurm(env, Path("/")) else list(Purpose)
    needs = functools.partial(recipe_needs, recipes_meant(name, recipes, output))
    seen = run_checks(
        lambda: probe_machine(env, runner, cache=cache, output=output, needs=needs),
        [Purpose(purpose)] if purpose else usual,
        fix=fix,
        report=lambda line: print(plain(line), file=sys.stderr),
    )
    rows = (_row(purpose, item) for purpose, items in seen.found.items() for item in items)
    session.data = DoctorReport(looks=tuple(rows), fixed=seen.done)
    session.text = as_text(seen, session.width)
    session.exit_code = exit_code(seen)
    if session.as_json:  # the text says the same, and on stdout
        session.findings = findings(seen)


def _row(purpose: Purpose, item: Item) -> DoctorRow:
    return DoctorRow(
        **{"for": purpose.value},
        code=item.subject.code.value,
        name=item.subject.name,
        state=item.state.value,
        found=item.found,
        why=item.subject.why,
        repair=item.repair,
        fixable=item.fix is not None,
    )


def recipes_meant(name: str, folder: Path, output: Path) -> tuple[Recipe, ...]:
    """Return the recipe in the SIF that a name means, else in its file. Without a name, those of all SIFs in the output folder.

    Raises EnvbuilderError for an unknown name, a SIF of others and a recipe with mistakes. Without a name, these are left out.
    """
    if not name:
        recipes = []
        for sif in sorted(output.glob(f"*{SIF}")):
            with contextlib.suppress(EnvbuilderError):
                recipes.append(_recipe_in(sif))
        return tuple(recipes)
    sif = find_outputs(name, output).sif
    if sif.is_file() or name.endswith(SIF):
        return (_recipe_in(sif),)
    return tuple(load(find_recipe(variant, folder)) for variant in expand(name, folder))


def _recipe_in(sif: Path) -> Recipe:
    """Return what decides the GPUs and drivers that a SIF runs on."""
    from envbuilder.run.launch.prepare import probe_pins  # noqa: PLC0415 - `doctor --help` does without zstandard

    pins = probe_pins(sif)
    return Recipe(
        name=sif.stem, path=sif, gpus=pins.gpus, cuda=pins.cuda, pytorch=pins.torch,
        base="", python="", gcc="", libxcrypt="", apt=(), extensions=(), env=(),
    )  # fmt: skip


def recipe_needs(recipes: Sequence[Recipe], driver: str, gpus: Sequence[str]) -> tuple[RecipeNeeds, ...]:
    """Compare each recipe with CUDA with a driver and GPUs, by the rules of `check --host`."""
    tables = load_tables()
    host = HostFacts(path=Path("this machine"), driver=driver, gpus=tuple(gpus) or None)
    needs = []
    for recipe in recipes:
        if not recipe.cuda:
            continue
        context = make_context(recipe, tables, host)
        problems = [*check_driver(context), *check_host_gpus(context)]
        errors = [problem for problem in problems if problem.severity is Severity.ERROR]
        messages = tuple(problem.message for problem in errors or problems)
        needs.append(RecipeNeeds(name=recipe.name, cuda=recipe.cuda, messages=messages))
    return tuple(needs)
