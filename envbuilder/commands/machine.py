"""Verbs on machines and their logs: detect, diagnose, doctor."""

import functools
import sys
from pathlib import Path
from typing import Annotated

import typer

from envbuilder.commands.context import (
    OUTPUT,
    RECIPES,
    Json,
    NoColor,
    Output,
    Recipes,
    Verbose,
    cache_folder,
    verb,
)
from envbuilder.core.errors import UsageError

app = typer.Typer()


@app.command()
def detect(
    *,
    pasted: Annotated[
        Path | None,
        typer.Option("--from", metavar="PATH", help="saved outputs of one machine: a file or a folder"),
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="write a profile for --host")
    ] = None,
    recipe: Annotated[
        str, typer.Option("--recipe", metavar="NAME", help="judge for the NCCL of this recipe's lock")
    ] = "",
    measure: Annotated[
        bool, typer.Option("--measure", help="test P2P on these GPUs, in the SIF of --recipe")
    ] = False,
    output: Output = OUTPUT,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Say what to tell NCCL on this machine, with a reason for each setting and for each that is left unset."""
    from envbuilder.commands import _detect_versions  # noqa: PLC0415
    from envbuilder.core.process import ProcessRunner  # noqa: PLC0415
    from envbuilder.node import detect as verbs  # noqa: PLC0415
    from envbuilder.node.nccl.report import LINE, as_data, as_text  # noqa: PLC0415

    with verb("detect", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        versions = _detect_versions.recipe_versions(recipe, recipes)
        runner = ProcessRunner(session.environment)
        if pasted and measure:
            raise UsageError(
                "`--measure` is for this machine, and `--from` for another", hint="give one of them"
            )
        measured = _detect_versions.measure_in(recipe, output) if measure else None
        found = (
            verbs.detect_pasted(pasted, versions)
            if pasted
            else verbs.detect_here(session.environment, runner, versions, measured)
        )
        if save:
            found.save(save)
        session.findings = found.findings
        session.data = as_data(found.facts, found.decision)
        own = {} if pasted else session.environment
        session.text = as_text(found.facts, found.decision, own, session.width or LINE)


@app.command()
def diagnose(
    logs: Annotated[
        list[str],
        typer.Argument(
            help="log files, folders of them, dumps of the flight recorder, or `-`", metavar="LOG"
        ),
    ],
    *,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Name the known failure in training, build or kernel logs, the line that shows it, and the repair."""
    from envbuilder.node.diagnose import diagnose as examine  # noqa: PLC0415
    from envbuilder.node.diagnose import findings, report  # noqa: PLC0415

    with verb("diagnose", as_json=as_json, verbose=verbose, no_color=no_color) as session:
        diagnosis = examine(logs, sys.stdin.buffer)
        session.data, session.text = report.data(diagnosis), report.text(diagnosis)
        if as_json:  # the text says the same, and on stdout
            session.findings = findings(diagnosis)


@app.command()
def doctor(
    *,
    purpose: Annotated[
        str, typer.Option("--for", metavar="build|run", help="default: both; in a Slurm cluster `run`")
    ] = "",
    fix: Annotated[
        bool, typer.Option("--fix", help="do the safe repairs and say what was done; installs nothing")
    ] = False,
    output: Output = OUTPUT,
    recipes: Recipes = RECIPES,
    as_json: Json = False,
    verbose: Verbose = 0,
    no_color: NoColor = False,
) -> None:
    """Say what this machine can and cannot do for envbuilder, why it matters, and what repairs it."""
    from envbuilder.commands._recipe_needs import recipe_needs  # noqa: PLC0415
    from envbuilder.core.process import ProcessRunner  # noqa: PLC0415
    from envbuilder.node.doctor import (  # noqa: PLC0415
        Purpose,
        exit_code,
        findings,
        report,
        run_checks,
    )
    from envbuilder.node.doctor.machine import probe_machine  # noqa: PLC0415
    from envbuilder.node.doctor.node import has_slurm  # noqa: PLC0415

    with verb("doctor", as_json=as_json, verbose=verbose, no_color=no_color) as session:
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
        session.data, session.text = report.data(seen), report.text(seen, session.width)
        session.exit_code = exit_code(seen)
        if as_json:  # the text says the same, and on stdout
            session.findings = findings(seen)
