"""Every recipe by both runners, and an edit of `cpu`: the same files, and the recipe's own tests in image and SIF.

`mudiff` has `capture`, which the docker engine refuses (EB200, `tests/builder/test_buildkit.py`). It does not build the
environments for Arm either (`test_arm.py`).
"""

import secrets
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.two_runners import inside, need_the_same
from tests.support.workbench import ENVBUILDER, NO_ENGINE, ROOT, Built, build, run

pytestmark = [pytest.mark.builds, pytest.mark.torch, pytest.mark.release]
CAPTURED = "mudiff"
ARM = ("gb200", "gh200")
# They compile for half an hour each, and differ from `a100` in their extension alone.
HEAVY = ("causal_conv1d", "gsplat", "torch_scatter")
# They differ from `h100` in GPUs or wheels alone. `bench/gallery` builds and compares them.
LIKE_H100 = ("datacenter", "geometry", "language", "rtx", "vision")
NAMES = sorted(
    {path.stem for path in (ROOT / "recipes").glob("*.yaml")} - {CAPTURED, *ARM, *HEAVY, *LIKE_H100}
)


@pytest.fixture(autouse=True)
def freed() -> Iterator[None]:
    """Remove what a recipe leaves, up to 40 GB, before the next one is built."""
    yield
    for name in (*NAMES, CAPTURED):
        run("docker", "image", "rm", "--force", f"envbuilder/{name}:latest")
    run("docker", "builder", "prune", "--all", "--force")
    run(ENVBUILDER, "cache", "--gc", "layers")


@pytest.mark.parametrize("name", NAMES)
def test_both_runners_make_the_same_of_every_recipe(name: str, spacious: Path):
    composed = build(name, spacious / "composed", "--runner", "sandbox", env=NO_ENGINE)
    baked = build(name, spacious / "baked", "--runner", "buildkit")
    need_the_same(composed, baked)


def test_a_recipe_with_a_capture_is_built_and_verified(spacious: Path):
    built = build(CAPTURED, spacious, "--runner", "sandbox", env=NO_ENGINE)
    assert "the same" in run(ENVBUILDER, "verify", built.name, "--artifacts", built.output)


def test_both_runners_make_the_same_of_cpu_and_of_an_edit_of_its_extension(spacious: Path):
    """The edit's layer comes out of BuildKit alone: the others are there.

    Every change is held by parts of it: tiny environments by both runners (test_buildkit.py), the layer of a project with
    torch (test_projects.py), and the stage that an edit asks for (tests/builder/test_buildkit.py).
    """
    recipes = spacious / "recipes"
    shutil.copytree(ROOT / "recipes", recipes)
    name = "engine-cpu"  # other tests have an image of `cpu`'s own name
    for suffix in (".yaml", ".lock"):
        shutil.copyfile(recipes / f"cpu{suffix}", recipes / f"{name}{suffix}")
    recipe = recipes / f"{name}.yaml"

    def by(runner: str) -> Built:
        env = NO_ENGINE if runner == "sandbox" else {}
        built = build(str(recipe), spacious / runner, "--runner", runner, env=env)
        return replace(built, name=name)

    need_the_same(by("sandbox"), by("buildkit"))
    source = recipes / "fused/fused_bias_act_cpu.cpp"
    changed = f"changed_{secrets.token_hex(8)}"  # the cache may have what an earlier run made
    source.write_text(f'{source.read_text()}extern "C" int {changed}() {{ return 1; }}\n')
    run(ENVBUILDER, "lock", recipe)
    baked = by("buildkit")
    need_the_same(by("sandbox"), baked)
    symbols = inside(baked, recipe, "sh", "-c", "nm -D /opt/envbuilder/extensions/*/fused.so")
    assert f" T {changed}\n" in symbols
    title = f"label=org.opencontainers.image.title={name}"
    images = run("docker", "image", "ls", "--quiet", "--filter", title)
    run("docker", "image", "rm", "--force", *images.split())
