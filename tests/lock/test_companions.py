"""torchvision and torchaudio in a lock: of the same build as torch, from PyTorch's own index on loopback, a folder or the package index."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.core.errors import FetchError, IncompatibleError
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.wheels import resolve_wheels
from envbuilder.recipe.model import Recipe
from envbuilder.sources.names import Sources
from tests.support.locks import lock_as_of, make_artifact, make_lock, make_means, make_recipe, make_task
from tests.support.package_sources import write_index, write_wheel
from tests.support.serving import served

TAG = "cp311-cp311-manylinux_2_28_x86_64"
NAMES = ("torchvision", "torchaudio")
CLOSED = "http://127.0.0.1:1/"
OF_CUDA = {"gpus": ("A100",), "cuda": "13.0"}  # the build that the package index has of torch 2.13.0

pytestmark = pytest.mark.programs


def write(folder: Path, name: str, build: str = "") -> Path:
    version, requires = ("2.13.0", ("setuptools",)) if name == "torch" else ("0.28.0", ("torch==2.13.0",))
    return write_wheel(folder, name, f"{version}{build}", tag=TAG, requires=requires)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sources]:
    """The package index with the builds for CUDA, PyTorch's own with those for the CPU, and a folder with torch for the CPU alone."""
    folder = tmp_path_factory.mktemp("companions")
    web = folder / "web"
    of_cuda = [write(web / "files", name) for name in ("torch", *NAMES)]
    needs_it = write_wheel(web / "files", "timm", "1.0", requires=("torchvision",))
    own = [write_wheel(web / "files", name, "80.0.0") for name in ("setuptools", "nvidia_ml_py")]
    write_index(web / "simple", *of_cuda, needs_it, *own)
    write_index(web / "pytorch/cpu", *(write(web / "files", name, "+cpu") for name in ("torch", *NAMES)))
    write_index(web / "without/cpu", write(web / "files", "torch", "+cpu"))
    write(folder / "wheels", "torch", "+cpu")
    with served(web) as url:
        yield Sources(
            debian=(), indexes=(f"{url}simple/",), folders=(folder / "wheels",), pytorch=f"{url}pytorch/"
        )


def locked(recipe: Recipe, tmp_path: Path, sources: Sources) -> dict[str, Artifact]:
    found = resolve_wheels(make_task(recipe, make_means(tmp_path, sources)))
    return {one.name: one for one in found.artifacts}


@pytest.mark.parametrize(
    "packages", [NAMES, ("torchvision==0.28.0", "torchaudio>=0.2"), ("timm", "torchaudio")]
)
@pytest.mark.parametrize("is_in_folder", [True, False])
def test_companions_are_of_the_build_of_torch(
    tmp_path: Path, sources: Sources, packages: tuple[str, ...], *, is_in_folder: bool
) -> None:
    chosen = sources if is_in_folder else replace(sources, folders=())
    found = locked(make_recipe(tmp_path, packages=packages), tmp_path, chosen)
    assert {found[name].version for name in NAMES} == {"0.28.0+cpu"}
    assert {found[name].source for name in NAMES} == {"pytorch"}


def test_companions_for_cuda_come_from_the_package_index(tmp_path: Path, sources: Sources) -> None:
    found = locked(make_recipe(tmp_path, packages=NAMES, **OF_CUDA), tmp_path, sources)
    assert {(found[name].source, found[name].version) for name in NAMES} == {("pypi", "0.28.0")}


def test_a_companion_for_the_cpu_in_a_folder_is_not_taken_beside_cuda(
    tmp_path: Path, sources: Sources
) -> None:
    write(tmp_path / "wheels", "torchvision", "+cpu")
    recipe = make_recipe(tmp_path, packages=("torchvision",), **OF_CUDA)
    found = locked(recipe, tmp_path, replace(sources, folders=(tmp_path / "wheels",)))
    assert (found["torchvision"].source, found["torchvision"].version) == ("pypi", "0.28.0")


def test_a_companion_whose_index_does_not_answer_is_refused(tmp_path: Path, sources: Sources) -> None:
    recipe = make_recipe(tmp_path, packages=("timm",))
    with pytest.raises(FetchError) as caught:
        locked(recipe, tmp_path, replace(sources, pytorch=CLOSED))
    assert caught.value.message.startswith(
        "torchvision for torch 2.13.0+cpu is in PyTorch's own index alone, and http://127.0.0.1:1/cpu/ does not answer"
    )
    assert "ENVBUILDER_PYTORCH_INDEX" in caught.value.hint


@pytest.mark.parametrize("is_in_folder", [True, False])
def test_a_companion_that_its_index_lacks_is_refused(
    tmp_path: Path, sources: Sources, *, is_in_folder: bool
) -> None:
    mirror = sources.pytorch.replace("pytorch", "without")
    lacking = replace(sources, pytorch=mirror, folders=sources.folders if is_in_folder else ())
    with pytest.raises(IncompatibleError) as caught:
        locked(make_recipe(tmp_path, packages=("torchvision",)), tmp_path, lacking)
    assert caught.value.message == (
        "torchvision 0.28.0 of the package index is compiled for CUDA 13.0 and does not load beside torch 2.13.0+cpu; "
        f"torchvision 0.28.0+cpu was expected, and {mirror}cpu/ does not have it"
    )
    assert "ENVBUILDER_PYTORCH_INDEX" in caught.value.hint


def test_a_lock_with_a_companion_of_another_build_is_made_anew(tmp_path: Path, sources: Sources) -> None:
    recipe = make_recipe(tmp_path, packages=("torchvision",))
    old = make_lock(recipe)
    old = replace(old, wheels=(*old.wheels, make_artifact("torchvision", "0.28.0")))
    lock = lock_as_of(recipe, make_means(tmp_path, sources), old=old)  # fmt: skip
    assert {one.name: one.version for one in lock.wheels}["torchvision"] == "0.28.0+cpu"
    assert lock.debs == old.debs
