"""Jobs whose plan has one source distribution, in sandboxes with this machine's own programs."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.builder.job import Job
from envbuilder.builder.sandbox.root import Root
from envbuilder.core.cache import Store
from envbuilder.core.console import Console
from envbuilder.core.process import ProcessRunner, Runner
from envbuilder.core.system import Limits
from envbuilder.lock.model import Artifact, Lock, LockedBuild
from tests.support.plans import LOCK, RECIPE, make_plan
from tests.support.sdists import locked, write_sdist

HOST = Root(os=Path("/"))  # this machine's Python and gcc in the place of a distribution's


def make_job(folder: Path, lock: Lock, runner: Runner, *, python: str = "3.11") -> Job:
    (folder / "cache").mkdir(parents=True)
    return Job(
        plan=make_plan(replace(RECIPE, python=python), lock),
        store=Store(folder / "cache"),
        runner=runner,
        console=Console(quiet=True),
        limits=Limits(threads=2, memory=64 << 30, root=True),
    )


def with_sdist(one: Artifact, *tools: Artifact) -> Lock:
    builds = (LockedBuild(name=one.name, wheels=tools),) if tools else ()
    return replace(LOCK, wheels=(*LOCK.wheels, one), builds=builds)


def sdist_job(folder: Path, files: dict[str, str]) -> Job:
    """A job whose only source distribution is in its store."""
    system = Path("/usr/bin/python3")
    if not system.exists() or not shutil.which("gcc", path="/usr/bin"):
        pytest.skip("the distribution has no Python or no gcc")
    python = system.resolve().name.removeprefix("python")
    path = write_sdist(folder / "files", "zlang", "1.0", files)
    one = locked(path, "zlang", "1.0")
    runner = ProcessRunner({"PATH": "/usr/bin:/bin", "HOME": str(folder)})
    job = make_job(folder, with_sdist(one), runner, python=python)
    job.store.add_artifact(one.sha256, path)
    return job
