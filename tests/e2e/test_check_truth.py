"""What `check` refuses is refused by the real compilers and wheels too, with the very words that the findings quote.

The compiler and the wheel are those of the a100 recipe, taken out of its SIF; Debian 13's compiler and Debian 11's headers
are fetched as a lock would fetch them, by hash. Each refusal stands beside the nearest thing that works.
"""

import functools
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import uv

from envbuilder.compat.check import examine, load_tables
from envbuilder.compat.tables.distribution import load_distributions
from envbuilder.core.cache import Store
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.apt import Suite
from envbuilder.lock.resolve.context import LockOptions, ResolveContext, Target, Task
from envbuilder.lock.resolve.debs import open_release
from envbuilder.recipe.load import load
from envbuilder.recipe.model import Extension, Recipe
from envbuilder.sources.fetch.source_client import Index
from tests.support.locks import make_recipe
from tests.support.workbench import (
    CACHE,
    ROOT,
    Built,
    Ended,
    attempt,
    locked_artifacts,
    open_folder,
    resolve_context,
    run,
)

pytestmark = pytest.mark.builds

KERNEL = "#include <cuda_runtime.h>\n__global__ void nothing() {}\n"
SITE = "opt/env/lib/python3.11/site-packages"
# Of g++-14's closure, what only debuggers and sanitizers need.
UNWANTED = ("san", "gprofng", "libcc1", "rpcsvc", "libc-dev-bin")

Inside = Callable[..., Ended]


def refused(**change: object) -> set[str]:
    """The codes that `check` gives the a100 recipe with these changes."""
    recipe: Recipe = replace(load(ROOT / "recipes/a100.yaml"), **change)  # type: ignore[arg-type]
    return {finding.code for finding in examine(recipe, load_tables()).findings}


def extension(**flags: tuple[str, ...]) -> tuple[Extension, ...]:
    return (Extension(name="mine", sources=("mine.cu",), **flags),)


@pytest.fixture(scope="module")
def work() -> Iterator[Path]:
    with open_folder() as folder:
        (folder / "kernel.cu").write_text(KERNEL)
        (folder / "torch.cpp").write_text("#include <torch/extension.h>\n")
        (folder / "python.c").write_text("#include <Python.h>\n")
        yield folder


@pytest.fixture(scope="module")
def inside(a100: Built, work: Path) -> Inside:
    """Runs a command in the a100 recipe's SIF."""
    bind = ("--no-home", "--bind", f"{work}:/work", "--pwd", "/work")
    return functools.partial(attempt, "apptainer", "exec", *bind, a100.sif, cwd=Path("/"))


@pytest.fixture(scope="module")
def means() -> ResolveContext:
    return resolve_context()


def unpack(debs: tuple[Artifact, ...], folder: Path, means: ResolveContext) -> None:
    means.fetcher.fetch(debs)
    for deb in debs:
        run("dpkg-deb", "-x", means.store.artifact(deb.sha256), folder)


def suite(name: str, means: ResolveContext) -> Suite:
    row = load_distributions().by_name[f"debian/{name}"]
    target = Target(distribution=row, torch=None)
    options = LockOptions(today=date(2026, 1, 1))
    return open_release(Task(recipe=make_recipe(Path()), target=target, options=options, context=means), row)


