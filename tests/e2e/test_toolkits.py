"""Toolkits of each source, locked, fetched and laid out for real, and used by their own compilers.

NVIDIA's archive is one on loopback, with components cut out of real packages.
"""

import json
import os
import shutil
import subprocess
import zipfile
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from envbuilder.core.cache import link_or_copy
from envbuilder.core.processor import X86_64
from envbuilder.lock.file import load_lock
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve import make_target
from envbuilder.lock.resolve.context import LockOptions, ResolveContext
from envbuilder.lock.resolve.toolkit import locked_toolkit, resolve_toolkit, without_headers
from envbuilder.lock.resolve.uv_files import Question
from envbuilder.lock.resolve.uv_resolver import Uv
from envbuilder.plan.model import CudaStep
from envbuilder.recipe.load import load
from envbuilder.recipe.model import Recipe
from envbuilder.recipe.repository import Repository
from envbuilder.steps.toolkit import install
from tests.support import redist
from tests.support.locks import make_task
from tests.support.serving import served
from tests.support.workbench import ENVBUILDER, NO_ENGINE, ROOT, build, resolve_context, run

pytestmark = pytest.mark.builds

OPTIONS = LockOptions(today=date(2026, 11, 23))
SITE = "/opt/env/lib/python3.11/site-packages"
SOURCE = """\
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cub/block/block_reduce.cuh>
#include <thrust/device_ptr.h>
#include <thrust/functional.h>
__global__ void sum(const int *in, int *out) {
  using Reduce = cub::BlockReduce<int, 64>;
  __shared__ typename Reduce::TempStorage room;
  int whole = Reduce(room).Reduce(in[threadIdx.x], thrust::plus<int>());
  if (threadIdx.x == 0) *out = whole;
}
__global__ void add_one(__half *x) { x[threadIdx.x] = __hadd(x[threadIdx.x], __float2half(1.0f)); }
int *plain(thrust::device_ptr<int> x) { return thrust::raw_pointer_cast(x); }
"""


def recipe(cuda: str, **change: object) -> Recipe:
    return replace(load(ROOT / "recipes/a100.yaml"), cuda=cuda, **change)  # type: ignore[arg-type]


def means(source: str = "") -> ResolveContext:
    return resolve_context({**os.environ, "ENVBUILDER_CUDA_REDIST": source})


def lay_out(
    wanted: Recipe, parts: tuple[Artifact, ...], runtime: str, folder: Path, context: ResolveContext
) -> Path:
    """Lay a toolkit out beside the wheel of CUDA's runtime library. Returns its folder."""
    question = Question(python="3.11", glibc="2.36", requirements=(runtime,), dependencies=False)
    (wheel,) = Uv(make_task(wanted, context, OPTIONS)).ask(question)
    context.fetcher.fetch((*parts, wheel))
    with zipfile.ZipFile(context.store.artifact(wheel.sha256)) as archive:
        archive.extractall(f"{folder}/root{SITE}")
    toolkit = locked_toolkit(wanted, parts)
    assert toolkit
    rules = CudaStep(toolkit=toolkit, artifacts=parts).rules() | {"site": SITE, "machine": X86_64.elf}
    inputs = folder / "inputs"
    inputs.mkdir()
    for part in parts:
        link_or_copy(context.store.artifact(part.sha256), inputs / part.filename)
    install(json.loads(json.dumps(rules)), str(inputs), f"{folder}/root", root=f"{folder}/root")
    return folder / "root" / toolkit.folder


def compile_with(home: Path, folder: Path, *options: str) -> None:
    """Compile and link a library for the A100, and see that it needs CUDA's runtime."""
    (folder / "mine.cu").write_text(SOURCE)
    link = ("-shared", "-Xcompiler", "-fPIC", "-cudart", "shared", "-arch=sm_80", "-o", "mine.so")
    subprocess.run([home / "bin/nvcc", *link, *options, "mine.cu"], cwd=folder, check=True)
    needed = subprocess.run(
        ["readelf", "-d", "mine.so"], cwd=folder, check=True, capture_output=True, text=True
    )
    assert "[libcudart.so." in needed.stdout


@pytest.mark.release
def test_the_archive_s_components_make_a_toolkit_that_compiles(spacious: Path) -> None:
    """`tests/builder/test_toolkits.py` holds for small archives what is laid out, `tests/lock/test_toolkit.py` what is locked."""
    wanted = recipe("12.4.2")
    with served(redist.archive_of_12_4(spacious, means())) as address:
        context = means(address)
        whole = resolve_toolkit(make_task(wanted, context, OPTIONS))
        parts = without_headers(wanted, whole, load_lock(ROOT / "recipes/a100.lock").wheels)
        assert parts
        assert {(part.kind, part.source) for part in parts} == {("archive", "cuda")}
        home = lay_out(wanted, parts, "nvidia-cuda-runtime-cu12==12.4.127", spacious, context)
    compile_with(home, spacious, "-lcuda")


