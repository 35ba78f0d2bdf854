"""Build the wheels of source distributions, or take them from the store.

The store keeps a wheel under what decides its bytes, so an edit of other packages, or another recipe, does not build it again.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from envbuilder.builder.extensions.compile import KILLED, MANY, run_compilers, space_mount
from envbuilder.builder.extensions.compiled import answers, drop_unfinished, known_memory
from envbuilder.builder.extensions.compiler_errors import explain_failure
from envbuilder.builder.job import BuildJob, prepare_run, tools
from envbuilder.builder.sandbox.root import SandboxRoot, program_command
from envbuilder.core.beneath import copy_beneath, walk_beneath
from envbuilder.core.budget import LastLines
from envbuilder.core.cache import Sha256, sha256_text
from envbuilder.core.errors import BuildError, CommandError, CompileError
from envbuilder.core.process import Command
from envbuilder.lock.model import Artifact
from envbuilder.plan.model import Plan, PythonStep
from envbuilder.plan.program import Program

_WHEEL: Final = re.compile(r"[A-Za-z0-9_.+!-]+\.whl")


def built_wheels(step: PythonStep, job: BuildJob, root: Callable[[Program], SandboxRoot]) -> tuple[Path, ...]:
    """Return the wheels of the step's sdists. `root` gives the files for a build and is called only before one."""
    parts = zip(step.sdists, step.made_by(job.plan).parts, strict=True)
    return tuple(_built_wheel(sdist, part, job, root) for sdist, part in parts)


def wheel_commands(
    step: PythonStep, job: BuildJob, *, root: Callable[[Program], SandboxRoot], work: Path
) -> Iterator[Command]:
    """Yield the commands for the wheels that the store lacks. `work` stands for their temporary folder."""
    for part in step.made_by(job.plan).parts:
        if not job.store.holds(_entry(part, job), whole=True):
            yield program_command(part, root(part), work, (space_mount(work / "space"),))


def wheel_key(part: Program, plan: Plan) -> Sha256:
    """Return the key of a wheel in the store, by the part of its step's program that builds it."""
    return plan.part_key(part, tools()[1])


def _entry(part: Program, job: BuildJob) -> Path:
    return job.store.extension(wheel_key(part, job.plan))


def _built_wheel(
    sdist: Artifact, part: Program, job: BuildJob, root: Callable[[Program], SandboxRoot]
) -> Path:
    store, title = job.store, f"{sdist.name} {sdist.version}"
    folder = _entry(part, job)
    build_key = sha256_text(json.dumps([folder.name, job.origin]))

    def explain(lines: LastLines, failure: CommandError) -> CompileError:
        failure.hint = (
            "the log has all lines; packages of the distribution that the build misses belong into `apt`"
        )
        error = explain_failure(title, lines, failure, kind="source distribution")
        if any(finding.code == KILLED for finding in error.findings):
            error.hint = "name a version that has a wheel, or build on a machine with more memory"
            error.findings = tuple(replace(finding, hint=error.hint) for finding in error.findings)
        return error

    with store.lock(f"extension-{folder.name}"):
        if not store.holds(folder, whole=True) and not job.fetch_extension(folder, title):
            ground = root(part)
            with (
                job.slots.take(MANY, known_memory(sdist, job.origin, store)) as jobs,
                job.console.step(f"build `{title}`"), store.workspace() as work, store.renewed(folder) as out,
                store.build_directory(build_key, drop_unfinished) as space,
            ):  # fmt: skip
                prepare_run(part, work, store)
                command = program_command(part, ground, work, (space_mount(space),))
                run_compilers(command, work, job, explain, of=sdist, name=title, jobs=jobs)
                name = _wheel_in(work, sdist)
                copy_beneath(work, f"out/{name}", out / name)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _wheel_in(work: Path, sdist: Artifact) -> str:
    """Return the name of the only wheel that a build left. Raises BuildError for another number, or the wheel of another project.

    It becomes a line of a requirements file, so it must be a wheel's name.
    """
    with answers("wheel"):
        names = [path.removeprefix("out/") for path, _ in walk_beneath(work, "out")]
    title = f"the build of `{sdist.name} {sdist.version}`"
    try:
        (name,) = filter(_WHEEL.fullmatch, names)
        project, *_ = parse_wheel_filename(name)
    except (ValueError, InvalidWheelFilename) as error:
        raise BuildError(f"{title} left {names or 'nothing'}, expected one wheel") from error
    if project != canonicalize_name(sdist.name):
        raise BuildError(f"{title} left the wheel `{name}` of another project")
    return name
