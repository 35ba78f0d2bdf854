"""Build the wheels of source distributions, or take them from the store.

The store keeps a wheel under what decides its bytes, so an edit of other packages, or another recipe, does not build it again.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from envbuilder.build.assemble.sandbox import Root
from envbuilder.build.engine import Job
from envbuilder.build.extensions import programs
from envbuilder.build.extensions.cache import wheel_key
from envbuilder.core.cache import Store
from envbuilder.core.errors import BuildError, CommandError
from envbuilder.core.process import Command
from envbuilder.core.processor import X86_64, Processor
from envbuilder.lock.model import Artifact
from envbuilder.plan.model import PythonStep


def built_wheels(step: PythonStep, job: Job, root: Callable[[], Root]) -> tuple[Path, ...]:
    """Return the wheels of the step's sdists. `root` gives the trees for a build and is called only before one."""
    return tuple(_built_wheel(sdist, step, job, root) for sdist in step.sdists)


def wheel_commands(step: PythonStep, job: Job, *, root: Root, work: Path) -> Iterator[Command]:
    """Yield the commands for the wheels that the store lacks. `work` stands for the build directory."""
    for sdist in step.sdists:
        if not job.store.holds(_entry(sdist, step, job), whole=True):
            yield programs.wheel_program(step, sdist, job.plan.processor).command(root=root, build_dir=work)


def stage_sdist(
    step: PythonStep, sdist: Artifact, folder: Path, store: Store, processor: Processor = X86_64
) -> programs.Program:
    """Write the build directory of a wheel. Returns the program that builds it there."""
    program = programs.wheel_program(step, sdist, processor)
    tools = folder / programs.TOOLS
    tools.mkdir(parents=True)
    # Copies: the project's code may write into this folder, and a link would lead into the store.
    shutil.copyfile(store.artifact(sdist.sha256), folder / sdist.filename)
    for one in step.tools(sdist):
        shutil.copyfile(store.artifact(one.sha256), tools / one.filename)
    (folder / programs.SPEC).write_text(program.specification, encoding="utf-8")
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
                program = stage_sdist(step, sdist, work / "space", store, job.plan.processor)
                try:
                    job.runner.run(program.command(root=trees, build_dir=work / "space"))
                except CommandError as failure:
                    failure.hint = "the log has all lines; packages of the distribution that the build misses belong into `apt`"
                    raise
                (wheel,) = (work / "space/wheel").glob("*.whl")
                if not wheel.resolve().is_relative_to((work / "space").resolve()):
                    raise BuildError(
                        f"the build of `{sdist.name} {sdist.version}` left a link in place of a wheel"
                    )
                shutil.copyfile(wheel, out / wheel.name)
                job.need_unchanged(trees, sdist.name)
    (found,) = folder.glob("*.whl")
    return found
