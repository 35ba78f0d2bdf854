"""`build`: image and SIF from the lock, of one recipe or of many."""

import functools
from pathlib import Path
from typing import Annotated

import typer

from envbuilder.builder.batch import BuiltRecipe, PlannedRecipe, build_several, choose, need_place
from envbuilder.builder.context import Builder, RunnerChoice, RunnerName
from envbuilder.commands._console import KEPT, build_context, say_closed
from envbuilder.commands.context import (
    Host,
    Load,
    Output,
    Profile,
    Recipes,
    Session,
    command,
    offer,
    recipe_argument,
)
from envbuilder.core.answer import Answer, BareAnswer, Reply
from envbuilder.core.cache import cache_folder
from envbuilder.core.console import Console
from envbuilder.core.errors import UsageError
from envbuilder.core.plain import columns
from envbuilder.core.process import ProcessRunner
from envbuilder.recipe.load import find_recipe
from envbuilder.run.launch.array import ArrayJob, build_words, make_array, submit_array
from envbuilder.run.launch.site import find_slurm_site
from envbuilder.run.launch.start import WrittenScript, show_script


class BuiltRecipes(BareAnswer[tuple[BuiltRecipe, ...]]):
    """One row for each recipe."""


class PlannedRecipes(BareAnswer[tuple[PlannedRecipe, ...]]):
    """The answer of `--dry-run`."""


class PreparedRecipe(Answer):
    """The folder that BuildKit reads, and the command that builds it."""

    name: str
    folder: Path
    command: str


class PreparedRecipes(BareAnswer[tuple[PreparedRecipe]]):
    """The answer of `--prepare`."""


@command(
    "build",
    "envbuilder build a100",
    "envbuilder build a100 cpu --offline",
    "envbuilder build --all --jobs 4",
    "envbuilder build --all --on slurm --profile my-site",
    "envbuilder build a100 --dry-run",
)
def build(
    session: Session,
    names: Annotated[list[str] | None, recipe_argument("recipes, or paths to recipe files")] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="every recipe of the folder")] = False,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", help="build N at a time; a layer that two of them share is built once")
    ] = None,
    where: Annotated[
        str, typer.Option("--on", metavar="slurm", autocompletion=offer("slurm"),
                          help="submit an array job: one task per recipe, on any node")
    ] = "",
    profile: Profile,
    sbatch: Annotated[
        list[str] | None, typer.Option(metavar="OPTION", help="with --on: another option of sbatch, as --sbatch=--mem=16G")
    ] = None,
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="with --on: write the script; start nothing")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="with --on: wait until the job has ended")] = False,
    output: Output,
    offline: Annotated[bool, typer.Option("--offline", help="use what the cache holds, no network")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan and the commands; write nothing")] = False,
    host: Host,
    runner: Annotated[RunnerName | None, typer.Option(help="where steps run; default: sandbox")] = None,
    builder: Annotated[str, typer.Option(metavar="NAME", help="buildkit: the builder of `docker buildx create`")] = "",
    cache_from: Annotated[list[str] | None, typer.Option(metavar="CACHE", help="buildkit: a cache to read")] = None,
    cache_to: Annotated[list[str] | None, typer.Option(metavar="CACHE", help="buildkit: a cache to write")] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache",
                                           help="buildkit: run every stage, without BuildKit's cache")] = False,
    load: Load,
    prepare: Annotated[
        Path | None, typer.Option(metavar="FOLDER",
                                  help="buildkit: write BuildKit's input there and print its command; build nothing")
    ] = None,
    recipes: Recipes,
) -> Reply[BuiltRecipes | PlannedRecipes | PreparedRecipes | WrittenScript | ArrayJob]:  # fmt: skip
    """Build image and SIF from the lock, verify them, and load the image if a Docker engine is running."""
    need_place(where, without=not (sbatch or write or wait))
    chosen = choose(names or (), recipes, every=every, jobs=jobs)
    caches = {"cache_from": tuple(cache_from or ()), "cache_to": tuple(cache_to or ())}
    choice = RunnerChoice(
        runner=runner, load=load, builder=Builder(name=builder, no_cache=no_cache, **caches)
    )
    if where:
        if prepare or choice != RunnerChoice():
            hint = "leave out `--on`, or `--prepare` and the runner's options"
            raise UsageError("`--on` chooses the runner of each recipe", hint=hint)
        files = tuple(find_recipe(name, recipes).absolute() for name in chosen)
        site = find_slurm_site(
            profile, hint="without `--on slurm` this machine builds them", options=sbatch or ()
        )
        words = build_words(output.absolute(), host, offline=offline)
        array = make_array(
            files, words, cache=cache_folder(session.environment).absolute(), folder=Path.cwd(), output=output.absolute(),
            site=site, at_once=jobs or 0,
        )  # fmt: skip
        if not dry_run:
            build_context(session, recipes)  # every task expects the cache
        if dry_run or write:
            return show_script(array, None if dry_run else write, "sbatch")
        programs, say = ProcessRunner(session.environment, whole=True), Console(color=session.color).say
        names = [file.stem for file in files]
        return submit_array(array, names, programs, wait=wait, report=say, width=session.width)
    from envbuilder.builder import pipeline  # noqa: PLC0415 - all of a build, which `--help` does without

    context = build_context(session, recipes, writes=not dry_run, note=KEPT)
    if prepare:
        if len(chosen) > 1:
            hint = "name one; prepare another one in its own folder"
            raise UsageError("`--prepare` takes one recipe", hint=hint)
        line = pipeline.prepare_recipe(chosen[0], context, prepare, offline=offline, choice=choice)
        prepared = PreparedRecipe(name=chosen[0], folder=prepare, command=line)
        return Reply(data=PreparedRecipes((prepared,)), text=line)
    if dry_run:
        plans = tuple(pipeline.explain(name, context, host, choice) for name in chosen)
        return Reply(data=PlannedRecipes(plans), text="\n".join(plan.text() for plan in plans))
    make = functools.partial(pipeline.build_recipe, output=output, offline=offline, host=host, choice=choice)
    if len(chosen) > 1:
        outcomes = build_several(chosen, context, make, jobs=jobs or 1)
        say_closed(session, output, *(outcome.result.outputs.sif for outcome in outcomes if outcome.result))
        return Reply(
            data=BuiltRecipes(tuple(outcome.answer() for outcome in outcomes)),
            text=columns([outcome.row() for outcome in outcomes], session.width),
            findings=tuple(finding for outcome in outcomes for finding in outcome.findings()),
            exit_code=max(outcome.exit_code for outcome in outcomes),
        )
    with context.console.group(f"build {chosen[0]}"):
        result = make(chosen[0], context)
    say_closed(session, output, result.outputs.sif, result.outputs.image)
    return Reply(data=BuiltRecipes((result.answer(),)), text=result.text(), findings=result.findings)
