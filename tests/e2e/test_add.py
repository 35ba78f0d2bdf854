"""`add`, `Dockerfile.extend` and `apptainer/extend.def`: packages and a project of one's own on top of a built environment."""

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuilder.artifacts.oci.layout import read_layout
from envbuilder.artifacts.outputs import rejected
from envbuilder.core.cache import save_text
from envbuilder.lock.file import load_lock, lock_text
from tests.support import cost
from tests.support.package_sources import write_wheel
from tests.support.sdists import own_backend, write_sdist
from tests.support.serving import Manner, package_index
from tests.support.workbench import (
    CACHE,
    ENVBUILDER,
    NOBODY,
    NUMBERS,
    ROOT,
    WITH_ZSTD,
    Built,
    as_nobody,
    attempt,
    findings,
    run,
)

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
        "--file", ROOT / "Dockerfile.extend", "--network", "none", "--build-arg", f"ENVIRONMENT={cpu.image}",
    )  # fmt: skip
    run("docker", "build", *options, "--tag", name, project)
    yield name
    run("docker", "image", "rm", "--force", name)


def test_the_dockerfile_adds_a_project(image: str):
    user = ("--user", f"{NOBODY}:{NOBODY}", "--read-only", "--network", "none")
    code = "import mine; print(mine.ANSWER)"
    assert run("docker", "run", "--rm", *user, image, "python", "-c", code) == "42\n"
    assert run("docker", "run", "--rm", *user, image, "python", "numbers_agree.py") == "numbers agree\n"


def test_the_dockerfile_adds_a_small_layer(cpu: Built, image: str):
    def layers(name: str) -> list[str]:
        return run("docker", "image", "inspect", "--format", r'{{join .RootFS.Layers "\n"}}', name).split()

    assert layers(image)[: len(layers(cpu.image))] == layers(cpu.image)


def test_the_definition_file_adds_a_project(tiny: Built, spacious: Path):
    """The environment stays as it was, and what the shell that starts the container exports does not hide the project."""
    project = spacious / "project"
    (project / "src").mkdir(parents=True)
    (project / "plain.py").write_text("import filelock, below\n")
    (project / "src/below.py").write_text("ANSWER = 42\n")
    sif = extend(tiny.sif, project, spacious)
    inside = as_nobody("env", "PYTHONPATH=/nowhere", "apptainer", "run", sif)
    code = "import os, plain; print(plain.below.ANSWER, os.path.isfile(plain.__cached__))"
    assert run(*inside, "python", "-B", "-c", code, cwd=Path("/")) == "42 True\n"
    scripts = ("runscript", "env/10-docker2singularity.sh", "env/90-environment.sh", "env/99-base.sh")
    before, after = (
        run("apptainer", "exec", image, "sha256sum", *(f"/.singularity.d/{name}" for name in scripts))
        for image in (tiny.sif, sif)
    )
    assert before == after


@pytest.mark.release  # it compiles against torch's headers
def test_the_definition_file_compiles_the_extension_of_a_project(cpu: Built, spacious: Path):
    project = spacious / "project"
    (project / "src/mine").mkdir(parents=True)
    (project / "setup.py").write_text(SETUP)
    (project / "times.cpp").write_text(TIMES)
    (project / "src/mine/__init__.py").write_text("import torch\nfrom mine._times import times\n")
    sif = extend(cpu.sif, project, spacious, shell={"CC": "/nowhere/gcc", "CXX": "/nowhere/g++"})
    inside = as_nobody("apptainer", "exec", sif, "python", "-c")
    code = "import torch, mine, fused; print(mine.times(torch.ones(2), 42).tolist())"
    assert run(*inside, code, cwd=Path("/")) == "[42.0, 42.0]\n"


SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    name="mine",
    packages=["mine"],
    package_dir={"": "src"},
    ext_modules=[CppExtension("mine._times", ["times.cpp"])],
    cmdclass={"build_ext": BuildExtension},
)
"""
TIMES = """
#include <torch/extension.h>
torch::Tensor times(torch::Tensor x, double by) { return x * by; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("times", &times); }
"""


def extend(environment: Path, project: Path, folder: Path, *, shell: dict[str, str] | None = None) -> Path:
    """The SIF that `apptainer/extend.def` makes of both."""
    sif = folder / "mine.sif"
    run(
        "apptainer", "build", "--fakeroot", *WITH_ZSTD,
        "--build-arg", f"ENVIRONMENT={environment}", "--build-arg", f"PROJECT={project}",
        sif, ROOT / "apptainer/extend.def",
        env={"APPTAINER_CACHEDIR": str(folder / "cache"), "APPTAINER_TMPDIR": str(folder)} | (shell or {}),
    )  # fmt: skip
    return sif


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
        code = "import jinja2; print(jinja2.Template('{{ 6 * 7 }}').render())"
        for form in ("sif", "image"):
            line = (ENVBUILDER, "exec", "tiny-more", "--in", form, "--artifacts", recipes / "out")
            assert run(*line, "--", "python", "-c", code) == "42\n"
    finally:
        run("docker", "image", "rm", "--force", "envbuilder/tiny-more")
    parent, grown = (load_lock(recipes / f"{name}.lock") for name in ("tiny", "tiny-more"))
    assert [wheel.name for wheel in grown.added] == ["jinja2", "sourced"]  # the parent has markupsafe
    assert [build.name for build in grown.builds] == ["sourced"]
    assert grown == dataclasses.replace(parent, recipe=grown.recipe, added=grown.added, builds=grown.builds)

    numpy = next(wheel for wheel in parent.wheels if wheel.name == "numpy")
    newer = dataclasses.replace(numpy, version="9.9")
    moved = tuple(newer if wheel is numpy else wheel for wheel in parent.wheels)
    save_text(recipes / "tiny.lock", lock_text(dataclasses.replace(parent, wheels=moved)))
    stale = attempt(ENVBUILDER, "build", "tiny-more", "--recipes", recipes)
    assert stale.returncode == 4
    assert f"`tiny` changed: ~ numpy {numpy.version} → 9.9" in stale.stderr
    assert "hint: `envbuilder lock tiny-more`" in stale.stderr


def test_one_small_package_more_compiles_nothing_and_moves_three_small_layers(cpu: Built, spacious: Path):
    """In a recipe's own `packages`, so it is resolved with all others."""
    recipes = spacious / "recipes"
    shutil.copytree(ROOT / "recipes", recipes)
    write_wheel(recipes / "wheels", "small", "1.0", files={"small.py": "ANSWER = 42\n"})
    recipe = recipes / "cpu.yaml"
    save_text(recipe, recipe.read_text().replace("packages:\n", "packages:\n  - small\n", 1))
    with package_index(load_lock(recipe.with_suffix(".lock")), CACHE, Manner()) as host:
        places = dict.fromkeys(("ENVBUILDER_INDEX", "ENVBUILDER_PYTORCH_INDEX"), f"http://{host}/simple/")
        places["ENVBUILDER_FOLDERS"] = str(recipes / "wheels")
        run(ENVBUILDER, "lock", "cpu", "--recipes", recipes, env=places)
        words = ("--recipes", recipes, "--output", recipes / "out", "--no-load")
        ended = attempt(ENVBUILDER, "build", "cpu", *words, env=places)
    assert ended.returncode == 0, ended.stderr
    assert "fused: in the store, compiled for `cpu`" in ended.stderr
    below, above = (read_layout(layout).manifest.layers for layout in (cpu.layout, recipes / "out/cpu.oci"))
    new = [layer for layer in above if layer not in below]
    assert len(above) - len(below) == 1
    assert len(new) <= 3  # its own, that of the extensions, and the one that describes the image
    assert sum(layer.size for layer in new) < 1_000_000
    code = "import small, torch, fused; print(small.ANSWER)"
    assert run("apptainer", "exec", recipes / "out/cpu.sif", "python", "-c", code) == "42\n"


def test_a_wheel_whose_library_nothing_brings_is_refused_and_the_package_named(
    recipes: Path, places: dict[str, str]
):
    """As opencv-python: its module loads a library of the wheel, which needs one of the system."""
    folder = recipes / "seeing"
    folder.mkdir()
    compile_library(folder / "libGL.so.1", "void glFlush(void) {}")
    compile_library(
        folder / "libview-1.so", "void glFlush(void); void view(void) { glFlush(); }", folder / "libGL.so.1"
    )
    module = folder / "seeing.cpython-311-x86_64-linux-gnu.so"
    code = "void view(void); void *PyInit_seeing(void) { view(); return 0; }"
    compile_library(module, code, folder / "libview-1.so", "-Wl,-rpath,$ORIGIN/../seeing.libs")
    write_wheel(
        recipes / "wheels", "seeing", "1.0", tag="cp311-cp311-linux_x86_64",
        files={
            "seeing/__init__.py": "from seeing import seeing\n",
            f"seeing/{module.name}": module.read_bytes(),
            "seeing.libs/libview-1.so": (folder / "libview-1.so").read_bytes(),
        },
    )  # fmt: skip
    words = ("add", "tiny", "seeing", "--as", "tiny-more", "--output", recipes / "out", "--no-load")
    ended = attempt(ENVBUILDER, *words, "--json", env=places)
    (finding,) = findings(ended)
    assert (ended.returncode, finding["code"], finding["severity"]) == (7, "EB725", "error")
    assert finding["message"] == "`import seeing` fails: nothing in the image has `libGL.so.1`"
    assert finding["hint"] == "add `apt: [libgl1]` to the recipe, then `envbuilder lock`"
    sif = rejected(recipes / "out/tiny-more.sif")
    inside = attempt("apptainer", "exec", sif, "python", "-c", "import seeing")
    assert "ImportError: libGL.so.1: cannot open shared object file" in inside.stderr


@pytest.mark.release
def test_opencv_python_is_refused_with_the_packages_that_it_lacks(recipes: Path):
    words = ("add", "tiny", "opencv-python", "--as", "tiny-more", "--output", recipes / "out", "--no-load")
    ended = attempt(ENVBUILDER, *words, "--json", env={"ENVBUILDER_RECIPES": str(recipes)})
    error = next(finding for finding in findings(ended) if finding["severity"] == "error")
    assert (ended.returncode, error["code"]) == (7, "EB725")
    assert error["message"].startswith("`import cv2` fails: nothing in the image has `libGL.so.1`")
    assert error["hint"].startswith("add `apt: [libgl1, libglib2.0-0")


def compile_library(path: Path, code: str, *options: object) -> None:
    source = path.with_suffix(".c")
    source.write_text(code)
    run("gcc", "-shared", "-fPIC", source, f"-Wl,-soname,{path.name}", *options, "-o", path)


def test_adding_a_package_takes_seconds(tiny: Built, recipes: Path, places: dict[str, str]):
    """To lock, install, write and verify. `docs/how-to/add.md` has the figure, as seconds of CPU where the reference takes 0.1."""
    words = (ENVBUILDER, "add", "tiny", "fsspec", "--as", "tiny-more", "--output", recipes / "out", "--no-load")  # fmt: skip
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
