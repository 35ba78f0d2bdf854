"""Kernels of the Hugging Face hub in a lock: the build that fits the recipe, and each file of it, from a hub on loopback."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.core.cache import sha256_bytes
from envbuilder.core.errors import FetchError, IncompatibleError
from envbuilder.lock.file import lock_text, parse_lock
from envbuilder.lock.model import LockedKernel, lock_artifacts
from envbuilder.lock.resolve.context import Task
from envbuilder.lock.resolve.hub import lock_kernels
from envbuilder.sources.names import HUB, Sources
from tests.support.hub import NAME, REVISION, hub, make_files
from tests.support.locks import make_means, make_recipe, make_task
from tests.support.plans import LOCK
from tests.support.runner import FakeRunner
from tests.support.serving import ask_directly

KERNEL = f"{NAME}@{REVISION}"
CPU = "torch213-cxx11-cpu-x86_64-linux"


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_directly(monkeypatch)


@contextlib.contextmanager
def task(
    folder: Path, *variants: str, form: str = "models", oid: str = "", **pins: object
) -> Iterator[tuple[Task, list[str]]]:
    """Yield a task whose recipe names the kernel, of which the hub has these variants; and what the hub is asked."""
    with hub(make_files(*variants), form, oid=oid) as (address, asked):
        means = make_means(folder, Sources(debian=(), indexes=(), hub=address), FakeRunner())
        yield make_task(make_recipe(folder, kernels=(KERNEL,), packages=(), **pins), means), asked


@pytest.mark.parametrize("form", ["models", "kernels"])
def test_each_file_of_the_build_that_fits_is_locked_by_its_sha256(tmp_path: Path, form: str):
    with task(tmp_path, CPU, "torch212-cxx11-cpu-x86_64-linux", form=form) as (given, asked):
        (kernel,) = lock_kernels(given, None)
        files = make_files(CPU)
        below = {file.path.partition(f"/resolve/{REVISION}/")[2]: file for file in kernel.files}
        names = ("__init__.py", "_relu.abi3.so", "layers/__init__.py", "metadata.json")
        assert list(below) == [f"build/{CPU}/{name}" for name in names]
        assert {path: file.sha256 for path, file in below.items()} == {
            path: sha256_bytes(files[path]) for path in below
        }
        assert (kernel.name, kernel.revision, kernel.variant) == (NAME, REVISION, CPU)
        assert not [path for path in asked if path.endswith(".so")]  # the hub says its sha256
        given.context.fetcher.fetch(kernel.files)
        assert all(given.context.store.has_artifact(file.sha256) for file in kernel.files)
        lock = replace(LOCK, kernels=(kernel,))
        assert parse_lock(lock_text(lock), "x.lock").kernels == (kernel,)
        assert set(kernel.files) <= set(lock_artifacts(lock))
        asked.clear()
        assert lock_kernels(given, lock) == (kernel,)
        assert asked == []


CUDA = {"cuda": "12.6", "gpus": ("A100",), "pytorch": "2.7.0"}


@pytest.mark.parametrize(
    ("variants", "pins", "chosen"),
    [
        (("torch27-cxx11-cu118-x86_64-linux", "torch27-cxx11-cu126-x86_64-linux"), CUDA, "torch27-cxx11-cu126-x86_64-linux"),
        (("torch27-cxx11-cu126-x86_64-linux", "torch27-cxx11-cu124-x86_64-linux"), CUDA, "torch27-cxx11-cu126-x86_64-linux"),
        (("torch27-cxx11-cu128-x86_64-linux", "torch27-cxx11-cu124-x86_64-linux"), CUDA, "torch27-cxx11-cu124-x86_64-linux"),
        (("torch27-cxx11-cu126-aarch64-linux", "torch-universal"), CUDA, "torch-universal"),
        (("torch-universal", "torch-cuda"), CUDA, "torch-cuda"),
        (("torch27-cu126-x86_64-linux", "torch27-cxx11-cu126-x86_64-linux"), CUDA, "torch27-cu126-x86_64-linux"),
        (("torch-stable-abi26-cu126-x86_64-linux", "torch27-cu126-x86_64-linux"), CUDA, "torch-stable-abi26-cu126-x86_64-linux"),
        (("torch-stable-abi29-cu126-x86_64-linux", "torch27-cu126-x86_64-linux"), CUDA, "torch27-cu126-x86_64-linux"),
        (("torch27-cxx11-cu126-x86_64-linux", CPU), {}, CPU),
    ],
)  # fmt: skip
def test_the_build_is_that_of_torch_cuda_abi_and_processor(
    tmp_path: Path, variants: tuple[str, ...], pins: dict[str, object], chosen: str
):
    with task(tmp_path, *variants, **pins) as (given, _):
        assert [kernel.variant for kernel in lock_kernels(given, None)] == [chosen]


def test_without_a_build_that_fits_the_error_names_those_that_are_there(tmp_path: Path):
    with (
        task(tmp_path, "torch27-cxx98-cu126-x86_64-linux", "torch26-cxx11-cu126-x86_64-linux", **CUDA) as (
            given,
            _,
        ),
        pytest.raises(IncompatibleError) as caught,
    ):
        lock_kernels(given, None)
    assert "no build for torch 2.7.0, CUDA 12.6 and x86_64" in caught.value.message
    assert "it has torch26-cxx11-cu126-x86_64-linux, torch27-cxx98-cu126-x86_64-linux" in caught.value.message


def test_a_repository_that_is_not_there_and_a_list_that_lies_are_refused(tmp_path: Path):
    with (
        task(tmp_path, CPU, form="others") as (given, _),
        pytest.raises(FetchError, match="cannot be listed"),
    ):
        lock_kernels(given, None)
    with task(tmp_path, CPU, oid="abc") as (given, _), pytest.raises(FetchError, match="no sha256 of"):
        lock_kernels(given, None)


def test_a_file_that_changed_on_the_hub_is_not_taken(tmp_path: Path):
    with task(tmp_path, CPU, oid="1" * 64) as (given, _):
        (kernel,) = lock_kernels(given, None)
        with pytest.raises(FetchError, match="no source has the file of this sha256"):
            given.context.fetcher.fetch(kernel.files)


def test_a_revision_that_no_longer_fits_is_looked_up_again(tmp_path: Path):
    with task(tmp_path, CPU) as (given, asked):
        old = LockedKernel(name=NAME, revision=REVISION, variant="torch212-cxx11-cpu-x86_64-linux", files=())
        (kernel,) = lock_kernels(given, replace(LOCK, kernels=(old,)))
        assert (kernel.variant, bool(asked)) == (CPU, True)
        assert {file.source for file in kernel.files} == {HUB}
