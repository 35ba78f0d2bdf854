"""Write source distributions: pure ones and one with a C source, in each form that projects have."""

import gzip
import os
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.builder.job import BuildJob
from envbuilder.builder.sandbox.layer_folders import LayerFolder
from envbuilder.builder.sandbox.root import SandboxRoot
from envbuilder.core.cache import Sha256, save_text, sha256_file
from envbuilder.core.process import ProcessRunner, Runner
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.lock.model import Artifact, Lock, LockedBuild
from envbuilder.lock.resolve.extensions import lock_extensions
from envbuilder.plan.model import Plan, PythonStep
from envbuilder.recipe.load import load
from tests.support import plans
from tests.support.debs import make_tar
from tests.support.package_sources import write_wheel
from tests.support.plans import LOCK, RECIPE, make_plan
from tests.support.tiny import make_tiny
from tests.support.workbench import ROOT, resolve_context

# A backend in the project's own tree, which needs nothing.
BACKEND = """
import base64, hashlib, zipfile

INFO = "{name}-{version}.dist-info/"


def build_wheel(folder, config_settings=None, metadata_directory=None):
    files = {{
        "{module}.py": "ANSWER = 42\\n",
        INFO + "METADATA": "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n{requires}",
        INFO + "WHEEL": "Wheel-Version: 1.0\\nGenerator: own\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }}
    lines = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append("%s,sha256=%s,%d" % (path, digest, len(text)))
    files[INFO + "RECORD"] = "\\n".join([*lines, INFO + "RECORD,,"]) + "\\n"
    wheel = "{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(folder + "/" + wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel
"""
OWN_BACKEND = '[build-system]\nrequires = [{requires}]\nbuild-backend = "backend"\nbackend-path = ["."]\n'
SETUP = "from setuptools import {uses}, setup\nsetup(name='{name}', version='{version}', {more})\n"
COMPILING = """

pure = build_wheel


def build_wheel(folder, config_settings=None, metadata_directory=None):
    import os, subprocess, sysconfig

    wheel = pure(folder)
    include = "-I" + sysconfig.get_path("include")
    command = [os.environ["CC"], "-g", "-shared", "-fPIC", include, os.path.abspath("fast.c"), "-o", "fast.so"]
    subprocess.run(command + os.environ["LDFLAGS"].split(), check=True)
    with zipfile.ZipFile(folder + "/" + wheel, "a") as archive:
        archive.write("fast.so", "fast.so")  # with its time
    return wheel
"""
SOURCE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "fast", "a test", -1, NULL};
PyMODINIT_FUNC PyInit_fast(void) { return PyModule_Create(&module); }
"""

# What a build of a project reads of torch. A real one takes minutes to unpack, and a pure project needs no more.
TORCH = {
    "torch/__init__.py": """
from types import SimpleNamespace
__version__, version, _C = "2.13.0", SimpleNamespace(cuda=None), SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True)
"""
}
EXTENSIONS = """
extensions:
  - {name: here, path: .}
  - {name: far, url: "%s", sha256: %s}
  - {name: near, sdist: near==4.0}
"""


def own_backend(
    name: str, version: str, *, requires: tuple[str, ...] = (), needs: str = ""
) -> dict[str, str]:
    """The files of a project with a backend of its own. `needs` is what its pyproject.toml requires, quoted."""
    lines = "".join(f"Requires-Dist: {name}\\n" for name in requires)
    module = name.replace("-", "_")
    backend = BACKEND.format(name=name, version=version, module=module, requires=lines)
    return {"pyproject.toml": OWN_BACKEND.format(requires=needs), "backend.py": backend}


def setup_only(name: str, version: str, *, requires: tuple[str, ...] = ()) -> dict[str, str]:
    """The files of a project with a setup.py alone, which computes what it requires."""
    module = name.replace("-", "_")
    more = f"py_modules=['{module}'], install_requires=list({requires})"
    return {
        "setup.py": SETUP.format(uses="find_packages", name=name, version=version, more=more),
        f"{module}.py": "ANSWER = 42\n",
    }


def with_source(name: str, version: str) -> dict[str, str]:
    """The files of a project that compiles a C source, with debug information that names its folder."""
    files = own_backend(name, version)
    compiling = COMPILING.format(module=name.replace("-", "_"))
    return files | {"backend.py": files["backend.py"] + compiling, "fast.c": SOURCE}


def write_sdist(
    folder: Path, name: str, version: str, files: Mapping[str, str], suffix: str = ".tar.gz"
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path, top = folder / f"{name}-{version}{suffix}", f"{name}-{version}"
    every = dict(files) | {"PKG-INFO": f"Metadata-Version: 1.0\nName: {name}\nVersion: {version}\n"}
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for file, text in every.items():
                archive.writestr(f"{top}/{file}", text)
        return path
    path.write_bytes(gzip.compress(make_tar((f"{top}/{file}", text, 0o644) for file, text in every.items())))
    return path


def locked(path: Path, name: str, version: str) -> Artifact:
    return Artifact(
        kind="sdist", name=name, version=version, sha256=Sha256(sha256_file(path)), size=path.stat().st_size,
        source="pypi", path=f"{name}/{path.name}",
    )  # fmt: skip


ARM_ROOTS = ("python3.11", "python3.11-dev", "gcc-12", "libc6-dev", "libcrypt1", "usr-is-merged")
# They show that the code of `fast` runs on that processor.
ARM_TESTS = """\
tests:
  - python -c "import fast, numpy, platform; assert platform.machine() == 'aarch64'; print(numpy.ones(3) + 1)"