@pytest.fixture(scope="module")
def trixie(inside: Inside, work: Path, means: ResolveContext) -> Inside:
    """Runs a command in Debian 13's compiler and C library, with the a100 recipe's toolkit."""
    root = work / "trixie"
    for name in ("bin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for name in ("dev", "tmp"):
        (root / name).mkdir()
    debs = suite("trixie", means).closure(("g++-14",)) + suite("trixie", means).packages(("dash",))
    unpack(tuple(deb for deb in debs if not any(word in deb.name for word in UNWANTED)), root, means)
    wanted = ("usr/local/cuda-12.4", f"{SITE}/nvidia/cuda_runtime/include")
    ended = inside("tar", "-C", "/", "-cf", "/work/toolkit.tar", *wanted)
    assert ended.returncode == 0, ended.stderr
    run("tar", "-C", root, "-xf", work / "toolkit.tar")
    shutil.copy(work / "kernel.cu", root / "kernel.cu")
    if not (root / "bin/sh").exists():  # nvcc starts its parts through it
        (root / "bin/sh").symlink_to("dash")
    sandbox = (
        "bwrap", "--unshare-all", "--ro-bind", root, "/", "--dev", "/dev", "--tmpfs", "/tmp",
        "--chdir", "/tmp",
    )  # fmt: skip
    nvcc = (
        "--setenv", "PATH", "/usr/bin", "/usr/local/cuda-12.4/bin/nvcc", "-ccbin", "g++-14", "-arch=sm_80",
        "-c",
    )  # fmt: skip
    return functools.partial(attempt, *sandbox, *nvcc, "/kernel.cu", "-o", "/tmp/kernel.o")


def test_nvcc_and_what_it_knows_work(inside: Inside):
    ended = inside("nvcc", "-arch=sm_80", "-std=c++20", "-c", "kernel.cu", "-o", "kernel.o")
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(("gpu", "target"), [("B200", "sm_100"), ("RTX 5090", "sm_120")])
def test_nvcc_12_4_does_not_compile_for_blackwell(inside: Inside, gpu: str, target: str):
    ended = inside("nvcc", f"-arch={target}", "-c", "kernel.cu", "-o", "kernel.o")
    assert f"Value '{target}' is not defined" in ended.stdout + ended.stderr
    assert "EB319" in refused(gpus=(gpu,))


def test_nvcc_12_4_does_not_know_cxx_23(inside: Inside):
    ended = inside("nvcc", "-std=c++23", "-c", "kernel.cu", "-o", "kernel.o")
    assert "Value 'c++23' is not defined" in ended.stdout + ended.stderr
    assert refused(extensions=extension(cuda_cflags=("-std=c++23",))) == {"EB322"}
    assert refused(extensions=extension(cuda_cflags=("-std=c++20",))) == set()


def test_nvcc_12_4_refuses_gcc_14(trixie: Inside):
    ended = trixie()
    refusal = "unsupported GNU version! gcc versions later than 13 are not supported"
    assert refusal in ended.stdout + ended.stderr
    assert "EB315" in refused(base="debian/trixie", python="3.13", gcc="14")
    assert "EB315" not in refused(base="debian/trixie", python="3.13", gcc="13")


def test_the_headers_of_cuda_12_4_clash_with_glibc_2_41(trixie: Inside):
    ended = trixie("-allow-unsupported-compiler")
    said = ended.stdout + ended.stderr
    assert 'exception specification is incompatible with that of previous function "cospi"' in said
    assert refused(base="debian/trixie", python="3.13", gcc="13") == {"EB318"}


def test_torch_2_6_holds_no_code_for_blackwell(inside: Inside):
    held = inside("python", "-c", "import torch; print(torch._C._cuda_getArchFlags())").stdout.split()
    (row,) = (row for row in load_tables().torches.rows if row.version == "2.6.0")
    assert held == [f"sm_{name.replace('.', '')}" for name in row.build.architectures]
    assert "EB320" in refused(gpus=("RTX 5090",))


def test_the_headers_of_torch_2_6_need_cxx_17(inside: Inside):
    torch = f"/{SITE}/torch/include"
    include = (f"-I{torch}", f"-I{torch}/torch/csrc/api/include", "-I/usr/include/python3.11")
    ended = inside("g++", "-std=c++14", "-fsyntax-only", "-fmax-errors=1", *include, "torch.cpp")
    assert "C++17 or later compatible compiler is required" in ended.stderr
    assert refused(extensions=extension(cflags=("-std=c++14",))) == {"EB324"}


@pytest.mark.parametrize(("python", "is_there"), [("3.11", True), ("3.10", False)])
def test_a_wheel_is_for_one_python(a100: Built, work: Path, python: str, *, is_there: bool):
    (numpy,) = (artifact for artifact in locked_artifacts("a100") if artifact.name == "numpy")
    links = work / "links" / python
    links.mkdir(parents=True)
    (links / numpy.filename).symlink_to(Store(CACHE).artifact(numpy.sha256))
    ended = attempt(
        uv.find_uv_bin(), "pip", "install", "--dry-run", "--no-deps", "--no-index", "--find-links", links,
        "--target", work / "none", "--python-version", python, "--no-config", "--cache-dir", work / "uv", f"numpy=={numpy.version}",
    )  # fmt: skip
    assert (ended.returncode == 0) == is_there, ended.stderr
    if not is_there:
        assert "no wheels with a matching Python" in " ".join(ended.stderr.split())


@pytest.fixture(scope="module")
def torch_1_13(means: ResolveContext) -> str:
    """The line of torch 1.13.1's cpp_extension that imports setuptools' vendored packages, out of the wheel on the index."""
    index = Index(means.sources())
    (listed,) = (
        file
        for file in index.files("torch")
        if re.fullmatch(r"torch-1\.13\.1-cp311-.*x86_64\.whl", file.filename)
    )
    with index.open(listed) as wheel:
        source = wheel.read("torch/utils/cpp_extension.py").decode()
    (line,) = re.findall(r"^from pkg_resources import .*$", source, re.MULTILINE)
    return line


@pytest.mark.parametrize(
    ("version", "works"), [("69.5.1", True), ("70.0.0", False), ("71.0.0", True), ("82.0.0", False)]
)
def test_torch_1_13_imports_what_some_setuptools_lack(
    torch_1_13: str, work: Path, version: str, *, works: bool
):
    folder = work / f"setuptools-{version}"
    run(
        uv.find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--target", folder,
        f"setuptools=={version}",
    )  # fmt: skip
    # Without site-packages: a virtual environment of Debian's brings a setuptools of its own.
    command = (sys.executable, "-S", "-W", "ignore", "-c", torch_1_13)
    ended = attempt(*command, env={"PYTHONPATH": str(folder)})
    assert (ended.returncode == 0) == works, ended.stderr
    pins = {
        "pytorch": "1.13.1", "cuda": "", "gpus": (), "extensions": (),
        "packages": (f"setuptools=={version}",),
    }  # fmt: skip
    assert refused(**pins) == (set() if works else {"EB330"})


def test_torch_2_15_has_no_wheel_for_the_python_of_bullseye():
    assert "EB308" in refused(base="debian/bullseye", python="3.9", gcc="10", pytorch="2.15.0")


def test_python_h_of_bullseye_includes_crypt_h(inside: Inside, work: Path, means: ResolveContext):
    bullseye = suite("bullseye", means)
    headers = ("libc6-dev", "linux-libc-dev", "libpython3.9-dev")
    unpack(bullseye.packages(headers), work / "bullseye", means)
    root = "/work/bullseye/usr/include"
    command = (
        "gcc", "-fsyntax-only", "-nostdinc", "-isystem", "/usr/lib/gcc/x86_64-linux-gnu/12/include",
        "-isystem", root, "-isystem", f"{root}/x86_64-linux-gnu", "-isystem", f"{root}/python3.9", "python.c",
    )  # fmt: skip
    ended = inside(*command)
    assert "fatal error: crypt.h: No such file or directory" in ended.stderr
    unpack(bullseye.packages(("libcrypt-dev",)), work / "bullseye", means)
    assert inside(*command).returncode == 0
    pins = {"base": "debian/bullseye", "python": "3.9", "gcc": "10", "cuda": "", "gpus": (), "extensions": ()}
    assert "EB328" in refused(**pins, libxcrypt="")
    assert refused(**pins, libxcrypt="4.4") == set()
