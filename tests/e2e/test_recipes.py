"""Every recipe by both engines: the same files, and the recipe's own tests in image and SIF.

`mudiff` has `capture`, which the docker engine refuses (EB200, `tests/builder/test_buildkit.py`). It does not build the
environments for Arm either (`test_arm.py`).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.two_engines import need_the_same
from tests.support.workbench import ENVBUILDER, NO_ENGINE, ROOT, build, run

pytestmark = [pytest.mark.builds, pytest.mark.torch, pytest.mark.release]
CAPTURED = "mudiff"
ARM = ("gb200", "gh200")
# They compile for half an hour each, and differ from `a100` in their extension alone.
HEAVY = ("causal_conv1d", "gsplat", "torch_scatter")
NAMES = sorted({path.stem for path in (ROOT / "recipes").glob("*.yaml")} - {CAPTURED, *ARM, *HEAVY})


@pytest.fixture(autouse=True)
def freed() -> Iterator[None]:
    """Remove what a recipe leaves, up to 40 GB, before the next one is built."""
    yield
    for name in (*NAMES, CAPTURED):
        run("docker", "image", "rm", "--force", f"envbuilder/{name}:latest")
    run("docker", "builder", "prune", "--all", "--force")
    run(ENVBUILDER, "cache", "--gc", "layers", "trees")


@pytest.mark.parametrize("name", NAMES)
def test_both_engines_make_the_same_of_every_recipe(name: str, spacious: Path):
    composed = build(name, spacious / "composed", "--engine", "assemble", env=NO_ENGINE)
    baked = build(name, spacious / "baked", "--engine", "docker")
    need_the_same(composed, baked)


def test_a_recipe_with_a_capture_is_built_and_verified(spacious: Path):
    built = build(CAPTURED, spacious, "--engine", "assemble", env=NO_ENGINE)
    assert "the same" in run(ENVBUILDER, "verify", built.name, "--artifacts", built.output)
