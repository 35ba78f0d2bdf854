"""A package without a wheel: both engines build the same one from its source distribution, without a network."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.sdists import make_sdists
from tests.support.two_engines import inside, need_the_same
from tests.support.workbench import ENVBUILDER, NO_ENGINE, Built, build, open_folder, run

pytestmark = pytest.mark.builds
NAME = "sdists"


@pytest.fixture(scope="module")
def recipe() -> Iterator[Path]:
    with open_folder() as folder:
        yield make_sdists(folder)


@pytest.fixture(scope="module")
def composed(recipe: Path) -> Built:
    folder = recipe.parent.parent
    env = NO_ENGINE | {"ENVBUILDER_FOLDERS": str(folder / "files")}
    built = build(str(recipe), folder / "composed", "--engine", "assemble", env=env)
    return replace(built, name=NAME, recipe=recipe)


def test_a_package_without_a_wheel_is_built_and_found(recipe: Path, composed: Built):
    code = "import old_style, own; print(old_style.ANSWER, own.ANSWER)"
    assert inside(composed, recipe, "python", "-c", code) == "42 42\n"
    assert "pkg:pypi/old-style@1.0" in run(ENVBUILDER, "sbom", composed.sif)


def test_the_recipes_own_folder_and_an_archive_are_built_as_extensions(recipe: Path, composed: Built):
    code = "import here, far; print(here.ANSWER, far.ANSWER)"
    assert inside(composed, recipe, "python", "-c", code) == "42 42\n"


@pytest.mark.release
def test_both_engines_build_the_same(recipe: Path, composed: Built):
    """`tests/build/test_wheels.py` runs the programs of both for every change."""
    env = {"ENVBUILDER_FOLDERS": str(recipe.parent.parent / "files")}
    baked = build(str(recipe), recipe.parent.parent / "baked", "--engine", "docker", env=env)
    need_the_same(composed, replace(baked, name=NAME))
    run("docker", "image", "rm", "--force", f"envbuilder/{NAME}:latest")
