"""Apt repositories beside a base's: a recipe's own, NVIDIA's, and those of an image."""

import logging
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.compat.repositories import addresses
from envbuilder.core.cache import Sha256
from envbuilder.core.errors import FetchError, IncompatibleError
from envbuilder.lock.changes import check_fresh
from envbuilder.lock.model import Artifact
from envbuilder.lock.resolve.context import LockOptions, ResolveContext
from envbuilder.lock.resolve.debs import resolve_debs, upgrade_debs
from envbuilder.lock.resolve.toolkit import locked_toolkit, resolve_toolkit
from envbuilder.recipe import repository
from envbuilder.recipe.load import load
from envbuilder.recipe.model import Recipe
from envbuilder.sources.names import Sources, probe_sources
from tests.support import package_sources
from tests.support.locks import lock_as_of, make_lock, make_means, make_parts, make_recipe, make_task
from tests.support.package_sources import (
    DAY,
    LATER,
    fingerprint,
    signing_key,
    write_deb,
    write_flat,
    write_suite,
)
from tests.support.runner import FakeRunner
from tests.support.serving import served

world = package_sources.world
OPTIONS = LockOptions(today=DAY)
HEAD = "Origin: Site\nLabel: Site\nSuite: stable\nCodename: stable\n"
SITE = {  # name → version, dependencies
    "site-tool": ("1.0-1", "libc6, site-data"),
    "site-data": ("2.0-1", ""),
    "make": ("4.3", ""),  # as Debian's
    "git": ("1:9.0-1", "libc6"),  # newer
}
RECIPE = """\
base: debian/bookworm
python: "3.11"
gcc: "12"
libxcrypt: "4.4"
pytorch: "2.13.0"
apt: [%s]
apt_sources:
  - {name: site, url: "%s", suite: %s, components: [%s], key: keys/site.gpg}
"""


