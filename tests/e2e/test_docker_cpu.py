"""`cpu` by `--engine docker`, whole and after an edit. BuildKit needs six minutes and 6 GB for it.

Every change is held by parts of it: tiny environments by both engines (test_docker_engine.py), the layer of a project with
torch (test_projects.py), and the stage that an edit asks for (tests/builder/test_buildkit.py).
"""

import secrets
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.two_engines import inside, need_the_same
from tests.support.workbench import ENVBUILDER, NO_ENGINE, ROOT, Built, build, run

pytestmark = [pytest.mark.builds, pytest.mark.torch, pytest.mark.release]


def test_both_engines_make_the_same_of_cpu_and_of_an_edit_of_its_extension(spacious: Path):
    """The edit's layer comes out of BuildKit alone: the others are there."""
    recipes = spacious / "recipes"
    shutil.copytree(ROOT / "recipes", recipes)
    name = "engine-cpu"  # other tests have an image of `cpu`'s own name
    for suffix in (".yaml", ".lock"):
        shutil.copyfile(recipes / f"cpu{suffix}", recipes / f"{name}{suffix}")
    recipe = recipes / f"{name}.yaml"

    def by(engine: str) -> Built:
        built = build(
            str(recipe), spacious / engine, "--engine", engine, env=NO_ENGINE if engine == "assemble" else {}
        )
        return replace(built, name=name)

    need_the_same(by("assemble"), by("docker"))
    source = recipes / "fused/fused_bias_act_cpu.cpp"
    changed = f"changed_{secrets.token_hex(8)}"  # the cache may have what an earlier run made
    source.write_text(f'{source.read_text()}extern "C" int {changed}() {{ return 1; }}\n')
    run(ENVBUILDER, "lock", recipe)
    assert "--target edited" in run(
        ENVBUILDER, "build", recipe, "--engine", "docker", "--output", spacious / "docker", "--dry-run"
    )
    baked = by("docker")
    need_the_same(by("assemble"), baked)
    said = inside(baked, recipe, "sh", "-c", "nm -D /opt/envbuilder/extensions/*/fused.so")
    assert f" T {changed}\n" in said
    images = run(
        "docker", "image", "ls", "--quiet", "--filter", f"label=org.opencontainers.image.title={name}"
    )
    run("docker", "image", "rm", "--force", *images.split())
