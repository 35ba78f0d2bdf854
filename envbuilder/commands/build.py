"""`build`: image and SIF from the lock, of one recipe or of many."""

import functools
import shlex
from pathlib import Path
from typing import Annotated

import typer

from envbuilder.builder.batch import build_several, choose, need_place
from envbuilder.builder.choice import Builder, EngineChoice, EngineName
from envbuilder.builder.result import BuiltRecipe
from envbuilder.commands._build_context import KEPT, build_context
from envbuilder.commands._console import say_closed
from envbuilder.commands.context import (
    Load,
    Output,
    Profile,
    Recipes,
    Session,
    command,
    offer,
    recipe_argument,
)
from envbuilder.core.answer import Answer, BareAnswer
from envbuilder.core.cache import cache_folder
from envbuilder.core.columns import columns
from envbuilder.core.console import Console
from envbuilder.core.errors import UsageError
from envbuilder.core.plain import pasted
from envbuilder.core.process import ProcessRunner
from envbuilder.recipe.load import find_recipe
from envbuilder.run.launch import array as arrays
from envbuilder.run.launch import start


class BuiltRecipes(BareAnswer[tuple[BuiltRecipe, ...]]):
    """One row for each recipe."""


class PlannedRecipe(Answer):
    """The plan of a recipe, and the commands of the layers that the cache lacks."""

    name: str
    plan: str
    commands: tuple[str, ...]


class PlannedRecipes(BareAnswer[tuple[PlannedRecipe, ...]]):
    """The answer of `--dry-run`."""


class PreparedRecipe(Answer):
    """The folder that BuildKit reads, and the command that builds it."""

    name: str
    folder: Path
    command: str


class PreparedRecipes(BareAnswer[tuple[PreparedRecipe]]):
    """The answer of `--prepare`."""


class ArrayScript(Answer):
    """The script of an array job: its path where it was written, and its text."""

    script: str
    text: str


class ArrayJob(Answer):
    """The array job that was submitted; `builds` with `--wait`."""

    job: str
    script: Path
    logs: Path
    builds: tuple[arrays.ArrayBuild, ...] = ()


