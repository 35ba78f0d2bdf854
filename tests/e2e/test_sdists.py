"""A package without a wheel: both engines build the same one from its source distribution, without a network."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.core.cache import save_text
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.lock.model import LockedBuild
from tests.support.sdists import locked, own_backend, setup_only, write_sdist
from tests.support.tiny import make_tiny
from tests.support.two_engines import inside, need_the_same
from tests.support.workbench import ENVBUILDER, NO_ENGINE, ROOT, Built, build, open_folder, run

pytestmark = pytest.mark.builds
NAME = "sdists"


@pytest.fixture(scope="module")
def recipe() -> Iterator[Path]:
    """An environment with a project that setuptools builds, and one in a zip file with a backend of its own."""
    with open_folder() as folder:
        path, lock = make_tiny(folder, NAME, ("filelock",))
        setuptools = next(
            one for one in load_lock(ROOT / "recipes/cpu.lock").wheels if one.name == "setuptools"
        )
        old = locked(
            write_sdist(folder / "files", "old-style", "1.0", setup_only("old-style", "1.0")),
            "old-style",
            "1.0",
        )
        own = locked(
            write_sdist(folder / "files", "own", "2.0", own_backend("own", "2.0"), ".zip"), "own", "2.0"
        )
        builds = (LockedBuild(name="old-style", wheels=(setuptools,)),)
        save_text(
            path.with_suffix(".lock"),
            lock_text(replace(lock, wheels=(*lock.wheels, old, own), builds=builds)),
        )
        yield path


@pytest.fixture(scope="module")
def composed(recipe: Path) -> Built:
    env = NO_ENGINE | {"ENVBUILDER_FOLDERS": str(recipe.parent / "files")}
    return replace(build(str(recipe), recipe.parent / "composed", "--engine", "assemble", env=env), name=NAME)


def test_a_package_without_a_wheel_is_built_and_found(recipe: Path, composed: Built):
    code = "import old_style, own; print(old_style.ANSWER, own.ANSWER)"
    assert inside(composed, recipe, "python", "-c", code) == "42 42\n"
    assert "pkg:pypi/old-style@1.0" in run(ENVBUILDER, "sbom", composed.sif)


@pytest.mark.release
def test_both_engines_build_the_same(recipe: Path, composed: Built):
    """`tests/build/test_wheels.py` runs the programs of both for every change."""
    env = {"ENVBUILDER_FOLDERS": str(recipe.parent / "files")}
    baked = build(str(recipe), recipe.parent / "baked", "--engine", "docker", env=env)
    need_the_same(composed, replace(baked, name=NAME))
    run("docker", "image", "rm", "--force", f"envbuilder/{NAME}:latest")
