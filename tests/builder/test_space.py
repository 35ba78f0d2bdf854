"""The disk space of a build: which layers' files it counts, and which downloads go."""

from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.builder.job import lower_steps
from envbuilder.builder.upkeep import steps_read
from envbuilder.plan.model import ExtensionsStep, OsStep, Plan, ProgramStep, Step, WheelStep
from tests.support.bases import BASE
from tests.support.plans import CUDA, EXTENSIONS, KINDS, OS, PYTHON, START, make_job, make_plan
from tests.support.plans import wheel as make_wheel


def names_of(steps: set[Step]) -> set[str]:
    return {KINDS[type(step)] for step in steps}


def counted(folder: Path, plan: Plan, *made: str) -> set[str]:
    """Return the steps whose files count if the layers of these steps, without an extension, are missing."""
    bare = tuple(
        replace(step, extensions=()) if isinstance(step, ExtensionsStep) else step for step in plan.steps
    )
    job = replace(make_job(folder), plan=replace(plan, steps=bare))
    return names_of(steps_read(job, [step for step in bare if KINDS[type(step)] in made]))


def on_image(plan: Plan) -> Plan:
    first = plan.steps[0]
    assert isinstance(first, OsStep)
    return replace(plan, steps=(replace(first, base=BASE, suite=""), *plan.steps[1:]))


def test_a_suites_wheels_are_installed_without_the_files_of_its_packages(tmp_path: Path):
    assert counted(tmp_path, make_plan(), PYTHON) == set()


def test_wheels_on_an_image_are_installed_in_its_files(tmp_path: Path):
    assert counted(tmp_path, on_image(make_plan()), PYTHON) == {OS}


def test_a_toolkit_of_packages_is_installed_in_the_files_of_the_others(tmp_path: Path):
    assert counted(tmp_path, make_plan(), CUDA) == {OS, PYTHON}


def test_extensions_are_joined_in_the_files_of_the_packages(tmp_path: Path):
    assert counted(tmp_path, make_plan(), EXTENSIONS) == counted(tmp_path, make_plan(), START) == {OS}


def test_files_count_for_each_step_that_the_sandbox_reads(tmp_path: Path):
    plan = on_image(make_plan())
    for step in plan.steps:
        if isinstance(step, ProgramStep):
            counts = steps_read(replace(make_job(tmp_path), plan=plan), [step])
            assert set(lower_steps(step, plan)) <= counts


@pytest.mark.parametrize(
    ("tags", "size", "stays"),
    [
        ("cp311-cp311-linux_x86_64", 300, False),
        ("cp37-cp37m-linux_x86_64", 300, False),
        ("cp313-cp313t-linux_x86_64", 300, False),
        ("cp311-cp311-linux_x86_64", 200, True),
        ("cp39-abi3-linux_x86_64", 300, True),  # another Python's layer is made of it too
        ("py3-none-linux_x86_64", 300, True),
        ("py3-none-any", 300, True),
    ],
)
def test_a_large_wheel_of_one_python_goes_once_its_layer_is_there(
    tmp_path: Path, tags: str, size: int, stays: bool
):
    wheel = replace(make_wheel("torch", "2.6.0"), path=f"torch/torch-2.6.0-{tags}.whl", size=size * 10**6)
    step = WheelStep(
        name="package-torch",
        is_torchs=True,
        python="3.11",
        artifacts=(wheel,),
        interpreter="/usr/bin/python3.11",
    )
    plan = make_plan()
    job = make_job(tmp_path, replace(plan, steps=(*plan.steps[:2], step, *plan.steps[2:])))
    kept, tree = job.store.artifact(wheel.sha256), tmp_path / "tree"
    for path in (kept, tree / "opt/file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("content")

    def fail(out: Path, _: Path) -> None:
        raise OSError(out)

    with pytest.raises(OSError, match="entry"):
        job.make_layer(step, fail)
    assert kept.exists()
    job.make_layer(step, lambda out, _: job.pack(step, tree, out))
    assert kept.exists() is stays
