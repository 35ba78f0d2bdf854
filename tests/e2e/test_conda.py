"""An environment with packages of a conda channel: by both runners, without a network, and as an SBOM.

`tests/steps/test_conda.py` and `tests/lock/test_conda_solver.py` hold its parts for every change; `test_rendered.py` both printed texts.
"""

import json
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.core.cache import save_text
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.lock.model import Artifact, recipe_inputs
from envbuilder.recipe.load import load
from tests.support.conda_channel import (
    NAME,
    SOURCE,
    CondaPackage,
    lock_conda,
    make_conda,
    stand_in_python,
    write_channel,
)
from tests.support.serving import served
from tests.support.tiny import edit_tiny, make_tiny
from tests.support.two_runners import inside, need_the_same
from tests.support.workbench import (
    CACHE,
    ENVBUILDER,
    NO_ENGINE,
    ROOT,
    WITHOUT_NETWORK,
    Built,
    attempt,
    build,
    cache_with_artifacts,
    cache_with_toolbox,
    open_folder,
    run,
)

pytestmark = [pytest.mark.builds, pytest.mark.release]


@pytest.fixture(scope="module")
def built() -> Iterator[Built]:
    with open_folder() as folder:
        yield build(str(make_conda(folder)), folder / "built", "--runner", "sandbox", env=NO_ENGINE)


def test_its_programs_run_beside_the_environment(built: Built):
    assert built.recipe
    assert inside(built, built.recipe, "tool") == "hello\n"
    assert inside(built, built.recipe, "app") == "said by /opt/conda-env\n"
    program = "import json, os; print(json.__cached__, os.path.getsize(json.__cached__) > 1000)"
    said = inside(built, built.recipe, "/opt/conda-env/bin/python", "-c", program)
    assert said == "/opt/conda-env/lib/python3.11/json/__pycache__/__init__.cpython-311.pyc True\n"
    found = inside(
        built, built.recipe, "sh", "-c", "command -v python; echo $PATH; echo $LD_LIBRARY_PATH"
    ).split("\n")
    assert found[0] == "/opt/env/bin/python"
    assert found[1].endswith(":/opt/conda-env/bin")
    assert "conda" not in found[2]


def test_its_python_is_the_environments_where_the_path_says_so(built: Built, spacious: Path):
    assert built.recipe
    recipe = spacious / "conda.yaml"
    text = built.recipe.read_text()
    recipe.write_text(text.replace("env: {WHICH: conda}", 'env: {PATH: "/opt/conda-env/bin:$PATH"}'))
    wanted, lock = load(recipe), load_lock(built.recipe.with_suffix(".lock"))
    lock = replace(lock, recipe=wanted.digest, inputs=recipe_inputs(wanted))
    save_text(recipe.with_suffix(".lock"), lock_text(lock))
    ahead = build(str(recipe), spacious / "out", "--runner", "sandbox", env=NO_ENGINE)
    program = "import sys, app; app.main()"
    assert inside(ahead, recipe, "python", "-c", program) == "said by /opt/conda-env\n"
    assert inside(ahead, recipe, "/opt/env/bin/python", "-c", "import sys; print(sys.prefix)") == "/opt/env\n"


def test_both_runners_build_the_same(built: Built, spacious: Path):
    assert built.recipe
    apart = {"ENVBUILDER_CACHE": str(cache_with_artifacts(spacious, built.recipe))}
    options = ("--runner", "buildkit", "--no-load")
    need_the_same(built, build(str(built.recipe), spacious / "baked", *options, env=apart))


def test_it_is_built_without_a_network_from_what_was_vendored(built: Built, spacious: Path):
    run(ENVBUILDER, "cache", "vendor", built.recipe, spacious / "vendored")
    env = NO_ENGINE | {
        "ENVBUILDER_CACHE": str(cache_with_toolbox(spacious / "cache")),
        "ENVBUILDER_FOLDERS": str(spacious / "vendored/files"),
    }
    recipe = str(spacious / "vendored/conda.yaml")
    options = ("--offline", "--runner", "sandbox")
    offline = build(recipe, spacious / "out", *options, env=env, prefix=WITHOUT_NETWORK)
    assert offline.digests == built.digests


def test_lock_solves_from_a_mirror_and_finds_nothing_to_change(built: Built, spacious: Path):
    """The channel's own address does not answer any more."""
    assert built.recipe
    shutil.copy(built.recipe, spacious)
    recipe, mirror = spacious / "conda.yaml", built.recipe.parent.parent / "web" / NAME
    env = {"ENVBUILDER_CONDA_MIRRORS": f"{SOURCE.removeprefix('channel-')}={mirror.as_uri()}"}
    run(ENVBUILDER, "lock", recipe, env=env)
    run(ENVBUILDER, "lock", "--check", recipe, env=env)
    assert load_lock(recipe.with_suffix(".lock")).conda == load_lock(built.recipe.with_suffix(".lock")).conda
    recipe.write_text(recipe.read_text().replace("tool=1", "tool=2"))
    ended = attempt(ENVBUILDER, "lock", "--check", recipe, env=env)
    assert (ended.returncode, "No candidates were found for tool" in ended.stderr) == (3, True), ended.stderr


def test_its_packages_are_in_the_sbom(built: Built):
    sbom = json.loads(run(ENVBUILDER, "show", built.sif, "--sbom"))
    tool = next(package for package in sbom["packages"] if package["name"] == "tool")
    assert tool["sourceInfo"] == f"{SOURCE}: linux-64/tool-1.0-h0_0.conda"
    assert tool["licenseDeclared"] == "MIT"
    (reference,) = tool["externalRefs"]
    assert (
        reference["referenceLocator"]
        == "pkg:conda/tool@1.0?build=h0_0&channel=some-conda-test&subdir=linux-64"
    )


