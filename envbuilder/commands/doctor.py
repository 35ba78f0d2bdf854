"""`doctor`: what this machine can do for envbuilder, and what repairs the rest."""

import functools
import sys
from pathlib import Path
from typing import Annotated

import typer

from envbuilder.commands.context import Artifacts, Recipes, Session, command, offer, recipe_argument
from envbuilder.core.answer import Answer, Reply
from envbuilder.core.cache import cache_folder
from envbuilder.core.errors import UsageError
from envbuilder.core.process import ProcessRunner
from envbuilder.core.text.redact import plain
from envbuilder.node.doctor import Purpose, as_text, exit_code, findings, run_checks
from envbuilder.node.doctor.machine import DoctorRow, probe_machine
from envbuilder.node.doctor.node import has_slurm
from envbuilder.run.on_node import check_recipes, recipes_meant


class DoctorRows(Answer):
    """The checks, and what `--fix` repaired."""

    looks: tuple[DoctorRow, ...]
    fixed: tuple[str, ...]


@command("doctor", "envbuilder doctor", "envbuilder doctor a100 --for run")
def doctor(
    session: Session,
    name: Annotated[str, recipe_argument("compare this recipe with the GPUs; default: those that were built")] = "",
    *,
    purpose: Annotated[
        str, typer.Option("--for", metavar="build|run", autocompletion=offer(*Purpose),
                          help="default: both; in a Slurm cluster `run`")
    ] = "",
    fix: Annotated[bool, typer.Option("--fix", help="make the safe repairs and report them; installs nothing")] = False,
    artifacts: Artifacts, recipes: Recipes,
) -> Reply[DoctorRows]:  # fmt: skip
    """Check whether this machine can build and run environments, and say what repairs the rest."""
    if purpose not in ("", *Purpose):
        raise UsageError(f"`--for` takes `build` or `run`, found `{purpose}`", hint="leave it out for both")
    env, cache = session.environment, cache_folder(session.environment)
    runner = ProcessRunner(env)
    usual = [Purpose.RUN] if has_slurm(env, Path("/")) else list(Purpose)
    compared = functools.partial(check_recipes, recipes_meant(name, recipes, artifacts))
    seen = run_checks(
        lambda: probe_machine(env, runner, cache=cache, output=artifacts, recipes=compared),
        [Purpose(purpose)] if purpose else usual,
        fix=fix,
        report=lambda line: print(plain(line), file=sys.stderr),
    )
    rows = tuple(item.row(purpose) for purpose, items in seen.found.items() for item in items)
    return Reply(
        data=DoctorRows(looks=rows, fixed=seen.done),
        text=as_text(seen, session.width),
        findings=findings(seen) if session.as_json else (),  # the text says the same, and on stdout
        exit_code=exit_code(seen),
    )
