"""`add` puts packages into a recipe; `Dockerfile.extend` and `apptainer/extend.def` put a project on a built environment."""

import dataclasses
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuilder.artifacts.oci.layout import read_layout
from envbuilder.artifacts.outputs import rejected
from envbuilder.core.cache import save_text
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.lock.model import recipe_inputs
from envbuilder.recipe.load import load
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
PROMISED = 6.0  # seconds of CPU to add a small package


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


PLAIN = """\
# No torch, on the os layer of `cpu`.
base: debian/bookworm
python: "3.11"
gcc: "12"
libxcrypt: "4.4"
pytorch: none

packages:
  - numpy>=2   # for arrays
"""


@pytest.fixture
def recipes(cpu: Built, spacious: Path) -> Path:
    """A folder with the recipe `plain` and its lock, a part of that of `cpu`."""
    folder = spacious / "recipes"
    save_text(folder / "plain.yaml", PLAIN)
    recipe, whole = load(folder / "plain.yaml"), load_lock(ROOT / "recipes/cpu.lock")
    wheels = tuple(wheel for wheel in whole.wheels if wheel.name in ("numpy", "setuptools"))
    lock = dataclasses.replace(
        whole, recipe=recipe.digest, inputs=recipe_inputs(recipe), wheels=wheels, extensions=()
    )
    save_text(folder / "plain.lock", lock_text(lock))
    return folder


@pytest.fixture
def places(recipes: Path) -> Iterator[dict[str, str]]:
    """The wheels of `cpu` on loopback, and a few in a folder."""
    write_wheel(recipes / "wheels", "behind", "1.0", requires=("numpy<2",))
    write_wheel(recipes / "wheels", "small", "1.0", files={"small.py": "ANSWER = 42\n"})
    write_sdist(recipes / "wheels", "sourced", "1.0", own_backend("sourced", "1.0", needs="'setuptools'"))
    with package_index(load_lock(ROOT / "recipes/cpu.lock"), CACHE, Manner()) as host:
        places = dict.fromkeys(("ENVBUILDER_INDEX", "ENVBUILDER_PYTORCH_INDEX"), f"http://{host}/simple/")
        places |= {"ENVBUILDER_FOLDERS": str(recipes / "wheels"), "ENVBUILDER_RECIPES": str(recipes)}
        yield places


@pytest.fixture
def add(recipes: Path, places: dict[str, str]) -> Callable[..., Any]:
    return lambda *words: attempt(ENVBUILDER, "add", *words, "--output", recipes / "out", env=places)


def texts(recipes: Path) -> tuple[str, str]:
    return (recipes / "plain.yaml").read_text(), (recipes / "plain.lock").read_text()


def test_packages_are_written_into_the_recipe_locked_and_built(recipes: Path, add, places: dict[str, str]):
    before = load_lock(recipes / "plain.lock")
    ended = add("plain", "jinja2", "sourced", "numpy>=1.26")
    assert ended.returncode == 0, ended.stderr
    try:
        code = "import numpy, sourced, jinja2; print(jinja2.Template('{{ 6 * 7 }}').render())"
        for form in ("sif", "image"):
            line = (ENVBUILDER, "exec", "plain", "--in", form, "--artifacts", recipes / "out")
            assert run(*line, "--", "python", "-c", code, env=places) == "42\n"
    finally:
        run("docker", "image", "rm", "--force", "envbuilder/plain")
    assert (recipes / "plain.yaml").read_text() == PLAIN.replace(
        "  - numpy>=2   # for arrays\n", "  - numpy>=1.26   # for arrays\n  - jinja2\n  - sourced\n"
    )
    assert f"{recipes}/plain.yaml: ~ numpy>=2 → numpy>=1.26\n" in ended.stdout
    after = load_lock(recipes / "plain.lock")
    new = {wheel.name for wheel in after.wheels} - {wheel.name for wheel in before.wheels}
    assert new == {"jinja2", "markupsafe", "sourced"}
    assert set(before.wheels) < set(after.wheels)
    assert after.debs == before.debs
    again = attempt(ENVBUILDER, "build", "plain", "--output", recipes / "out", "--no-load", env=places)
    assert (again.returncode, "nothing to do" in again.stdout) == (0, True)


@pytest.mark.parametrize(
    ("package", "code", "words"),
    [
        ("torch==2.5.0", 2, "torch is pinned by the key `pytorch`"),
        ("behind", 3, "numpy<2"),
        ("nowhere", 3, "no package index knows `nowhere`"),
    ],
)
def test_what_cannot_be_locked_leaves_recipe_and_lock_as_they_were(recipes: Path, add, package, code, words):
    before = texts(recipes)
    ended = add("plain", "jinja2", package)
    assert (ended.returncode, words in ended.stderr) == (code, True), ended.stderr
    assert texts(recipes) == before