@command(
    "build",
    (
        "envbuilder build a100",
        "envbuilder build a100 cpu --offline",
        "envbuilder build --all --jobs 4",
        "envbuilder build --all --on slurm --profile my-site",
        "envbuilder build a100 --dry-run",
    ),
    BuiltRecipes | PlannedRecipes | PreparedRecipes | ArrayScript | ArrayJob,
)
def build(
    session: Session,
    names: Annotated[list[str] | None, recipe_argument("recipes, or paths to recipe files")] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="every recipe of the folder")] = False,
    jobs: Annotated[
        int | None,
        typer.Option(metavar="N", help="build N at a time; a layer that two of them share is built once"),
    ] = None,
    where: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="slurm",
            help="submit an array job: one task per recipe, on any node",
            autocompletion=offer("slurm"),
        ),
    ] = "",
    profile: Profile,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="with --on: another option of sbatch, as --sbatch=--mem=16G"),
    ] = None,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="with --on: write the script; start nothing")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="with --on: wait until the job has ended")] = False,
    output: Output,
    offline: Annotated[bool, typer.Option("--offline", help="use what the cache holds, no network")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the plan and the commands; write nothing")
    ] = False,
    host: Annotated[
        Path | None, typer.Option(help="bake in the profile of a site, written there by `detect --save`")
    ] = None,
    engine: Annotated[
        EngineName | None,
        typer.Option(help="assemble, or docker (BuildKit); default: assemble"),
    ] = None,
    builder: Annotated[
        str, typer.Option(metavar="NAME", help="docker engine: the builder of `docker buildx create`")
    ] = "",
    cache_from: Annotated[
        list[str] | None, typer.Option(metavar="CACHE", help="docker engine: a cache to read")
    ] = None,
    cache_to: Annotated[
        list[str] | None, typer.Option(metavar="CACHE", help="docker engine: a cache to write")
    ] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="docker engine: run every stage, without BuildKit's cache")
    ] = False,
    load: Load = True,
    prepare: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="docker engine: write BuildKit's input there and print its command; build nothing",
        ),
    ] = None,
    recipes: Recipes,
) -> None:
    """Build image and SIF from the lock, verify them, and load the image if a Docker engine is running."""
    need_place(where, without=not (sbatch or write or wait))
    chosen = choose(names or (), recipes, every=every, jobs=jobs)
    choice = EngineChoice(
        engine=engine,
        load=load,
        builder=Builder(
            name=builder,
            cache_from=tuple(cache_from or ()),
            cache_to=tuple(cache_to or ()),
            no_cache=no_cache,
        ),
    )
    if where:
        if prepare or choice != EngineChoice():
            hint = "leave out `--on`, or `--prepare` and the engine's options"
            raise UsageError("`--on` chooses the engine of each recipe", hint=hint)
        files = tuple(find_recipe(one, recipes).absolute() for one in chosen)
        array = arrays.make_array(
            files, cache=cache_folder(session.environment), output=output, offline=offline, host=host,
            profile=profile, options=sbatch or (), at_once=jobs or 0,
        )  # fmt: skip
        if not dry_run:
            build_context(session, recipes)  # every task expects the cache
        _build_as_array(session, array, show=dry_run, write=write, wait=wait)
        return
    from envbuilder.builder.pipeline import build_recipe, explain, prepare_recipe  # noqa: PLC0415 - all of a build, which `--help` does without

    context = build_context(session, recipes, writes=not dry_run)
    session.kept = KEPT
    if prepare:
        if len(chosen) > 1:
            raise UsageError(
                "`--prepare` takes one recipe", hint="name one; prepare another one in its own folder"
            )
        session.text = prepare_recipe(chosen[0], context, prepare, offline=offline, choice=choice)
        prepared = PreparedRecipe(name=chosen[0], folder=prepare, command=session.text)
        session.data = PreparedRecipes((prepared,))
        return
    if dry_run:
        planned = []
        for name in chosen:
            plan, commands = explain(name, context, host, choice)
            lines = tuple(map(str, commands))
            planned.append(PlannedRecipe(name=plan.name, plan=plan.canonical(), commands=lines))
        session.data = PlannedRecipes(tuple(planned))
        session.text = "\n".join(
            f"{one.plan}\n" + "\n".join(f"$ {line}" for line in one.commands) for one in planned
        )
        return
    make = functools.partial(build_recipe, output=output, offline=offline, host=host, choice=choice)
    if len(chosen) > 1:
        outcomes = build_several(chosen, context, make, jobs=jobs or 1)
        session.findings = tuple(one for outcome in outcomes for one in outcome.findings())
        session.exit_code = max(one.exit_code for one in outcomes)
        session.data = BuiltRecipes(tuple(outcome.answer() for outcome in outcomes))
        session.text = columns([outcome.row() for outcome in outcomes], session.width)
        say_closed(session, output, *(one.result.outputs.sif for one in outcomes if one.result))
        return
    with context.console.group(f"build {chosen[0]}"):
        result = make(chosen[0], context)
    session.data = BuiltRecipes((result.answer(),))
    session.findings, session.text = result.findings, result.text()
    say_closed(session, output, result.outputs.sif, result.outputs.image)


def _build_as_array(
    session: Session, array: arrays.Array, *, show: bool, write: Path | None, wait: bool
) -> None:
    """Print, write or submit the script of an array job. With `wait`, report how each task ended."""
    script = arrays.make_script(array)
    if show or write:
        path = start.save_script(write, script) if write and not show else None
        session.data = ArrayScript(script=str(path or ""), text=script.text)
        session.is_document = path is None
        session.text = pasted("sbatch", path) if path else script.text.removesuffix("\n")
        return
    runner = ProcessRunner(session.environment, whole=True)
    started = start.submit(script, runner, wait=wait, report=Console(color=session.color).say)
    job = ArrayJob(job=started.number, script=started.script, logs=array.logs)
    session.data = job
    session.text = (
        f"job {started.number}: {len(array.recipes)} builds; script {started.script}\n"
        f"what has ended, with exit code, node and log: cat {shlex.quote(str(array.logs / started.number))}/*.ended"
    )
    if wait:
        builds = arrays.read_results(array, started.number)
        session.exit_code = max(one.exit_code for one in builds)
        session.findings = tuple(one.finding() for one in builds if one.exit_code)
        session.data = job.model_copy(update={"builds": builds})
        session.text = columns([one.row() for one in builds], session.width)
