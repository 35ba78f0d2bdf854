"""Another NCCL in the place of the one that torch requires: locked, said in one line, or refused with the reason."""

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuilder.core.errors import IncompatibleError
from envbuilder.lock.model import Artifact, recipe_inputs
from envbuilder.lock.resolve.wheels import resolve_wheels
from envbuilder.recipe.wheel_sources import WheelIndex
from envbuilder.sources.names import Sources
from tests.support.locks import RECIPE, make_means, make_task
from tests.support.package_sources import write_index, write_wheel
from tests.support.serving import served

TAG = "cp311-cp311-manylinux_2_28_x86_64"
ANY = "py3-none-manylinux_2_17_x86_64"
NCCL = "nvidia-nccl-cu12"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A package index with two releases of torch: one contains NCCL. Another index has an NCCL of its own."""
    web = tmp_path_factory.mktemp("web")
    linux = "; platform_system == 'Linux'"
    wheels = [
        write_wheel(web / "files", "torch", "2.8.0", tag=TAG, requires=(f"{NCCL}==2.27.3{linux}", "sympy")),
        write_wheel(web / "files", "torch", "1.13.1", tag=TAG, requires=("sympy",)),
        *(write_wheel(web / "files", name, "90") for name in ("setuptools", "nvidia_ml_py", "sympy")),
        write_wheel(web / "files", "user", "1", requires=(f"{NCCL}<2.27.5",)),
        *(
            write_wheel(web / "files", "nvidia_nccl_cu12", version, tag=ANY)
            for version in ("2.21.5", "2.27.3", "2.27.5", "2.30.7")
        ),
    ]
    write_index(web / "simple", *wheels)
    ours = write_wheel(web / "ours", "nvidia_nccl_cu12", "2.27.5", tag="py3-none-manylinux_2_18_x86_64")
    write_index(web / "own", ours)
    with served(web) as url:
        yield url


def lock(folder: Path, url: str, prefer: tuple[Artifact, ...] = (), **changes: object) -> dict[str, Artifact]:
    values = {
        "path": folder / "x.yaml",
        "cuda": "12.8",
        "pytorch": "2.8.0",
        "nccl_version": "2.27.5",
    } | changes
    recipe = dataclasses.replace(RECIPE, **values)
    context = make_means(folder, Sources(debian=(), indexes=(f"{url}simple/",)))
    packages = resolve_wheels(make_task(recipe, context), prefer=prefer).artifacts
    return {package.name: package for package in packages}


@pytest.mark.programs
def test_the_recipes_nccl_is_locked_and_said_once(
    tmp_path: Path, web: str, caplog: pytest.LogCaptureFixture
) -> None:
    usual = lock(tmp_path, web, nccl_version="")
    assert usual[NCCL].version == "2.27.3"
    with caplog.at_level(logging.WARNING):
        other = lock(tmp_path, web, tuple(usual.values()))
    assert {name: each.version for name, each in other.items()} == {
        "torch": "2.8.0", NCCL: "2.27.5", "sympy": "90", "setuptools": "90", "nvidia-ml-py": "90",
    }  # fmt: skip
    (line,) = [record.message for record in caplog.records if "in the place of" in record.message]
    assert line.endswith(f"{NCCL} is 2.27.5 in the place of 2.27.3, which torch 2.8.0 requires")
    caplog.clear()
    assert lock(tmp_path, web, tuple(other.values())) == other
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.programs
def test_the_recipes_nccl_comes_from_its_index(tmp_path: Path, web: str) -> None:
    index = WheelIndex(name="own", packages=(NCCL,), url=f"{web}own")
    assert lock(tmp_path, web, indexes=(index,))[NCCL].filename.endswith("manylinux_2_18_x86_64.whl")


@pytest.mark.programs
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pytorch": "1.13.1", "cuda": "12.8"}, f"torch 1.13.1 does not require `{NCCL}`: its own libraries contain NCCL"),
        ({"nccl_version": "2.99.1"}, f"no version of {NCCL}==2.99.1"),
        ({"packages": ("user",)}, f"{NCCL}<2.27.5"),
    ],
    ids=["torch contains it", "no such release", "another package needs an older one"],
)  # fmt: skip
def test_an_nccl_that_cannot_be_taken_is_refused(
    tmp_path: Path, web: str, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(IncompatibleError) as caught:
        lock(tmp_path, web, **changes)
    assert words in caught.value.message


def test_only_an_nccl_of_the_recipe_makes_the_wheels_of_its_lock_stale() -> None:
    plain, other = (
        recipe_inputs(dataclasses.replace(RECIPE, nccl_version=version)) for version in ("", "2.27.5")
    )
    assert plain.wheels != other.wheels
    assert (plain.debs, plain.toolkit) == (other.debs, other.toolkit)
