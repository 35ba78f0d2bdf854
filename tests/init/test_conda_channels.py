"""An `environment.yml` becomes a recipe: what pip has from pip, what conda alone has from its channels, for which a lock is solved."""

from pathlib import Path

import pytest

from envbuilder.compat.check import load_tables
from envbuilder.core.cache import Store
from envbuilder.core.console import Console
from envbuilder.core.findings import Severity
from envbuilder.init import make, read_source, take_gpus
from envbuilder.init.requests import Requests
from envbuilder.lock.resolve.conda_solver import resolve_conda
from envbuilder.lock.resolve.context import ResolveContext
from envbuilder.recipe.model import Recipe
from envbuilder.sources.fetch import Fetcher
from envbuilder.sources.names import probe_sources
from tests.support.conda_channel import CondaPackage, write_channel
from tests.support.locks import make_task, no_client
from tests.support.runner import FakeRunner

FOLDING = """\
name: folding
channels: [conda-forge, bioconda, pytorch]
dependencies:
  - python=3.9
  - libgcc=7.2
  - pip
  - openmm=7.7
  - biopython
  - PyYAML
  - aria2
  - git
  - bioconda::hmmer==3.3.2
  - bioconda::hhsuite==3.3.0
  - bioconda::kalign2==2.04
  - bioconda::mmseqs-extra >=1,<3
  - pytorch::pytorch=1.12.*
  - pip:
      - deepspeed==0.5.10
      - dm-tree==0.1.6
"""
VISION = """\
name: vision
channels:
  - https://channel.example/lab
  - pytorch
  - conda-forge
  - nodefaults
dependencies:
  - python=3.10
  - pytorch=2.1.0
  - pytorch-cuda=12.1
  - cudatoolkit-dev=12.1
  - gxx=11
  - fvcore
  - iopath
  - ffmpeg=6
  - rocksdb=8
  - colmap
  - ninja
variables:
  FORCE_CUDA: "1"
"""
EXPORTED = """\
name: exported
channels:
  - defaults
dependencies:
  - _libgcc_mutex=0.1=main
  - ca-certificates=2023.01.10=h06a4308_0
  - ld_impl_linux-64=2.38=h1181459_1
  - libffi=3.4.2=h6a678d5_6
  - ncurses=6.4=h6a678d5_0
  - openssl=1.1.1t=h7f8727e_0
  - pip=23.0.1=py310h06a4308_0
  - python=3.10.9=h7a1cb2a_2
  - smina=2020.12.10=hf53adfa_0
  - sqlite=3.41.1=h5eee18b_0
  - zlib=1.2.13=h5eee18b_0
  - pip:
      - torch==2.0.1
      - einops==0.6.1
prefix: /home/someone/miniconda3/envs/exported
"""


def adopt(text: str, folder: Path) -> tuple[Recipe, list[str]]:
    """Return the recipe of a file, and what is said of it."""
    file, requests = folder / "environment.yml", Requests()
    file.write_text(text)
    take_gpus(["A100"], load_tables(), requests)
    read_source(file, requests)
    recipe, findings = make("mine", folder / "recipes", requests, (str(file),))
    assert all(finding.severity is Severity.WARNING for finding in findings)
    return recipe, [finding.message for finding in findings]


@pytest.mark.parametrize(
    ("text", "channels", "packages"),
    [
        (FOLDING, ("conda-forge", "bioconda", "pytorch"), ("kalign2==2.04", "mmseqs-extra>=1,<3")),
        (VISION, ("https://channel.example/lab", "pytorch", "conda-forge"), ("rocksdb=8",)),
        (EXPORTED, ("https://repo.anaconda.com/pkgs/main", "conda-forge"), ("smina=2020.12.10",)),
    ],
)
def test_an_environment_goes_through_unedited(
    text: str, channels: tuple[str, ...], packages: tuple[str, ...], tmp_path: Path
):
    recipe, messages = adopt(text, tmp_path)
    wanted = [name if "://" in name else f"https://conda.anaconda.org/{name}" for name in channels]
    assert list(recipe.conda.channels) == wanted
    assert recipe.conda.packages == packages
    for spec in packages:
        assert f"`{spec}` comes from conda, beside the environment's Python" in messages
    assert recipe.pytorch
    # For the solver: channels of those paths with these packages, and what they need.
    write_channels(tmp_path, recipe)
    locked = resolve_conda(make_task(recipe, offline_context(tmp_path, recipe)))
    assert [package.name for package in locked] == sorted(
        [*(spec.split("=")[0].split(">")[0] for spec in packages), "needed"]
    )


def write_channels(folder: Path, recipe: Recipe) -> None:
    """Write a channel for each source of the recipe. All packages are in the last one."""
    names = {"kalign2": "2.04", "mmseqs-extra": "2.0", "rocksdb": "8.1", "smina": "2020.12.10"}
    packages = [
        CondaPackage(name=name, version=version, depends=("needed",)) for name, version in names.items()
    ]
    *others, last = recipe.conda.sources
    for source in others:
        write_channel(folder / source, [])
    write_channel(folder / last, [*packages, CondaPackage(name="needed")])


def offline_context(folder: Path, recipe: Recipe) -> ResolveContext:
    """Return what `lock` asks with, where each channel has a mirror in a folder."""
    mirrors = " ".join(
        f"{source.removeprefix('channel-')}={(folder / source / 'some/conda-test').as_uri()}"
        for source in recipe.conda.sources
    )
    settings = {"ENVBUILDER_CONDA_MIRRORS": mirrors, "ENVBUILDER_DEBIAN_MIRROR": "http://127.0.0.1:9/"}
    store, sources = Store(folder / "cache"), probe_sources(settings, FakeRunner())
    return ResolveContext(
        store=store, runner=FakeRunner(), sources=lambda: sources, client=no_client,
        fetcher=Fetcher(store, lambda: sources, offline=True), transfer=Console(quiet=True).step,
    )  # fmt: skip


def test_a_module_that_conda_alone_has_is_left_out(tmp_path: Path):
    recipe, messages = adopt(FOLDING.replace("  - git\n", "  - pdbfixer\n"), tmp_path)
    assert all("pdbfixer" not in spec for spec in recipe.conda.packages)
    left = next(message for message in messages if "pdbfixer" in message)
    assert "only conda's channels have it, and the environment imports it" in left


def test_a_channel_with_a_token_is_not_copied(tmp_path: Path):
    text = EXPORTED.replace("  - defaults\n", "  - https://conda.anaconda.org/t/tk-123/lab\n  - ./own\n")
    recipe, messages = adopt(text, tmp_path)
    assert recipe.conda.channels == ("https://conda.anaconda.org/conda-forge",)
    assert "tk-123" not in " ".join(messages) + recipe.path.read_text()
    assert any("the channel ./own" in message for message in messages)


def test_without_packages_of_conda_there_is_no_key(tmp_path: Path):
    recipe, messages = adopt(EXPORTED.replace("  - smina=2020.12.10=hf53adfa_0\n", ""), tmp_path)
    assert recipe.conda.packages == recipe.conda.channels == ()
    assert "conda:" not in recipe.path.read_text()
    assert not any("channel" in message for message in messages)