@pytest.fixture(scope="module")
def site(world: Sources, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A repository on loopback: its address, and the file of its key."""
    del world  # skips without apt and gpg
    folder = tmp_path_factory.mktemp("site")
    listing = "\n".join(write_deb(folder / "apt", name, *rest) for name, rest in SITE.items())
    with signing_key(folder / "site.gpg") as sign:
        write_suite(folder / "apt", "stable", {"main": listing}, sign, HEAD)
    with served(folder / "apt") as address:
        yield address, folder / "site.gpg"


def write(
    tmp_path: Path, site: tuple[str, Path], apt: str = "site-tool", *, suite: str = "stable", url: str = ""
) -> Recipe:
    (tmp_path / "keys").mkdir(exist_ok=True)
    (tmp_path / "keys/site.gpg").write_bytes(site[1].read_bytes())
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE % (apt, url or site[0], suite, "main"))
    return load(path)


def lock_debs(
    recipe: Recipe, means: ResolveContext, options: LockOptions = OPTIONS
) -> Mapping[str, Artifact]:
    found = resolve_debs(make_task(recipe, means, options))
    return {deb.name: deb for deb in found}


@pytest.mark.programs
def test_packages_come_from_all_sources_at_once_and_are_named_by_theirs(
    tmp_path: Path, world: Sources, site: tuple[str, Path]
) -> None:
    recipe, means = write(tmp_path, site), make_means(tmp_path, world)
    lock = lock_as_of(recipe, means, options=OPTIONS)
    debs = {deb.name: deb for deb in lock.debs}
    assert (debs["site-tool"].source, debs["site-tool"].path) == (
        "apt-site",
        "pool/main/site-tool_1.0-1_amd64.deb",
    )
    assert {name for name, deb in debs.items() if deb.source != "debian"} == {"site-tool", "site-data"}
    means.fetcher.fetch(lock.debs)
    again = lock_as_of(recipe, means, old=lock, options=OPTIONS)
    assert again == lock


@pytest.mark.programs
def test_a_file_comes_from_the_mirror_that_a_setting_names(
    tmp_path: Path, world: Sources, site: tuple[str, Path]
) -> None:
    recipe = write(tmp_path, site, url="http://127.0.0.1:9/gone")
    setting = {"ENVBUILDER_APT_MIRRORS": f"other=http://127.0.0.1:9/ site={site[0]}"}
    found = probe_sources(setting, FakeRunner())
    means = make_means(tmp_path, replace(world, apt=found.apt))
    debs = lock_debs(recipe, means)
    assert debs["site-tool"].path == "pool/main/site-tool_1.0-1_amd64.deb"
    means.fetcher.fetch(debs.values())


@pytest.mark.programs
def test_of_two_sources_the_newer_version_counts_and_a_replaced_package_is_told(
    tmp_path: Path, world: Sources, site: tuple[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    debs = lock_debs(write(tmp_path, site, "git"), make_means(tmp_path, world))
    assert {name: deb.source for name, deb in debs.items() if name in {"git", "make"}} == {
        "git": "apt-site",
        "make": "debian",
    }
    told = "`git` 1:9.0-1 comes from `apt-site`, because it is newer than 1:2.39.5-0+deb12u2 of bookworm"
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [told]


@pytest.mark.programs
def test_an_upgrade_of_one_package_reads_the_source_too(
    tmp_path: Path, world: Sources, site: tuple[str, Path]
) -> None:
    recipe, means = write(tmp_path, site), make_means(tmp_path, world)
    debs = resolve_debs(make_task(recipe, means, OPTIONS))
    old = tuple(
        replace(deb, version="0.9-1", sha256=Sha256("0" * 64)) if deb.name == "site-data" else deb
        for deb in debs
    )
    options = LockOptions(today=LATER, upgrade_only=("site-data",))
    assert upgrade_debs(make_task(recipe, means, options), old) == debs


@pytest.mark.programs
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"suite": "unstable"}, "unstable Release' does not have a Release file"),
        ({"url": "http://127.0.0.1:9/apt"}, "Could not connect to 127.0.0.1:9"),
    ],
)
def test_a_source_that_cannot_be_read_is_an_error_with_its_own_hint(
    tmp_path: Path, world: Sources, site: tuple[str, Path], change: dict[str, str], words: str
) -> None:
    recipe = write(tmp_path, site, **change)
    with pytest.raises(FetchError, match=words) as caught:
        lock_debs(recipe, make_means(tmp_path, world))
    assert caught.value.hint.startswith("look at the address, the suite and the components of `site`")
    assert "ENVBUILDER_DEBIAN_MIRROR" not in caught.value.hint


@pytest.mark.programs
def test_a_source_that_another_key_signed_is_refused_though_the_base_knows_that_key(
    tmp_path: Path, world: Sources, site: tuple[str, Path]
) -> None:
    recipe = write(tmp_path, (site[0], world.keyring))
    with pytest.raises(FetchError, match="InRelease' is not signed") as caught:
        lock_debs(recipe, make_means(tmp_path, replace(world, keyring=world.keyring)))
    assert "whether the key of the recipe signs it" in caught.value.hint


@pytest.mark.programs
def test_the_key_of_a_source_does_not_sign_the_base(
    tmp_path: Path, world: Sources, site: tuple[str, Path]
) -> None:
    recipe = write(tmp_path, site)
    with pytest.raises(FetchError, match="bookworm InRelease' is not signed"):
        lock_debs(recipe, make_means(tmp_path, replace(world, keyring=site[1])))


@pytest.mark.programs
def test_a_package_that_no_source_has_is_told(tmp_path: Path, world: Sources, site: tuple[str, Path]) -> None:
    with pytest.raises(IncompatibleError) as caught:
        lock_debs(write(tmp_path, site, "site-tol"), make_means(tmp_path, world))
    assert caught.value.message.endswith("bookworm and the sources beside it have no package `site-tol`")
    assert caught.value.hint == "did you mean `site-tool`?"


def test_no_service_keeps_a_source_as_it_was(tmp_path: Path, world: Sources, site: tuple[str, Path]) -> None:
    recipe, options = write(tmp_path, site), LockOptions(today=LATER, before=DAY)
    with pytest.raises(IncompatibleError, match=f"no service keeps `site` as it was on {DAY}"):
        lock_debs(recipe, make_means(tmp_path, world), options)


def test_another_key_makes_a_lock_stale(tmp_path: Path, site: tuple[str, Path]) -> None:
    recipe = write(tmp_path, site)
    lock = make_lock(recipe)
    assert check_fresh(recipe, lock, {}) == ()
    (tmp_path / "keys/site.gpg").write_bytes(b"another")
    (why, _) = check_fresh(load(recipe.path), lock, {})
    assert "`apt_sources`" in why
    assert recipe.path.parent / "keys/site.gpg" in recipe.files  # `cache vendor` copies it


# NVIDIA's repositories

CUDA = "11.3"


@pytest.fixture(scope="module")
def nvidia(world: Sources, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A repository with the packages of a toolkit, each empty: the address above it, and the file of its key."""
    del world
    folder = tmp_path_factory.mktemp("nvidia")
    below = folder / "repos/ubuntu2004/x86_64"
    names = [part.name for part in make_parts(CUDA, "apt", headers=True)]
    listing = "\n".join(write_deb(below, name, "11.3.109-1", "libnone", pool=".") for name in names)
    write_flat(below, listing, folder / "nvidia.gpg")
    armor = ["gpg", "--enarmor", "--output", below / "3bf863cc.pub", folder / "nvidia.gpg"]
    subprocess.run(armor, check=True, capture_output=True)
    text = (below / "3bf863cc.pub").read_text().replace("ARMORED FILE", "PUBLIC KEY BLOCK")
    (below / "3bf863cc.pub").write_text(text)
    with served(folder / "repos") as address:
        yield address, folder / "nvidia.gpg"


def nvidia_recipe(
    tmp_path: Path, nvidia: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, key: str = ""
) -> Recipe:
    monkeypatch.setattr(repository, "NVIDIA_REPOSITORIES", nvidia[0])
    monkeypatch.setattr(repository, "NVIDIA_KEY", ("3bf863cc.pub", key or fingerprint(nvidia[1])))
    own = repository.make_repository("nvidia/ubuntu2004", tmp_path)
    return make_recipe(tmp_path, cuda=CUDA, gpus=("A100",), pytorch="1.12.1", apt_sources=(own,))


@pytest.mark.programs
def test_a_toolkit_comes_from_nvidias_repository_without_what_its_packages_need(
    tmp_path: Path, world: Sources, nvidia: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = nvidia_recipe(tmp_path, nvidia, monkeypatch)
    means = make_means(tmp_path, replace(world, cuda=""))
    parts = resolve_toolkit(make_task(recipe, means, OPTIONS))
    assert {(part.kind, part.source) for part in parts} == {("deb", "apt-nvidia-ubuntu2004")}
    nvcc = next(part for part in parts if part.name == "cuda-nvcc-11-3")
    assert (nvcc.version, nvcc.path) == ("11.3.109-1", "cuda-nvcc-11-3_11.3.109-1_amd64.deb")
    toolkit = locked_toolkit(recipe, parts)
    assert toolkit
    assert str(toolkit.folder) == "usr/local/cuda-11.3"
    means.fetcher.know(addresses(recipe, None))
    means.fetcher.fetch(parts)


@pytest.mark.programs
def test_a_published_key_counts_by_its_fingerprint_alone(
    tmp_path: Path, world: Sources, nvidia: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = nvidia_recipe(tmp_path, nvidia, monkeypatch, repository.NVIDIA_KEY[1])
    means = make_means(tmp_path, replace(world, cuda=""))
    with pytest.raises(IncompatibleError, match=r"no source of this machine gives CUDA 11\.3") as caught:
        resolve_toolkit(make_task(recipe, means, OPTIONS))
    assert "an apt source has 11.0 to 11.3: could not read the package lists" in caught.value.message
    assert "not signed" in caught.value.message


def test_a_recipe_without_a_source_is_told_of_it(tmp_path: Path, world: Sources) -> None:
    recipe = make_recipe(tmp_path, cuda=CUDA, gpus=("A100",), pytorch="1.12.1")
    with pytest.raises(IncompatibleError, match=r"an apt source has .*: the recipe has no `apt_sources`"):
        resolve_toolkit(make_task(recipe, make_means(tmp_path, world), OPTIONS))


@pytest.mark.programs
def test_a_compiler_among_the_packages_beside_that_of_the_toolkit_is_refused(
    tmp_path: Path, world: Sources, nvidia: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = nvidia_recipe(tmp_path, nvidia, monkeypatch)
    old = make_lock(recipe)
    compiler = replace(old.debs[0], name="cuda-nvcc-11-3")
    debs = tuple(sorted((*old.debs, compiler), key=lambda deb: deb.name))
    with pytest.raises(IncompatibleError, match="`cuda-nvcc-11-3` would come beside the toolkit"):
        lock_as_of(recipe, make_means(tmp_path, world), old=replace(old, debs=debs), options=OPTIONS)