@pytest.mark.release
def test_an_extension_of_torch_is_compiled_with_the_archive_s_components(spacious: Path) -> None:
    """`tests/builder/test_toolkits.py` lays small archives out for every change, `test_projects.py` compiles with Debian's toolkit."""
    folder, archive = spacious / "recipes", redist.archive_of_12_4(spacious, means())
    shutil.copytree(ROOT / "recipes/fused", folder / "fused")
    path = folder / "mine.yaml"
    path.write_text((ROOT / "recipes/a100.yaml").read_text().replace('cuda: "12.4"', 'cuda: "12.4.2"'))
    env = {"ENVBUILDER_CUDA_REDIST": str(archive)}
    run(ENVBUILDER, "lock", path, env=env)
    lock = json.loads(path.with_suffix(".lock").read_text())
    assert {part["source"] for part in lock["toolkit"]} == {"cuda"}
    built = build(str(path), spacious / "out", env=env | NO_ENGINE)
    assert "release 12.4," in run("apptainer", "exec", built.sif, "nvcc", "--version")


@pytest.mark.release
@pytest.mark.parametrize("source", ["debs", "archive"])
def test_debian_s_11_8_compiles_as_it_is_and_as_an_archive(source: str, spacious: Path) -> None:
    """860 MB of packages. `tests/builder/test_toolkits.py` lays small ones out for every change."""
    wanted = recipe("11.8" if source == "debs" else "11.8.1", pytorch="1.13.1", gcc="11")
    context = means()
    debs = resolve_toolkit(make_task(recipe("11.8"), context, OPTIONS, make_target(wanted)))
    assert {deb.kind for deb in debs} == {"deb"}
    parts = debs
    if source == "archive":
        redist.cut_11_8(
            spacious / "redist", redist.fetched(debs, context), spacious / "cut", release="11.8.1"
        )
        context = means(str(spacious / "redist"))
        parts = resolve_toolkit(make_task(wanted, context, OPTIONS))
        assert "libcublas" in {part.name for part in parts}  # a build of torch without headers takes them too
    home = lay_out(wanted, parts, "nvidia-cuda-runtime-cu11==11.7.99", spacious, context)
    # 11.8 refuses the gcc 12 of this machine by its number, and compiles this source with it.
    compile_with(home, spacious, "-std=c++14", "--allow-unsupported-compiler", "-lcuda")
    assert (home / "include/cublas_v2.h").is_file()


@pytest.mark.release
@pytest.mark.parametrize("cuda", ["13.0", "13.2", "13.5"])
def test_the_wheels_of_cuda_13_compile(cuda: str, spacious: Path) -> None:
    """105 to 130 MB of wheels. `h100.lock` holds those of 13.2 as they were first locked."""
    wanted, context = recipe(cuda), means()
    parts = resolve_toolkit(make_task(wanted, context, OPTIONS))
    assert {part.source for part in parts} == {"pypi"}
    nvcc = next(part for part in parts if part.name == "nvidia-cuda-nvcc")
    assert nvcc.version.startswith(f"{cuda}.")
    home = lay_out(wanted, parts, f"nvidia-cuda-runtime=={cuda}.*", spacious, context)
    compile_with(home, spacious)


@pytest.mark.release
def test_packages_in_nvidia_s_layout_make_a_toolkit_that_compiles(spacious: Path) -> None:
    """Debian's 11.8 under the names of 11.3, 860 MB of packages."""
    plain, context = recipe("11.8", pytorch="1.13.1", gcc="11"), means()
    redist.repository_of_11_3(spacious / "repos/ubuntu2004/x86_64", context, spacious)
    with served(spacious / "repos") as address:
        repository = Repository(
            name="nvidia-ubuntu2004", url=f"{address}ubuntu2004/x86_64/", suite="/", components=(), keys=("nvidia.gpg",)
        )  # fmt: skip
        wanted = replace(plain, cuda="11.3", path=spacious / "x.yaml", apt_sources=(repository,))
        context.fetcher.know({repository.source: repository.url})
        parts = resolve_toolkit(make_task(wanted, context, OPTIONS))
        assert {part.source for part in parts} == {repository.source}
        home = lay_out(wanted, parts, "nvidia-cuda-runtime-cu11==11.7.99", spacious, context)
    assert home.name == "cuda-11.3"
    compile_with(home, spacious, "-std=c++14", "--allow-unsupported-compiler", "-lcuda")
    assert (home / "include/cublas_v2.h").is_file()
