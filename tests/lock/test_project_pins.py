"""Five recipes with the pins of public projects: CUDA 11.3 to 13.0 and Python 3.8 to 3.12, checked and locked from sources on disk."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.compat.check import examine, load_tables
from envbuilder.compat.tables.distribution import load_standalones
from envbuilder.core.cache import Store
from envbuilder.core.console import Console
from envbuilder.core.process import ProcessRunner
from envbuilder.core.processor import X86_64
from envbuilder.lock.file import lock_text, parse_lock
from envbuilder.lock.resolve.context import ResolveContext
from envbuilder.recipe.load import load
from envbuilder.recipe.model import Recipe
from envbuilder.sources.fetch import Fetcher
from envbuilder.sources.names import Sources
from tests.support.locks import lock_as_of, no_client
from tests.support.package_sources import (
    PACKAGES,
    UBUNTU,
    debian,
    write_index,
    write_mirror,
    write_ubuntu,
    write_wheel,
)
from tests.support.redist import write_small

PINS = Path(__file__).parent / "project_pins"
NAMES = sorted(path.stem for path in PINS.glob("*.yaml"))
RDMA = {"libibverbs1": ("44", "libc6"), "ibverbs-providers": ("44", "libibverbs1")}
GCC_11 = {"gcc-11": ("11.3.0-12", "libc6"), "g++-11": ("11.3.0-12", "gcc-11")}
LIBRARIES = ("cublas", "cuda-nvrtc", "cufft", "curand", "cusolver", "cusparse")
HEADERS = {"libcublas", "libcusparse", "libcusolver", "libcufft", "libcurand", "cuda_nvrtc"}


def read(name: str) -> Recipe:
    return load(PINS / f"{name}.yaml")


def problems(recipe: Recipe) -> dict[str, str]:
    return {one.code: one.hint for one in examine(recipe, load_tables()).findings}


def test_five_projects_are_there():
    recipes = [read(name) for name in NAMES]
    assert {recipe.cuda for recipe in recipes} == {"11.3", "11.8", "12.1", "12.8", "13.0"}
    assert {recipe.python for recipe in recipes} == {"3.8", "3.10", "3.12"}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "detector"])
def test_a_project_s_pins_have_no_problem(name: str):
    assert problems(read(name)) == {}


def test_a_cuda_of_nvidia_s_apt_repositories_alone_says_how_it_is_had(tmp_path: Path):
    recipe = read("detector")
    (hint,) = problems(recipe).values()
    assert hint.startswith('write `cuda: "11.6"`')  # the nearest that torch 1.12.1 was built against
    assert "add `apt_sources: [nvidia/ubuntu2004]`" in hint
    assert problems(replace(recipe, cuda="11.6")) == {}
    path = tmp_path / "detector.yaml"
    path.write_text(f"{(PINS / 'detector.yaml').read_text()}apt_sources: [nvidia/ubuntu2004]\n")
    assert problems(load(path)) == {}


@pytest.fixture(scope="module")
def sources() -> Iterator[Sources]:
    """What these projects need of each source, in its form."""
    with tempfile.TemporaryDirectory(prefix="envbuilder-projects-") as name:
        folder = Path(name)
        write_mirror(folder / "mirror", folder / "keyring.gpg", {**PACKAGES, **GCC_11, **RDMA})
        write_ubuntu(folder / "ubuntu", folder / "ubuntu.gpg", {**UBUNTU, **RDMA})
        files = folder / "files"
        cu12 = tuple(f"nvidia-{library}-cu12" for library in LIBRARIES)
        write_index(
            folder / "simple",
            *(write_wheel(files, library.replace("-", "_"), "12.1.1") for library in cu12),
            *(write_wheel(files, "numpy", "1.26.4", tag=f"cp{python}-cp{python}-manylinux_2_17_x86_64") for python in ("310", "312")),
            write_wheel(files, "numpy", "2.2.0", tag="cp312-cp312-manylinux_2_17_x86_64"),
            write_wheel(files, "setuptools", "69.5.0"),
            write_wheel(files, "setuptools", "80.0.0"),
            write_wheel(files, "nvidia_ml_py", "13.0"),
            write_wheel(files, "torch", "2.1.2", tag="cp310-cp310-manylinux1_x86_64", requires=cu12),
            write_wheel(files, "torch", "2.8.0", tag="cp312-cp312-manylinux_2_28_x86_64", requires=cu12),
        )  # fmt: skip
        own = {"cu118": ("2.1.2", "cp310"), "cu130": ("2.9.1", "cp312")}
        for build, (version, tag) in own.items():
            wheel = write_wheel(files, "torch", f"{version}+{build}", tag=f"{tag}-{tag}-linux_x86_64")
            write_index(folder / "pytorch" / build, wheel)
        python = folder / "pythons" / load_standalones().by_name["3.10"].path(X86_64)
        python.parent.mkdir(parents=True)
        python.write_bytes(b"python")
        yield Sources(
            **debian(folder / "mirror"),
            keyring=folder / "keyring.gpg",
            ubuntu=(f"{(folder / 'ubuntu').as_uri()}/",),
            ubuntu_keyring=folder / "ubuntu.gpg",
            indexes=(f"{(folder / 'simple').as_uri()}/",),
            pytorch=f"{(folder / 'pytorch').as_uri()}/",
            standalone=(f"{(folder / 'pythons').as_uri()}/",),
            cuda=f"{write_small(folder / 'redist', '11.8.1', '12.1.2', '12.8.3', '13.0.4').as_uri()}/",
        )


@pytest.mark.programs
@pytest.mark.parametrize(
    ("name", "cuda", "torch", "headers"),
    [
        ("radiance", "11.8.1", ("pytorch", "2.1.2+cu118"), HEADERS),
        ("diffusion", "12.1.2", ("pypi", "2.1.2"), set()),
        ("video", "12.8.3", ("pypi", "2.8.0"), set()),
        ("language", "13.0.4", ("pytorch", "2.9.1+cu130"), HEADERS),
    ],
)
def test_a_project_s_pins_are_locked(
    name: str, cuda: str, torch: tuple[str, str], headers: set[str], sources: Sources, tmp_path: Path
):
    recipe = read(name)
    store = Store(tmp_path / "cache")
    context = ResolveContext(
        store=store,
        runner=ProcessRunner({"HOME": str(tmp_path), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}),
        sources=lambda: sources,
        client=no_client,
        fetcher=Fetcher(store, lambda: sources),
        transfer=Console(quiet=True).step,
    )
    lock = lock_as_of(recipe, context)
    assert {part.version for part in lock.toolkit} == {cuda}
    assert {part.name for part in lock.toolkit} & HEADERS == headers  # that the wheels lack
    assert [(one.source, one.version) for one in lock.wheels if one.name == "torch"] == [torch]
    family = "ubuntu" if recipe.base == "ubuntu/noble" else "debian"
    assert {deb.source for deb in lock.debs} == {family}
    assert bool(lock.interpreter) == (recipe.python == "3.10")
    assert parse_lock(lock_text(lock), "a.lock") == lock
