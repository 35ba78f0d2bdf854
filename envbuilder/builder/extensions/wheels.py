"""Build the wheels of source distributions, or take them from the store.

The store keeps a wheel under what decides its bytes, so an edit of other packages, or another recipe, does not build it again.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from envbuilder.builder.assemble.sandbox import Root
from envbuilder.builder.engine import Job
from envbuilder.builder.extensions import programs
from envbuilder.builder.extensions.cache import answers, wheel_key
from envbuilder.builder.extensions.compiler_errors import explain_failure
from envbuilder.core.beneath import copy_beneath, walk_beneath
from envbuilder.core.budget import LastLines
from envbuilder.core.cache import Store, save_text
from envbuilder.core.errors import BuildError, CommandError
from envbuilder.core.process import Command
from envbuilder.core.processor import X86_64, Processor
from envbuilder.lock.model import Artifact
from envbuilder.plan.model import PythonStep

_WHEEL: Final = re.compile(r"wheel/[A-Za-z0-9_.+!-]+\.whl")


def built_wheels(step: PythonStep, job: Job, root: Callable[[], Root]) -> tuple[Path, ...]:
    """Return the wheels of the step's sdists. `root` gives the trees for a build and is called only before one."""
    return tuple(_built_wheel(sdist, step, job, root) for sdist in step.sdists)


def wheel_commands(step: PythonStep, job: Job, *, root: Root, work: Path) -> Iterator[Command]:
    """Yield the commands for the wheels that the store lacks. `work` stands for the build directory."""
    for sdist in step.sdists:
        if not job.store.holds(_entry(sdist, step, job), whole=True):
            program = programs.wheel_program(step, sdist, job.plan.processor)
            yield program.command(root=root, build_dir=work / "space", argument=work / programs.SPEC)


def stage_sdist(
    step: PythonStep, sdist: Artifact, folder: Path, store: Store, processor: Processor = X86_64
) -> programs.Program:
    """Write the build directory of a wheel, without the program's argument. Returns the program that builds it there."""
    program = programs.wheel_program(step, sdist, processor)
    tools = folder / programs.TOOLS
    tools.mkdir(parents=True)
    # Copies: the project's code may write into this folder, and a link would lead into the store.
    shutil.copyfile(store.artifact(sdist.sha256), folder / sdist.filename)
    for one in step.tools(sdist):
        shutil.copyfile(store.artifact(one.sha256), tools / one.filename)
    return program


def wheel_folders(step: PythonStep, job: Job) -> tuple[Path, ...]:
    """Return the folders in the store of the step's built wheels."""
    return tuple(_entry(sdist, step, job) for sdist in step.sdists)


def _entry(sdist: Artifact, step: PythonStep, job: Job) -> Path:
    return job.store.extension(wheel_key(job.plan, step, sdist).digest)


def _built_wheel(sdist: Artifact, step: PythonStep, job: Job, root: Callable[[], Root]) -> Path:
    store = job.store
    folder = _entry(sdist, step, job)
    with store.lock(f"extension-{folder.name}"):
        if not store.holds(folder, whole=True) and not job.fetch_extension(
            folder, f"{sdist.name} {sdist.version}"
        ):
            trees = root()
            with (
                job.console.step(f"build `{sdist.name} {sdist.version}`"),
                store.workspace() as work,
                store.renewed(folder) as out,
            ):
                space, argument = work / "space", work / programs.SPEC
                program = stage_sdist(step, sdist, space, store, job.plan.processor)
                save_text(argument, program.specification)
                lines = LastLines()
                try:
                    command = program.command(root=trees, build_dir=space, argument=argument)
                    job.runner.run(command, on_line=lines.append)
                except CommandError as failure:
                    failure.hint = "the log has all lines; packages of the distribution that the build misses belong into `apt`"
                    name = f"{sdist.name} {sdist.version}"
                    raise explain_failure(name, lines, failure, kind="source distribution") from failure
                wheel = _wheel_in(space, sdist)
                copy_beneath(space, wheel, out / PurePosixPath(wheel).name)
                job.need_unchanged(trees, sdist.name)
    (found,) = folder.glob("*.whl")
    return found


def _wheel_in(space: Path, sdist: Artifact) -> str:
    """Return the path of the only wheel that a build left. Raises BuildError for another number, or the wheel of another project.

    A file's name becomes a line of a requirements file, so it must be a wheel's name.
    """
    with answers("wheel"):
        names = [
            path.removeprefix("wheel/") for path, _ in walk_beneath(space, "wheel") if _WHEEL.fullmatch(path)
        ]
    try:
        (name,) = names
        project, *_ = parse_wheel_filename(name)
    except (ValueError, InvalidWheelFilename) as error:
        raise BuildError(
            f"the build of `{sdist.name} {sdist.version}` left {names or 'nothing'}, expected one wheel"
        ) from error
    if project != canonicalize_name(sdist.name):
        raise BuildError(
            f"the build of `{sdist.name} {sdist.version}` left the wheel `{name}` of another project"
        )
    return f"wheel/{name}"