def test_an_interrupted_build_leaves_recipe_and_lock_as_they_were(recipes: Path, places: dict[str, str]):
    before = texts(recipes)
    words = (ENVBUILDER, "add", "plain", "jinja2", "--output", recipes / "out", "--no-load")
    with subprocess.Popen(
        list(map(str, words)), env=os.environ | places, stderr=subprocess.DEVNULL
    ) as process:
        while process.poll() is None and (recipes / "plain.lock").read_text() == before[1]:
            time.sleep(0.01)
        assert "  - jinja2\n" in (recipes / "plain.yaml").read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    assert texts(recipes) == before


def test_one_small_package_more_makes_two_small_layers_and_no_other(cpu: Built, spacious: Path, places: dict[str, str]):  # fmt: skip
    recipes = spacious / "copy"
    shutil.copytree(ROOT / "recipes", recipes)
    words = ("add", "cpu", "small", "--recipes", recipes, "--output", recipes / "out", "--no-load")
    ended = attempt(ENVBUILDER, *words, env=places)
    assert ended.returncode == 0, ended.stderr
    assert "fused" not in ended.stderr.partition("write the SIF")[0]
    below, above = (read_layout(layout).manifest.layers for layout in (cpu.layout, recipes / "out/cpu.oci"))
    new = [layer for layer in above if layer not in below]
    assert len(above) - len(below) == 1
    assert len(new) == 2  # its own, and the one that describes the image
    assert sum(layer.size for layer in new) < 1_000_000
    code = "import small, torch, fused; print(small.ANSWER)"
    assert run("apptainer", "exec", recipes / "out/cpu.sif", "python", "-c", code) == "42\n"

    with (recipes / "cpu.yaml").open("a") as stream:
        stream.write("env: {WHICH: edited}\n")
    run(ENVBUILDER, "lock", "cpu", "--recipes", recipes, env=places)
    read = cost.bytes_read(ENVBUILDER, "build", "cpu", *words[3:], env=places)
    # The SIF is written from the layers, then read to be hashed, and both to be compared. The rest is what tests and audits read.
    # What is copied is read once, and counts twice where the kernel does it for two file systems.
    more = 2 * (cost.counts_of_a_copy(recipes) - 1)
    assert read < (4.9 + more) * (recipes / "out/cpu.sif").stat().st_size


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
    words = ("add", "plain", "seeing", "--output", recipes / "out", "--no-load")
    before = texts(recipes)
    ended = attempt(ENVBUILDER, *words, "--json", env=places)
    assert texts(recipes) == before
    (finding,) = findings(ended)
    assert (ended.returncode, finding["code"], finding["severity"]) == (7, "EB725", "error")
    assert finding["message"] == "`import seeing` fails: nothing in the image has `libGL.so.1`"
    assert finding["hint"] == "add `apt: [libgl1]` to the recipe, then `envbuilder lock`"
    sif = rejected(recipes / "out/plain.sif")
    inside = attempt("apptainer", "exec", sif, "python", "-c", "import seeing")
    assert "ImportError: libGL.so.1: cannot open shared object file" in inside.stderr


@pytest.mark.release
def test_opencv_python_is_refused_with_the_packages_that_it_lacks(recipes: Path):
    words = ("add", "plain", "opencv-python", "--output", recipes / "out", "--no-load")
    ended = attempt(ENVBUILDER, *words, "--json", env={"ENVBUILDER_RECIPES": str(recipes)})
    error = next(finding for finding in findings(ended) if finding["severity"] == "error")
    assert (ended.returncode, error["code"]) == (7, "EB725")
    assert error["message"].startswith("`import cv2` fails: nothing in the image has `libGL.so.1`")
    assert error["hint"].startswith("add `apt: [libgl1, libglib2.0-0")


def compile_library(path: Path, code: str, *options: object) -> None:
    source = path.with_suffix(".c")
    source.write_text(code)
    run("gcc", "-shared", "-fPIC", source, f"-Wl,-soname,{path.name}", *options, "-o", path)


def test_adding_a_package_takes_seconds(recipes: Path, places: dict[str, str]):
    """To lock, install, write and verify, as seconds of CPU where the reference takes 0.1."""
    words = (ENVBUILDER, "add", "plain", "small", "--output", recipes / "out", "--no-load")
    spent = cost.cpu_seconds(*words, env=places)
    assert not run("docker", "images", "--quiet", "envbuilder/plain")
    assert (recipes / "out/plain.sif").is_file()
    assert spent / cost.reference() < 10 * PROMISED * cost.LOADED
