"""`add` and `Dockerfile.extend`: packages and a project of one's own on top of a built environment."""

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuilder.artifacts.oci.layout import read_layout
from envbuilder.core.cache import save_text
from envbuilder.lock.file import load_lock, lock_text
from tests.support import cost
from tests.support.index import Manner, package_index
from tests.support.package_sources import write_wheel
from tests.support.sdists import own_backend, write_sdist
from tests.support.workbench import CACHE, ENVBUILDER, NOBODY, NUMBERS, ROOT, Built, attempt, run

pytestmark = pytest.mark.builds
PROMISED = 4.0  # seconds of CPU to add a small package


@pytest.fixture
def project(spacious: Path) -> Path:
    folder = spacious / "project"
    (folder / "mine").mkdir(parents=True)
    (folder / "mine/__init__.py").write_text("import torch, fused\nANSWER = 42\n")
    (folder / "numbers_agree.py").write_text(NUMBERS)
    return folder


@pytest.fixture
def image(cpu: Built, project: Path) -> Iterator[str]:
    name = "envbuilder-e2e-on-top"
    options = (
        "--file",
        ROOT / "Dockerfile.extend",
        "--network",
        "none",
        "--build-arg",
        f"ENVIRONMENT={cpu.image}",
    )
    run("docker", "build", *options, "--tag", name, project)
    yield name
    run("docker", "image", "rm", "--force", name)


def test_the_dockerfile_adds_a_project(image: str):
    user = ("--user", f"{NOBODY}:{NOBODY}", "--read-only", "--network", "none")
    assert (
        run("docker", "run", "--rm", *user, image, "python", "-c", "import mine; print(mine.ANSWER)")
        == "42\n"
    )
    assert run("docker", "run", "--rm", *user, image, "python", "numbers_agree.py") == "numbers agree\n"


def test_the_dockerfile_adds_a_small_layer(cpu: Built, image: str):
    def layers(name: str) -> list[str]:
        return run("docker", "image", "inspect", "--format", r'{{join .RootFS.Layers "\n"}}', name).split()

    assert layers(image)[: len(layers(cpu.image))] == layers(cpu.image)


@pytest.fixture
def recipes(tiny: Built, spacious: Path) -> Path:
    """A folder with the recipe `tiny` and its lock."""
    folder = spacious / "recipes"
    folder.mkdir()
    for suffix in (".yaml", ".lock"):
        shutil.copy(recipe_of(tiny).with_suffix(suffix), folder)
    return folder


@pytest.fixture
def places(recipes: Path) -> Iterator[dict[str, str]]:
    """The wheels of `cpu` on loopback, and one in a folder that needs an older torch."""
    write_wheel(recipes / "wheels", "behind", "1.0", requires=("torch<2",))
    write_sdist(recipes / "wheels", "sourced", "1.0", own_backend("sourced", "1.0", needs="'setuptools'"))
    with package_index(load_lock(ROOT / "recipes/cpu.lock"), CACHE, Manner()) as host:
        places = dict.fromkeys(("ENVBUILDER_INDEX", "ENVBUILDER_PYTORCH_INDEX"), f"http://{host}/simple/")
        places |= {"ENVBUILDER_FOLDERS": str(recipes / "wheels"), "ENVBUILDER_RECIPES": str(recipes)}
        yield places


@pytest.fixture
def add(recipes: Path, places: dict[str, str]) -> Callable[..., Any]:
    return lambda *words: attempt(ENVBUILDER, "add", *words, "--output", recipes / "out", env=places)


def test_added_packages_are_one_more_layer_on_those_of_the_parent(tiny: Built, recipes: Path, add):
    ended = add("tiny", "jinja2", "sourced", "--as", "tiny-more")
    assert ended.returncode == 0, ended.stderr
    try:
        below, above = (
            read_layout(layout).manifest.layers for layout in (tiny.layout, recipes / "out/tiny-more.oci")
        )
        assert above[: len(below) - 1] == below[:-1]  # the last one describes its image
        assert len(above) == len(below) + 1
        said = "import jinja2; print(jinja2.Template('{{ 6 * 7 }}').render())"
        for form in ("sif", "image"):
            line = (ENVBUILDER, "exec", "tiny-more", "--in", form, "--output", recipes / "out")
            assert run(*line, "--", "python", "-c", said) == "42\n"
    finally:
        run("docker", "image", "rm", "--force", "envbuilder/tiny-more")
    parent, own = (load_lock(recipes / f"{name}.lock") for name in ("tiny", "tiny-more"))
    assert [one.name for one in own.added] == ["jinja2", "sourced"]  # the parent has markupsafe
    assert [one.name for one in own.builds] == ["sourced"]
    assert own == dataclasses.replace(parent, recipe=own.recipe, added=own.added, builds=own.builds)

    numpy = next(one for one in parent.wheels if one.name == "numpy")
    moved = tuple(dataclasses.replace(one, version="9.9") if one is numpy else one for one in parent.wheels)
    save_text(recipes / "tiny.lock", lock_text(dataclasses.replace(parent, wheels=moved)))
    stale = attempt(ENVBUILDER, "build", "tiny-more", "--recipes", recipes)
    assert stale.returncode == 4
    assert f"`tiny` changed: ~ numpy {numpy.version} → 9.9" in stale.stderr
    assert "hint: `envbuilder lock tiny-more`" in stale.stderr


def test_adding_a_package_takes_seconds(tiny: Built, recipes: Path, places: dict[str, str]):
    """To lock, install, write and verify. `docs/how-to/add.md` has the figure, as seconds of CPU where the reference takes 0.1."""
    words = (
        ENVBUILDER,
        "add",
        "tiny",
        "fsspec",
        "--as",
        "tiny-more",
        "--output",
        recipes / "out",
        "--no-load",
    )
    spent = cost.cpu_seconds(*words, env=places)
    assert not run("docker", "images", "--quiet", "envbuilder/tiny-more")
    assert (recipes / "out/tiny-more.sif").is_file()
    assert spent / cost.reference() < 10 * PROMISED * cost.LOADED


@pytest.mark.parametrize(
    ("package", "code", "words"),
    [
        ("torch==2.5.0", 2, "`tiny` keeps its torch 2.13.0"),
        ("behind", 3, "`tiny` keeps its torch and all other packages, and what is added does not fit them"),
        ("numpy<2", 3, "you require numpy<2"),
        ("filelock", 3, "`tiny` has all that `tiny-more` adds: filelock=="),
    ],
)
def test_what_does_not_fit_the_parent_is_refused_and_leaves_no_recipe(
    recipes: Path, add, package, code, words
):
    ended = add("tiny", package, "--as", "tiny-more")
    assert (ended.returncode, words in ended.stderr) == (code, True), ended.stderr
    assert not (recipes / "tiny-more.yaml").exists()


def recipe_of(built: Built) -> Path:
    assert built.recipe
    return built.recipe