def test_a_script_that_is_not_allowed_ends_the_build(built: Built, spacious: Path):
    assert built.recipe
    recipe = spacious / "conda.yaml"
    recipe.write_text(built.recipe.read_text().replace(", allow_scripts: [hook]", ""))
    wanted, lock = load(recipe), load_lock(built.recipe.with_suffix(".lock"))
    lock = replace(lock, recipe=wanted.digest, inputs=recipe_inputs(wanted))
    save_text(recipe.with_suffix(".lock"), lock_text(lock))
    options = ("--output", spacious / "out", "--runner", "sandbox")
    ended = attempt(ENVBUILDER, "build", recipe, *options, env=NO_ENGINE)
    assert ended.returncode == 6
    assert "`allow_scripts: [hook]`" in ended.stderr


TORCH = (
    "filelock",
    "fsspec",
    "jinja2",
    "markupsafe",
    "mpmath",
    "networkx",
    "sympy",
    "torch",
    "typing-extensions",
)
SHARED = """\
import sys, torch, numpy
print(sys.prefix, torch.__file__, numpy.__file__)
print(torch.from_numpy(numpy.arange(4.0)).sum().item(), torch.ones(2).numpy().sum())
"""
LOADED = """
print(sorted({line.split()[-1] for line in open("/proc/self/maps") if "/libstdc++.so" in line}))
"""


def files_of(artifact: Artifact) -> dict[str, str | bytes]:
    with zipfile.ZipFile(CACHE / "artifacts" / artifact.sha256[:2] / artifact.sha256) as wheel:
        return {
            f"lib/python3.11/site-packages/{name}": wheel.read(name)
            for name in wheel.namelist()
            if not name.endswith("/")
        }


def test_the_python_of_conda_imports_the_recipes_torch_beside_its_own_packages(spacious: Path):
    """PyPI's torch and a compiled package of conda in one Python, whose libstdc++ is conda's though torch is imported first."""
    numpy = next(wheel for wheel in load_lock(ROOT / "recipes/cpu.lock").wheels if wheel.name == "numpy")
    more = 'conda: {channels: ["%s"], packages: [python=3.11, numpy, libstdcxx]}\n'
    with served(spacious / "web") as url:
        path, lock = make_tiny(spacious, "shared", TORCH, more=more % f"{url}{NAME}")
        edit_tiny(path, "env: {WHICH: shared}", 'env: {PATH: "/opt/conda-env/bin:$PATH"}')
        debs = spacious / "debs"
        for deb in lock.debs:
            if deb.name == "libstdc++6":
                run("dpkg-deb", "--extract", CACHE / "artifacts" / deb.sha256[:2] / deb.sha256, debs)
        library = next(debs.rglob("libstdc++.so.6")).resolve().read_bytes()
        lock_conda(path, load_lock(path.with_suffix(".lock")), spacious / "web", (
            CondaPackage(name="numpy", version=numpy.version, files=files_of(numpy), depends=("python 3.11.*",)),
            CondaPackage(name="libstdcxx", files={"lib/libstdc++.so.6": library}),
            stand_in_python(lock.debs),
        ))  # fmt: skip
    built = build(str(path), spacious / "out", "--runner", "sandbox", env=NO_ENGINE)
    packages, library = "lib/python3.11/site-packages", "libstdc++.so.6"
    assert inside(built, path, "python", "-c", SHARED + LOADED).splitlines() == [
        f"/opt/conda-env /opt/env/{packages}/torch/__init__.py /opt/conda-env/{packages}/numpy/__init__.py",
        "6.0 2.0",
        f"['/opt/conda-env/lib/{library}']",
    ]
    by_path = f"import sys; sys.path.append('/opt/env/{packages}'); import torch{LOADED}"
    assert "conda" not in inside(
        built, path, "python", "-S", "-c", by_path
    )  # so that a newer one could not follow
    run(ENVBUILDER, "verify", path, "--artifacts", spacious / "out")


ENVIRONMENT = """\
name: study
channels: [conda-forge, nvidia, pytorch]
dependencies:
  - python=3.11
  - pytorch::pytorch=2.13
  - pytorch-cuda=13.0
  - cudatoolkit
  - libsndfile=1.2
  - numpy<3
  - smina
  - pip
  - pip: [einops]
"""


def test_an_environment_file_with_cuda_goes_through_unedited(spacious: Path):
    """conda's channels give what they alone have, the Python index the rest, Debian its libraries."""
    program = CondaPackage(
        name="smina", files={"bin/smina": "#!/bin/sh\necho docked\n"}, runnable=("bin/smina",)
    )
    write_channel(spacious / "web", [program])
    (spacious / "environment.yml").write_text(ENVIRONMENT)
    mirror = (spacious / "web" / NAME).as_uri()
    env = {
        "ENVBUILDER_CONDA_MIRRORS": " ".join(
            f"{name}={mirror}" for name in ("conda-forge", "nvidia", "pytorch")
        )
    }
    run(
        ENVBUILDER, "init", "study", "--from", "environment.yml", "--gpu", "none", "--recipes", ".", cwd=spacious
    )  # fmt: skip
    recipe = spacious / "study.yaml"
    run(ENVBUILDER, "lock", recipe, env=env)
    study = build(str(recipe), spacious / "built", env=env | NO_ENGINE)
    program = "import einops, numpy, torch; print(torch.__version__)"
    assert inside(study, recipe, "python", "-c", program) == "2.13.0+cpu\n"
    assert inside(study, recipe, "smina") == "docked\n"
    assert "libsndfile1" in {deb.name for deb in load_lock(recipe.with_suffix(".lock")).debs}