"""


def make_arm(folder: Path) -> Path:
    """Write a recipe for 64-bit Arm and its lock: numpy, and the package `fast`, which a build compiles. Its source lies in `files`."""
    path, lock = make_tiny(folder / "here", "arm", ("numpy",), roots=ARM_ROOTS, of="gh200")
    sdist = write_sdist(folder / "files", "fast", "1.0", with_source("fast", "1.0"))
    save_text(path, path.read_text() + ARM_TESTS)
    new = replace(lock, recipe=load(path).digest, wheels=(locked(sdist, "fast", "1.0"), *lock.wheels))
    save_text(path.with_suffix(".lock"), lock_text(new))
    return path


def make_sdists(folder: Path) -> Path:
    """Write a recipe and its lock: packages that setuptools and a backend of their own build, and three projects as extensions.

    One lies in the recipe's folder, the others come as an archive and as an sdist.

    The source distributions lie in `files`. The output must lie elsewhere than the recipe, whose folder is a project.
    """
    path, lock = make_tiny(folder / "here", "sdists", ("filelock",))
    wheels = load_lock(ROOT / "recipes/cpu.lock").wheels
    setuptools = next(wheel for wheel in wheels if wheel.name == "setuptools")
    files = folder / "files"
    old = write_sdist(files, "old-style", "1.0", setup_only("old-style", "1.0"))
    zipped = write_sdist(files, "own", "2.0", own_backend("own", "2.0"), ".zip")
    torch = write_wheel(files, "torch", "2.13.0", files=TORCH)
    for file, text in own_backend("here", "1.0").items():
        (path.parent / file).write_text(text)
    write_sdist(files, "near", "4.0", own_backend("near", "4.0"))
    far = write_sdist(folder / "archives", "far", "3.0", own_backend("far", "3.0"))
    save_text(path, path.read_text() + EXTENSIONS % (far.as_uri(), sha256_file(far)))
    recipe = load(path)
    wheels = (
        locked(old, "old-style", "1.0"),
        locked(zipped, "own", "2.0"),
        replace(locked(torch, "torch", "2.13.0"), kind="wheel"),
    )
    new = replace(
        lock,
        recipe=recipe.digest,
        wheels=(*lock.wheels, *wheels),
        builds=(LockedBuild(name="old-style", wheels=(setuptools,)),),
        extensions=lock_extensions(
            recipe, resolve_context(os.environ | {"ENVBUILDER_FOLDERS": str(files)}), old=None
        ),
    )
    save_text(path.with_suffix(".lock"), lock_text(new))
    return path


HOST = SandboxRoot(
    os=LayerFolder(place=Path("/"))
)  # this machine's Python and gcc in the place of a distribution's


def make_job(folder: Path, lock: Lock, runner: Runner, *, python: str = "3.11") -> BuildJob:
    (folder / "cache").mkdir(parents=True)
    return plans.make_job(folder, make_plan(replace(RECIPE, python=python), lock), runner)


def sdist_step(plan: Plan) -> PythonStep:
    """Return the step that installs the plan's source distributions."""
    (step,) = (step for step in plan.environment if step.sdists)
    return step


def with_sdist(one: Artifact, *tools: Artifact) -> Lock:
    builds = (LockedBuild(name=one.name, wheels=tools),) if tools else ()
    return replace(LOCK, wheels=(*LOCK.wheels, one), builds=builds)


def sdist_job(folder: Path, files: dict[str, str]) -> BuildJob:
    """A job whose only source distribution is in its store."""
    system = Path("/usr/bin/python3")
    if not system.exists() or not shutil.which("gcc", path="/usr/bin"):
        pytest.skip("the distribution has no Python or no gcc")
    python = system.resolve().name.removeprefix("python")
    path = write_sdist(folder / "files", "zlang", "1.0", files)
    wheel = locked(path, "zlang", "1.0")
    runner = ProcessRunner({"PATH": "/usr/bin:/bin", "HOME": str(folder)})
    job = make_job(folder, with_sdist(wheel), runner, python=python)
    job.store.add_artifact(wheel.sha256, path)
    return job
