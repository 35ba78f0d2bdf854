"""A package without a wheel: both runners build the same one from its source distribution, without a network."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.registries import registry
from tests.support.sdists import make_sdists
from tests.support.stores import write_keys
from tests.support.two_runners import inside, need_the_same, need_the_same_layers
from tests.support.workbench import ENVBUILDER, NO_ENGINE, Built, build, cache_with_toolbox, open_folder, run

pytestmark = pytest.mark.builds
NAME = "sdists"


@pytest.fixture(scope="module")
def recipe() -> Iterator[Path]:
    with open_folder() as folder:
        yield make_sdists(folder)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The settings of a team that shares layers and extensions."""
    folder = tmp_path_factory.mktemp("stores")
    with registry(folder / "registry") as real:
        yield {
            "ENVBUILDER_LAYER_STORE": f"{real.host}/team/layers",
            "ENVBUILDER_EXTENSION_STORE": f"{real.host}/team/extensions",
            "ENVBUILDER_STORE_KEY": str(write_keys(folder)),
        }


@pytest.fixture(scope="module")
def composed(recipe: Path, stores: dict[str, str]) -> Built:
    folder = recipe.parent.parent
    env = NO_ENGINE | stores | {"ENVBUILDER_FOLDERS": str(folder / "files")}
    built = build(str(recipe), folder / "composed", "--runner", "sandbox", env=env)
    return replace(built, name=NAME, recipe=recipe)


def test_a_package_without_a_wheel_is_built_and_found(recipe: Path, composed: Built):
    code = "import old_style, own; print(old_style.ANSWER, own.ANSWER)"
    assert inside(composed, recipe, "python", "-c", code) == "42 42\n"
    assert "pkg:pypi/old-style@1.0" in run(ENVBUILDER, "show", composed.sif, "--sbom")


def test_the_recipes_own_folder_an_archive_and_an_sdist_are_built_as_extensions(
    recipe: Path, composed: Built
):
    code = "import here, far, near; print(here.ANSWER, far.ANSWER, near.ANSWER)"
    assert inside(composed, recipe, "python", "-c", code) == "42 42 42\n"


def test_a_machine_with_an_empty_disk_fetches_the_layers_then_the_extensions(
    recipe: Path, composed: Built, stores: dict[str, str], tmp_path: Path
):
    """First from both stores. Then without the layer of the extensions, from their store alone."""
    cache, public = tmp_path / "cache", Path(stores["ENVBUILDER_STORE_KEY"]).with_suffix(".pub")
    env = NO_ENGINE | stores | {"ENVBUILDER_CACHE": str(cache), "ENVBUILDER_STORE_KEY": str(public)}
    fetched = build(str(recipe), tmp_path / "fetched", "--runner", "sandbox", env=env)
    log = (fetched.output / f"{NAME}.log").read_text()
    assert fetched.digests == composed.digests
    assert "compile `" not in log
    for facts in (cache / "layers").glob("*/layer.json"):
        if json.loads(facts.read_text())["name"] == "extensions":
            shutil.rmtree(facts.parent)
    cache_with_toolbox(cache)
    files = str(recipe.parent.parent / "files")
    alone = env | {"ENVBUILDER_LAYER_STORE": "", "ENVBUILDER_FOLDERS": files}
    again = build(str(recipe), tmp_path / "again", "--runner", "sandbox", env=alone)
    log = (again.output / f"{NAME}.log").read_text()
    assert again.digests == composed.digests
    assert "here: in the store" in log
    assert "compile `" not in log


@pytest.mark.slow
@pytest.mark.usefixtures("composed")
def test_its_programs_give_the_same_layer_in_a_container(recipe: Path, spacious: Path):
    need_the_same_layers(recipe, spacious)


@pytest.mark.release
def test_both_runners_build_the_same(recipe: Path, composed: Built):
    env = {"ENVBUILDER_FOLDERS": str(recipe.parent.parent / "files")}
    baked = build(str(recipe), recipe.parent.parent / "baked", "--runner", "buildkit", env=env)
    need_the_same(composed, replace(baked, name=NAME))
    run("docker", "image", "rm", "--force", f"envbuilder/{NAME}:latest")
