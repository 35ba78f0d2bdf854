"""Every recipe by both engines: the same files, and the recipe's own tests in image and SIF."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.two_engines import need_the_same
from tests.support.workbench import NO_ENGINE, ROOT, build, run

pytestmark = [pytest.mark.builds, pytest.mark.torch, pytest.mark.release]
NAMES = sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    run("docker", "image", "rm", "--force", f"envbuilder/{request.param}:latest")
    run("docker", "builder", "prune", "--all", "--force")


def test_both_engines_make_the_same_of_every_recipe(name: str, spacious: Path):
    composed = build(name, spacious / "composed", "--engine", "assemble", env=NO_ENGINE)
    baked = build(name, spacious / "baked", "--engine", "docker")
    need_the_same(composed, replace(baked, name=name))
