"""The disk space of a build: which layers' files it counts."""

from dataclasses import replace
from pathlib import Path

from envbuilder.builder.job import lower_steps
from envbuilder.builder.upkeep import steps_read
from envbuilder.plan.model import ExtensionsStep, OsStep, Plan, ProgramStep, Step
from tests.support.bases import BASE
from tests.support.plans import CUDA, EXTENSIONS, KINDS, OS, PYTHON, START, make_job, make_plan


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
