"""Recipe → lock: the choices that are made here, what is taken over, and one whole run on sources in a folder."""

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import uv

from envbuilder.compat.tables.distribution import Distribution, load_distributions, load_standalones
from envbuilder.core.cache import Store, sha256_file, sha256_text
from envbuilder.core.errors import FetchError, IncompatibleError, RecipeError, ToolError, UsageError
from envbuilder.core.processor import AARCH64, PROCESSORS, X86_64, Processor
from envbuilder.lock.changes import diff_locks
from envbuilder.lock.file import lock_text, parse_lock
from envbuilder.lock.model import Artifact, lock_artifacts
from envbuilder.lock.package_lists import CONFIGURATION
from envbuilder.lock.resolve import make_target, resolve_interpreter, uv_files, uv_resolver
from envbuilder.lock.resolve.apt import AptSource, open_suite
from envbuilder.lock.resolve.context import LockOptions, ResolveContext
from envbuilder.lock.resolve.debs import os_packages, resolve_debs, upgrade_debs
from envbuilder.lock.resolve.extensions import lock_extensions, store_sources
from envbuilder.lock.resolve.uv_files import choose_wheel
from envbuilder.lock.resolve.wheels import implied_wheels, resolve_wheels, torch_requirement
from envbuilder.lock.source_files import own_files, source_digests
from envbuilder.recipe.model import Extension
from envbuilder.sources.fetch import Fetcher
from envbuilder.sources.http import reachable
from envbuilder.sources.names import Sources
from tests.support import package_sources
from tests.support.locks import EPOCH, lock_as_of, make_lock, make_means, make_recipe, make_task
from tests.support.package_sources import (
    DAY,
    LATER,
    PACKAGES,
    SECURITY,
    UNASKED,
    UPDATES,
    write_index,
    write_wheel,
)
from tests.support.runner import FakeRunner
from tests.support.serving import Quiet, serving, silent_server

world, moved, patched = package_sources.world, package_sources.moved, package_sources.patched
ubuntu = package_sources.ubuntu


class Asked(Exception):  # noqa: N818
    """Some part was resolved, so a source was asked for."""


def make_idle_means(tmp_path: Path) -> ResolveContext:
    """ResolveContext that may not be used: nothing is to be resolved."""

    def ask() -> Sources:
        raise Asked

    store = Store(tmp_path / "cache")
    means = make_means(tmp_path, Sources(debian=()), FakeRunner())
    return replace(means, sources=ask, fetcher=Fetcher(store, ask))


# Which wheel


@pytest.mark.parametrize(
    ("python", "glibc", "filenames", "chosen"),
    [
        ("3.11", "2.36", ["a-1-cp311-cp311-manylinux1_x86_64.whl", "a-1-cp310-cp310-manylinux1_x86_64.whl"], 0),
        ("3.11", "2.36", ["a-1-py3-none-any.whl", "a-1-cp311-cp311-manylinux_2_28_x86_64.whl"], 1),
        ("3.11", "2.36", ["a-1-cp311-cp311-manylinux_2_17_x86_64.whl", "a-1-cp311-cp311-manylinux_2_28_x86_64.whl"], 1),
        ("3.9", "2.31", ["a-1-cp39-cp39-manylinux_2_34_x86_64.whl", "a-1-cp39-cp39-manylinux2014_x86_64.whl"], 1),
        ("3.11", "2.36", ["a-1-cp39-abi3-manylinux_2_17_x86_64.whl", "a-1-py3-none-any.whl"], 0),
        ("3.9", "2.31", ["a-1-2-py3-none-manylinux1_x86_64.whl", "a-1-py3-none-manylinux1_x86_64.whl"], 0),
        ("3.9", "2.31", ["a-1-2-py3-none-manylinux1_x86_64.whl", "a-1-10-py3-none-manylinux1_x86_64.whl"], 1),
    ],
)  # fmt: skip
def test_the_wheel_is_the_one_that_an_installer_there_would_take(
    python: str, glibc: str, filenames: list[str], chosen: int
) -> None:
    assert choose_wheel(filenames, python=python, glibc=glibc, processor=X86_64) == filenames[chosen]


@pytest.mark.parametrize(
    "filename",
    ["a-1-cp312-cp312-manylinux1_x86_64.whl", "a-1-cp311-cp311-musllinux_1_2_x86_64.whl", "a-1-cp311-cp311-manylinux_2_39_x86_64.whl",
     "a-1-cp311-cp311-macosx_11_0_arm64.whl", "a-1-cp311-cp311-manylinux_2_17_aarch64.whl", "a-1-cp311-cp311t-manylinux1_x86_64.whl"],
)  # fmt: skip
def test_a_wheel_for_another_target_is_none(filename: str) -> None:
    assert choose_wheel([filename], python="3.11", glibc="2.36", processor=X86_64) is None


@pytest.mark.parametrize(
    ("filename", "fits"),
    [
        ("a-1-cp311-cp311-manylinux2014_aarch64.whl", True),
        ("a-1-cp311-cp311-manylinux_2_36_aarch64.whl", True),
        ("a-1-cp311-cp311-linux_aarch64.whl", True),
        ("a-1-cp311-cp311-manylinux_2_39_aarch64.whl", False),
        ("a-1-cp311-cp311-manylinux2010_aarch64.whl", False),  # Arm begins with glibc 2.17
        ("a-1-cp311-cp311-manylinux2014_x86_64.whl", False),
    ],
)
def test_a_wheel_for_arm_has_its_tags(filename: str, *, fits: bool) -> None:
    chosen = choose_wheel([filename], python="3.11", glibc="2.36", processor=AARCH64)
    assert chosen == (filename if fits else None)


@pytest.mark.parametrize(
    ("pytorch", "cuda", "requirement", "build"),
    [
        ("2.6.0", "12.4", "torch==2.6.0", ""),  # the package index's own build
        ("2.6.0", "12.6", "torch==2.6.0+cu126", "cu126"),
        (
            "1.13.1",
            "11.2",
            "torch==1.13.1",
            "",
        ),  # no build at all with 11.2: the nearest is the package index's
        ("2.13.0", "", "torch==2.13.0+cpu", "cpu"),
    ],
)
def test_the_build_of_torch_follows_the_toolkit(
    tmp_path: Path, pytorch: str, cuda: str, requirement: str, build: str
) -> None:
    recipe = make_recipe(tmp_path, pytorch=pytorch, cuda=cuda)
    assert torch_requirement(recipe, make_target(recipe), folders=()) == (requirement, build)


def test_a_build_of_torch_in_a_folder_spares_its_index(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    (tmp_path / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    assert torch_requirement(recipe, make_target(recipe), folders=(tmp_path,)) == ("torch==2.13.0+cpu", "")


@pytest.mark.programs
@pytest.mark.parametrize("processor", PROCESSORS, ids=lambda one: one.machine)
@pytest.mark.parametrize("base", load_distributions().rows, ids=lambda row: row.name)
def test_uv_knows_the_machine_of_every_base(base: Distribution, processor: Processor, tmp_path: Path) -> None:
    (tmp_path / "none.in").touch()
    options = ("--quiet", "--offline", "--cache-dir", "cache", "--python-platform")
    platform = uv_files.uv_platform(base.glibc, processor)
    command = [uv.find_uv_bin(), "pip", "compile", "none.in", *options, platform]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)


# The recipe's own files


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"// {name}\n")


def test_sources_and_every_header_near_them_are_locked(tmp_path: Path) -> None:
    write(
        tmp_path, "csrc/a.cpp", "csrc/a.h", "csrc/deep/b.cuh", "csrc/other.cpp", "csrc/notes.txt", "csrc/.git/x.h", "include/c.hpp", "far/d.h"
    )  # fmt: skip
    extension = Extension(name="fused", sources=("csrc/a.cpp",), include=("include",))
    (files,) = own_files(make_recipe(tmp_path, extensions=(extension,))).values()
    assert [file.path for file in files] == ["csrc/a.cpp", "csrc/a.h", "csrc/deep/b.cuh", "include/c.hpp"]
    assert files[0].size == len("// csrc/a.cpp\n")
    assert files[0].sha256 == sha256_text("// csrc/a.cpp\n")


def test_every_missing_source_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a.cpp")
    extension = Extension(name="fused", sources=("a.cpp", "b.cpp", "c.cu"))
    with pytest.raises(RecipeError, match=r"`b\.cpp`.*\n.*`c\.cu`"):
        own_files(make_recipe(tmp_path, extensions=(extension,)))


def test_the_files_come_into_the_store(tmp_path: Path) -> None:
    write(tmp_path, "a.cpp")
    recipe = make_recipe(tmp_path, extensions=(Extension(name="fused", sources=("a.cpp",)),))
    means = make_idle_means(tmp_path)
    locked = lock_extensions(recipe, means, old=None)
    store_sources(recipe, locked, means)
    assert means.store.artifact(source_digests(own_files(recipe))["a.cpp"]).read_text() == "// a.cpp\n"


# What is taken over


def test_a_lock_whose_inputs_stay_is_taken_over_without_asking_anyone(tmp_path: Path) -> None:
    write(tmp_path, "a.cpp")
    before = make_recipe(tmp_path)
    recipe = replace(before, extensions=(Extension(name="fused", sources=("a.cpp",)),), env=(("A", "1"),))
    target = make_target(recipe)
    old = make_lock(before)
    new = lock_as_of(recipe, make_idle_means(tmp_path), target=target, old=old, today=LATER)
    assert (new.debs, new.toolkit, new.wheels, new.epoch) == (old.debs, old.toolkit, old.wheels, old.epoch)
    assert new.recipe == recipe.digest
    assert [extension.name for extension in new.extensions] == ["fused"]


def test_no_second_torch_comes_beside_that_of_the_image(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, pytorch="", keeps_torch=True)
    with pytest.raises(IncompatibleError, match="`packages` require torch, and `pytorch: image` has that of"):
        lock_as_of(recipe, make_idle_means(tmp_path), target=make_target(recipe), old=make_lock(recipe))


@pytest.mark.parametrize(
    "changes",
    [{"packages": ("numpy>=2", "scipy")}, {"apt": ("git",)}, {"gcc": "11"}],
    ids=["packages", "apt", "gcc"],
)
def test_a_part_whose_inputs_changed_is_resolved(tmp_path: Path, changes: dict[str, object]) -> None:
    before, after = make_recipe(tmp_path), make_recipe(tmp_path, **changes)
    target = make_target(before)
    with pytest.raises(Asked):
        lock_as_of(after, make_idle_means(tmp_path), target=target, old=make_lock(before))


@pytest.mark.parametrize(
    "options",
    [LockOptions(today=DAY, upgrade=True), LockOptions(today=DAY, upgrade_only=("NumPy",)), LockOptions(today=DAY, upgrade_only=("make",)),
     LockOptions(today=DAY, before=DAY)],
)  # fmt: skip
def test_a_wish_for_newer_or_older_packages_is_followed(tmp_path: Path, options: LockOptions) -> None:
    recipe = make_recipe(tmp_path)
    target = make_target(recipe)
    with pytest.raises(Asked):
        lock_as_of(recipe, make_idle_means(tmp_path), target=target, old=make_lock(recipe), options=options)


def test_upgrading_what_the_lock_does_not_hold_is_refused(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    target = make_target(recipe)
    options = LockOptions(today=DAY, upgrade_only=("numpy", "numpi"))
    with pytest.raises(UsageError, match="no `numpi`"):
        lock_as_of(recipe, make_idle_means(tmp_path), target=target, old=make_lock(recipe), options=options)


def test_an_environment_with_cuda_holds_what_nccl_and_its_start_need(tmp_path: Path) -> None:
    rdma = {"libibverbs1", "ibverbs-providers"}
    with_cuda, without = make_recipe(tmp_path, cuda="12.4", pytorch="2.6.0"), make_recipe(tmp_path)
    assert rdma <= set(os_packages(with_cuda))
    assert not rdma & set(os_packages(without))
    assert "nvidia-ml-py" in implied_wheels(with_cuda, None)
    assert implied_wheels(without, None) == ()


def test_a_toolkit_that_is_laid_out_from_other_parts_now_is_resolved(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, cuda="12.4", pytorch="2.6.0")
    target = make_target(recipe)
    old = make_lock(recipe)
    taken = lock_as_of(recipe, make_idle_means(tmp_path), target=target, old=old)
    assert taken.toolkit == old.toolkit
    with pytest.raises(Asked):
        lock_as_of(
            recipe, make_idle_means(tmp_path), target=target, old=replace(old, toolkit=old.toolkit[1:])
        )


def test_a_suite_that_no_table_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IncompatibleError, match="debian/potato"):
        make_target(make_recipe(tmp_path, base="debian/potato"))


def test_without_a_mirror_the_hint_says_how_to_name_one(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    sources = Sources(debian=())
    means = make_means(tmp_path, sources, FakeRunner())
    with pytest.raises(FetchError) as caught:
        lock_as_of(recipe, means)
    assert "ENVBUILDER_DEBIAN_MIRROR" in caught.value.hint


def test_without_the_keyring_nothing_is_trusted(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    mirrors = ("http://mirror.invalid/debian/",)
    sources = Sources(debian=mirrors, security=mirrors, keyring=tmp_path / "none.gpg")
    means = make_means(tmp_path, sources, FakeRunner())
    with pytest.raises(ToolError, match=r"none\.gpg"):
        lock_as_of(recipe, means)


# A whole run: apt and uv on a mirror and an index that are folders


@pytest.mark.programs
def test_a_recipe_is_locked_from_a_mirror_an_index_and_a_folder(tmp_path: Path, world: Sources) -> None:
    recipe, means = make_recipe(tmp_path, apt=("git",)), make_means(tmp_path, world)
    lock = lock_as_of(recipe, means)
    assert {deb.name for deb in lock.debs} == PACKAGES.keys() - UNASKED
    git = next(deb for deb in lock.debs if deb.name == "git")
    file = Path(unquote(urlsplit(world.debian[0]).path)) / "pool/main/git_2.39.5-0+deb12u2_amd64.deb"
    assert git == Artifact(
        kind="deb",
        name="git",
        version="1:2.39.5-0+deb12u2",
        sha256=sha256_file(file),
        size=file.stat().st_size,
        source="debian",
        path="pool/main/git_2.39.5-0+deb12u2_amd64.deb",
    )
    assert [(wheel.source, wheel.path) for wheel in lock.wheels] == [
        ("pypi", "filelock/filelock-3.0.0-py3-none-any.whl"),
        ("pypi", "numpy/numpy-2.4.0-cp311-cp311-manylinux_2_28_x86_64.whl"),
        ("pypi", "setuptools/setuptools-80.0.0-py3-none-any.whl"),
        ("pytorch", "cpu/torch/torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"),
    ]
    torch = lock.wheels[-1]
    assert torch.size == (world.folders[0] / torch.filename).stat().st_size
    assert lock.epoch == EPOCH
    assert parse_lock(lock_text(lock), "test.lock") == lock
    assert str(tmp_path) not in lock_text(lock)
    # apt reads the lists once, and not for each question.
    assert len(list(means.store.resolver("apt").glob("*/srcpkgcache.bin"))) == 1


@pytest.mark.programs
def test_a_large_local_wheel_is_locked_by_its_own_bytes(
    tmp_path: Path, world: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uv_files, "LARGE", 100)
    recipe, means = make_recipe(tmp_path), make_means(tmp_path, world)
    lock = lock_as_of(recipe, means)
    torch = next(wheel for wheel in lock.wheels if wheel.name == "torch")
    assert torch.sha256 == sha256_file(world.folders[0] / torch.filename)
    assert torch.size == (world.folders[0] / torch.filename).stat().st_size
    assert "filelock" in [wheel.name for wheel in lock.wheels]

    # What is shown of it is written once, and again for another file under its name.
    def shown() -> dict[Path, int]:
        return {path: path.stat().st_ino for path in means.store.resolver("uv").glob("shown/*")}

    before = shown()
    assert before
    assert lock_as_of(recipe, means) == lock
    assert shown() == before
    os.utime(world.folders[0] / torch.filename, (1, 1))
    assert lock_as_of(recipe, means) == lock
    assert len(shown()) == len(before) + 1


@pytest.mark.programs
def test_what_was_locked_can_be_fetched(tmp_path: Path, world: Sources) -> None:
    recipe, means = make_recipe(tmp_path), make_means(tmp_path, world)
    lock = lock_as_of(recipe, means)
    means.fetcher.fetch(lock.wheels)
    assert not means.fetcher.missing(lock.wheels)


@pytest.mark.programs
def test_other_packages_keep_their_versions_until_an_upgrade(tmp_path: Path, world: Sources) -> None:
    means, target = make_means(tmp_path, world), make_target(make_recipe(tmp_path))
    bounded = make_recipe(tmp_path, packages=("numpy",), constraints=("numpy<2.3",))
    old = lock_as_of(bounded, means, target=target)
    loose = make_recipe(tmp_path, packages=("numpy",))
    kept = lock_as_of(loose, means, target=target, old=old, today=LATER)
    assert kept.wheels == old.wheels
    assert kept.epoch == old.epoch
    moved = lock_as_of(loose, means, target=target, old=kept, today=LATER, upgrade_only=("numpy",))
    assert [wheel.version for wheel in moved.wheels if wheel.name == "numpy"] == ["2.4.0"]
    assert moved.epoch == old.epoch
    new = lock_as_of(loose, means, target=target, old=kept, today=LATER, upgrade=True)
    assert new.epoch > old.epoch
    assert lock_as_of(loose, means, target=target, old=new, today=date(2028, 1, 1), upgrade=True) == new


@pytest.mark.programs
def test_a_version_is_kept_that_another_index_has_for_another_python_alone(
    tmp_path: Path, world: Sources
) -> None:
    """uv drops the options for such a version."""
    write_index(
        tmp_path / "more",
        write_wheel(tmp_path / "files", "numpy", "2.2.0", tag="cp310-cp310-manylinux_2_17_x86_64"),
    )
    sources = replace(world, indexes=(*world.indexes, f"{(tmp_path / 'more').as_uri()}/"))
    means, target = make_means(tmp_path, sources), make_target(make_recipe(tmp_path))
    strict = make_recipe(tmp_path, packages=("numpy==2.2.0",))
    old = lock_as_of(strict, means, target=target)
    kept = lock_as_of(make_recipe(tmp_path, packages=("numpy",)), means, target=target, old=old, today=LATER)
    assert kept.wheels == old.wheels


def versions(debs: Sequence[Artifact]) -> dict[str, str]:
    return {deb.name: deb.version for deb in debs}


@pytest.mark.programs
@pytest.mark.parametrize(
    ("names", "changes"),
    [
        (("make",), {"make": "4.4"}),
        (("git",), {"git": "1:2.40-1", "perl": "5.36", "libc6": "2.36-10", "libc6-dev": "2.36-10"}),
        (("binutils",), {}),
    ],
    ids=["alone", "with what it needs", "nothing newer"],
)
def test_an_upgrade_of_some_packages_leaves_the_others_where_they_are(
    tmp_path: Path, world: Sources, moved: Sources, names: tuple[str, ...], changes: dict[str, str]
) -> None:
    recipe, before = make_recipe(tmp_path, apt=("git",)), make_means(tmp_path, world)
    target = make_target(recipe)
    old = lock_as_of(recipe, before, target=target)
    before.fetcher.fetch(old.debs)
    options = LockOptions(today=LATER, upgrade_only=names)
    new = lock_as_of(recipe, make_means(tmp_path, moved), target=target, old=old, options=options)
    assert versions(new.debs) == versions(old.debs) | changes
    assert (new.wheels, new.epoch) == (old.wheels, old.epoch)


@pytest.mark.programs
def test_updates_come_from_the_pockets_unless_the_recipe_does_without(
    tmp_path: Path, patched: Sources
) -> None:
    means, options = make_means(tmp_path, patched), LockOptions(today=DAY)
    recipe = make_recipe(tmp_path, apt=("git",))
    debs = resolve_debs(make_task(recipe, means, options))
    newest = PACKAGES | SECURITY | UPDATES | {"make": ("4.4", "")}
    assert versions(debs) == {name: version for name, (version, _) in newest.items() if name not in UNASKED}
    assert {deb.name for deb in debs if deb.source == "debian-security"} == {"git", "libc6", "libc6-dev"}
    git = next(deb for deb in debs if deb.name == "git")
    assert git.path == "pool/updates/main/git_2.39.5-0+deb12u3_amd64.deb"
    means.fetcher.fetch(debs)
    plain = make_recipe(tmp_path, apt=("git",), security=False)
    debs = resolve_debs(make_task(plain, means, options))
    assert versions(debs)["git"] == PACKAGES["git"][0]
    assert {deb.source for deb in debs} == {"debian"}


NOBLE = {"base": "ubuntu/noble", "python": "3.12", "gcc": "13"}


@pytest.mark.programs
@pytest.mark.parametrize("before", [None, DAY])
def test_an_ubuntu_is_locked_from_all_pockets_and_components_of_its_archive(
    tmp_path: Path, ubuntu: Sources, before: date | None
) -> None:
    means, recipe = make_means(tmp_path, ubuntu), make_recipe(tmp_path, **NOBLE)
    options = LockOptions(today=LATER, before=before)
    debs = resolve_debs(make_task(recipe, means, options))
    newest = package_sources.UBUNTU | package_sources.UBUNTU_UPDATES | package_sources.UBUNTU_SECURITY
    assert versions(debs) == {name: version for name, (version, _) in newest.items()}
    assert {deb.source for deb in debs} == {"ubuntu"}
    ninja = next(deb for deb in debs if deb.name == "ninja-build")
    assert ninja.path == "pool/universe/ninja-build_1.11.1-2ubuntu0.1_amd64.deb"
    means.fetcher.fetch(debs)


@pytest.mark.programs
def test_a_security_upgrade_of_an_ubuntu_leaves_other_updates(tmp_path: Path, ubuntu: Sources) -> None:
    means, plain = make_means(tmp_path, ubuntu), make_recipe(tmp_path, **NOBLE, security=False)
    target = make_target(plain)
    old = resolve_debs(make_task(plain, means, LockOptions(today=DAY), target))
    assert versions(old)["gcc-13"] == package_sources.UBUNTU["gcc-13"][0]
    options = LockOptions(today=LATER, security_only=True)
    new = upgrade_debs(make_task(make_recipe(tmp_path, **NOBLE), means, options, target), old)
    changes = {name: version for name, (version, _) in package_sources.UBUNTU_SECURITY.items()}
    assert versions(new) == versions(old) | changes


def test_the_hint_names_the_setting_of_ubuntus_keys(tmp_path: Path, world: Sources) -> None:
    recipe = make_recipe(tmp_path, **NOBLE)
    means = make_means(tmp_path, replace(world, ubuntu_keyring=tmp_path / "none.gpg"))
    with pytest.raises(ToolError, match=r"none\.gpg") as caught:
        resolve_debs(make_task(recipe, means, LockOptions(today=DAY)))
    assert "ENVBUILDER_UBUNTU_KEYRING" in caught.value.hint


def test_a_day_without_a_service_that_keeps_it_is_an_error(tmp_path: Path, world: Sources) -> None:
    recipe, means = make_recipe(tmp_path), make_means(tmp_path, replace(world, snapshot=""))
    with pytest.raises(FetchError, match="no service with snapshots of Debian") as caught:
        resolve_debs(make_task(recipe, means, LockOptions(today=LATER, before=DAY)))
    assert "ENVBUILDER_DEBIAN_SNAPSHOT" in caught.value.hint


@pytest.mark.programs
def test_a_security_upgrade_moves_what_has_an_update_and_nothing_else(
    tmp_path: Path, world: Sources, patched: Sources
) -> None:
    recipe, before = make_recipe(tmp_path, apt=("git",)), make_means(tmp_path, world)
    target = make_target(recipe)
    old = lock_as_of(recipe, before, target=target)
    before.fetcher.fetch(old.debs)
    options, means = LockOptions(today=LATER, security_only=True), make_means(tmp_path, patched)
    new = lock_as_of(recipe, means, target=target, old=old, options=options)
    assert versions(new.debs) == versions(old.debs) | {
        name: version for name, (version, _) in SECURITY.items() if name not in UNASKED
    }
    assert (new.wheels, new.epoch) == (old.wheels, old.epoch)
    assert lock_as_of(recipe, means, target=target, old=new, options=options) == new


def test_a_security_upgrade_of_a_recipe_without_security_is_refused(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, security=False)
    target = make_target(recipe)
    with pytest.raises(UsageError, match="`security: false`"):
        lock_as_of(
            recipe, make_idle_means(tmp_path), target=target, old=make_lock(recipe), security_only=True
        )


def test_without_a_mirror_of_security_updates_nothing_is_locked(tmp_path: Path, world: Sources) -> None:
    recipe = make_recipe(tmp_path)
    with pytest.raises(FetchError, match="`bookworm-security` is needed") as caught:
        lock_as_of(recipe, make_means(tmp_path, replace(world, security=())))
    assert "ENVBUILDER_DEBIAN_SECURITY" in caught.value.hint
    assert "`security: false`" in caught.value.hint


@pytest.mark.programs
def test_a_security_archive_that_cannot_be_read_is_named_with_its_setting(
    tmp_path: Path, world: Sources
) -> None:
    recipe, nowhere = make_recipe(tmp_path), f"{(tmp_path / 'nowhere').as_uri()}/"
    with pytest.raises(FetchError, match="nowhere") as caught:
        lock_as_of(recipe, make_means(tmp_path, replace(world, security=(nowhere,))))
    assert "ENVBUILDER_DEBIAN_SECURITY" in caught.value.hint
    assert "ENVBUILDER_DEBIAN_MIRROR" not in caught.value.hint


@pytest.mark.programs
def test_a_lock_can_be_made_as_of_a_day(tmp_path: Path, world: Sources, moved: Sources) -> None:
    """Of the package index here no file has a date, and uv passes over those: the wheels are not asked for anew."""
    recipe = make_recipe(tmp_path, apt=("git",))
    target = make_target(recipe)
    now = lock_as_of(recipe, make_means(tmp_path, moved), target=target, today=LATER)
    assert versions(now.debs)["git"] == "1:2.40-1"
    then = replace(moved, keyring=Path(moved.keyring).with_name("old.gpg"), debian=(), security=())
    debs = resolve_debs(
        make_task(recipe, make_means(tmp_path, then), LockOptions(today=LATER, before=DAY), target)
    )
    assert versions(debs) == {name: version for name, (version, _) in PACKAGES.items() if name not in UNASKED}


@contextlib.contextmanager
def dated_index(wheels: Mapping[Path, str]) -> Iterator[str]:
    """An index as PEP 691 and PEP 700 have it, which knows when each wheel was uploaded; gives its address."""

    class Handler(Quiet):
        def do_GET(self) -> None:
            name = self.path.rstrip("/").rpartition("/")[2]
            content = {wheel.name: wheel.read_bytes() for wheel in wheels}.get(name) or self.page(name)
            is_page = self.path.startswith("/simple/")
            kind = "application/vnd.pypi.simple.v1+json" if is_page else "application/octet-stream"
            self.reply(200, content, {"Content-Type": kind})

        do_HEAD = do_GET

        def page(self, name: str) -> bytes:
            files = [
                {
                    "filename": wheel.name,
                    "url": f"/files/{wheel.name}",
                    "hashes": {"sha256": sha256_file(wheel)},
                    "size": wheel.stat().st_size,
                    "upload-time": f"{day}T12:00:00Z",
                }
                for wheel, day in wheels.items()
                if wheel.name.startswith(f"{name}-")
            ]
            return json.dumps({"meta": {"api-version": "1.1"}, "name": name, "files": files}).encode()

    with serving(Handler) as host:
        yield f"http://{host}/simple/"


@pytest.mark.programs
@pytest.mark.parametrize(("before", "numpy"), [(None, "2.5.0"), (LATER, "2.5.0"), (DAY, "2.4.0")])
def test_wheels_are_those_of_the_day_that_is_asked_for(
    tmp_path: Path, world: Sources, before: date | None, numpy: str
) -> None:
    files = tmp_path / "files"
    wheels = {
        write_wheel(files, "numpy", "2.4.0"): "2026-11-20",
        write_wheel(files, "numpy", "2.5.0"): str(DAY),  # of that day, so not of the time before it
        write_wheel(files, "setuptools", "80.0.0"): "2026-01-01",
        write_wheel(files, "filelock", "3.0.0"): "2026-01-01",
    }
    recipe = make_recipe(tmp_path)
    with dated_index(wheels) as index:
        means = make_means(tmp_path, replace(world, indexes=(index,)))
        found = resolve_wheels(make_task(recipe, means, LockOptions(today=DAY, before=before)))
    assert {one.name: one.version for one in found.artifacts if one.name in ("numpy", "torch")} == {
        "numpy": numpy,
        "torch": "2.13.0+cpu",  # of a folder, whose files have no day
    }


@pytest.mark.programs
def test_a_day_that_the_archive_of_all_days_does_not_have_is_said(tmp_path: Path, moved: Sources) -> None:
    recipe = make_recipe(tmp_path)
    with pytest.raises(FetchError, match="package lists of `bookworm`") as caught:
        resolve_debs(
            make_task(recipe, make_means(tmp_path, moved), LockOptions(today=LATER, before=date(2001, 1, 1)))
        )
    assert "ENVBUILDER_DEBIAN_SNAPSHOT" in caught.value.hint


@pytest.mark.programs
@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"gcc": "9"}, "no `gcc-9`", "it has gcc-12"),
        ({"libxcrypt": "4.5"}, "libxcrypt 4.5 is pinned", r'libxcrypt: "4\.4"'),
        ({"apt": ("gti",)}, "no package `gti`", "did you mean `git`"),
        ({"apt": ("libold1",)}, "no package `libold1`", "did you mean `libold1t64`"),
        ({"packages": ("numpy>=3",)}, "no set of packages", "loosen"),
        ({"packages": ("newglibc",)}, "no set of packages", "has a wheel for this Python$"),
        (
            {"packages": ("numpy", "NewGlibc==1.0")},
            "no set of packages",
            r"; or build it as an extension: `extensions: \[\{name: newglibc, sdist: NewGlibc==1.0\}\]`$",
        ),
        (
            {"packages": ("No_such>=2", "numpy")},
            r"^no package index knows `No_such` \(\S+\)\n",
            "that pip installs",
        ),
    ],
    ids=["gcc", "libxcrypt", "apt", "renamed", "no-version", "newer-glibc", "no-wheel", "no-package"],
)
def test_what_the_sources_do_not_have_is_said(
    tmp_path: Path, world: Sources, changes: dict[str, object], message: str, hint: str
) -> None:
    recipe = make_recipe(tmp_path, **changes)
    with pytest.raises(IncompatibleError, match=message) as caught:
        lock_as_of(recipe, make_means(tmp_path, world))
    assert re.search(hint, caught.value.hint)


@pytest.mark.programs
@pytest.mark.parametrize(
    ("packages", "name", "pythons"),
    [
        ((), "torch 2.13.0", "3.10, 3.11, 3.12, 3.13, 3.14"),
        (("torchvision==0.28.0",), "torchvision 0.28.0", "3.11, 3.12, 3.13, 3.14"),
    ],
)
def test_a_torch_without_a_wheel_is_answered_with_the_pythons_that_have_one(
    tmp_path: Path, world: Sources, packages: tuple[str, ...], name: str, pythons: str
) -> None:
    sources, _ = with_python(world, tmp_path, "3.10")
    recipe = make_recipe(tmp_path, python="3.10" if packages else "3.9", packages=packages)
    for package, version in (("torch", "2.13.0+cpu"), ("torchvision", "0.28.0")):
        write_wheel(sources.folders[0], package, version, tag="cp311-cp311-manylinux_2_28_x86_64")
    target, means = make_target(recipe), make_means(tmp_path, sources)
    with pytest.raises(IncompatibleError) as caught:
        resolve_wheels(make_task(recipe, means, target=target))
    assert f"or take a Python for which {name} has wheels: {pythons}" in caught.value.hint
    assert "sdist" not in caught.value.hint


@pytest.mark.programs
def test_a_mirror_without_the_suite_is_an_error_of_fetching(tmp_path: Path, world: Sources) -> None:
    recipe = make_recipe(tmp_path, base="debian/bullseye", python="3.9", gcc="9")
    with pytest.raises(FetchError, match="package lists of `bullseye`"):
        lock_as_of(recipe, make_means(tmp_path, world))


@pytest.fixture(params=[401, 403])
def guarded(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address, with a password in it, of a server that refuses everybody."""

    class Handler(Quiet):
        def do_GET(self) -> None:
            self.reply(request.param, headers={"WWW-Authenticate": 'Basic realm="all"'})

    with serving(Handler) as host:
        yield f"http://reader:s3cret@{host}/"


@pytest.mark.programs
@pytest.mark.parametrize("source", ["debian", "indexes", "pytorch"])
def test_a_source_that_refuses_the_password_is_not_one_without_the_package(
    tmp_path: Path, world: Sources, guarded: str, source: str
) -> None:
    changed = {"folders": (), "pytorch": guarded}  # the package index has torch, and not the build for CPUs
    changed |= {} if source == "pytorch" else {source: (guarded,)}
    recipe, means = make_recipe(tmp_path), make_means(tmp_path, replace(world, **changed))
    with pytest.raises(FetchError) as caught:
        lock_as_of(recipe, means)
    assert "~/.netrc" in caught.value.hint
    assert "s3cret" not in caught.value.message
    assert "127.0.0.1" in caught.value.message


@pytest.mark.programs
def test_a_build_whose_only_index_does_not_answer_is_named(tmp_path: Path, world: Sources) -> None:
    closed = replace(world, folders=(), pytorch="http://127.0.0.1:1/")
    recipe = make_recipe(tmp_path)
    with pytest.raises(
        FetchError, match=r"own index alone, and http://127\.0\.0\.1:1/cpu/ does not answer"
    ) as caught:
        lock_as_of(recipe, make_means(tmp_path, closed))
    assert caught.value.message.startswith("torch 2.13.0+cpu is in")
    assert re.search("ENVBUILDER_PYTORCH_INDEX .* ENVBUILDER_FOLDERS ", caught.value.hint)


def test_apt_waits_briefly_and_the_sources_that_are_silent_are_known(tmp_path: Path) -> None:
    one, two = (
        AptSource(
            name=name, url=f"http://someone:secret@{name}/debian/", suite="bookworm", components=("main",), keyrings=(), hint=""
        )
        for name in ("one", "two")
    )  # fmt: skip
    answered = "Get:1 http://one/debian bookworm InRelease [151 kB]\n"
    runner = FakeRunner({"apt-config": 'Acquire::http::Timeout "60";\n', "apt-get": answered})
    asked: list[Callable[[], Iterable[str]]] = []

    def waiting(pending: Callable[[], Iterable[str]]) -> contextlib.AbstractContextManager[None]:
        asked.append(pending)
        return contextlib.nullcontext()

    context = replace(make_idle_means(tmp_path), runner=runner, waiting=waiting)
    folder = context.store.resolver("apt") / "lists"
    open_suite(make_task(make_recipe(tmp_path), context), (one, two), folder)
    assert list(asked[0]()) == ["http://two/debian"]
    settings = (folder / CONFIGURATION).read_text()
    own, machine = map(settings.index, ('Acquire::http::Timeout "10";', 'Acquire::http::Timeout "60";'))
    assert own < machine  # apt takes the last


def test_apt_keeps_its_cache_while_the_sources_are_the_same(tmp_path: Path) -> None:
    """apt makes it anew for a list of sources that is younger, and at the end of each `update`."""
    context = replace(make_idle_means(tmp_path), runner=(runner := FakeRunner()))
    task = make_task(make_recipe(tmp_path), context, LockOptions(today=DAY, upgrade=True))
    folder, written = context.store.resolver("apt") / "lists", set[int]()
    for components in (("main",), ("main",), ("main", "contrib")):
        source = AptSource(
            name="one",
            url="http://one/debian/",
            suite="bookworm",
            components=components,
            keyrings=(),
            hint="",
        )
        open_suite(task, (source,), folder)
        written.add((folder / "sources.list").stat().st_ino)
        assert components[-1] in (folder / "sources.list").read_text()
    assert len(written) == 2
    updates = [command.argv for command in runner.commands if "update" in command.argv]
    assert len(updates) == 3
    assert all("pkgCacheFile::Generate=false" in argv for argv in updates)


def test_while_uv_runs_the_indexes_that_do_not_answer_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachable, "SECONDS", 0.1)
    with silent_server() as (place, _):
        index = f"http://someone:secret@{place}/simple/"
        sources = Sources(debian=(), indexes=(f"{tmp_path.as_uri()}/", index))
        asked: list[str] = []

        def waiting(pending: Callable[[], Iterable[str]]) -> contextlib.AbstractContextManager[None]:
            asked.extend(pending())
            raise Asked

        context = replace(make_idle_means(tmp_path), sources=lambda: sources, waiting=waiting)
        question = uv_files.Question(python="3.11", glibc="2.36", requirements=("einops",))
        with pytest.raises(Asked):
            uv_resolver.Uv(make_task(make_recipe(tmp_path), context)).ask(question)
    assert asked == [f"http://{place}/simple/"]


@pytest.mark.programs
def test_a_mirror_that_another_key_signed_is_refused(tmp_path: Path, world: Sources) -> None:
    stranger = replace(world, keyring=tmp_path / "empty.gpg")
    stranger.keyring.touch()
    recipe = make_recipe(tmp_path)
    with pytest.raises(FetchError, match="package lists of `bookworm`"):
        lock_as_of(recipe, make_means(tmp_path, stranger))


# The standalone Python


def with_python(world: Sources, folder: Path, python: str) -> tuple[Sources, Path]:
    """Return sources with a torch for this Python and a mirror of its standalone build, and the build's file."""
    tag = f"cp{python.replace('.', '')}"
    requires = ("filelock", "setuptools>=77")
    write_wheel(
        folder / "wheels", "torch", "2.13.0+cpu", tag=f"{tag}-{tag}-manylinux_2_28_x86_64", requires=requires
    )
    archive = folder / "pythons" / load_standalones().by_name[python].path(X86_64)
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"an archive")
    mirror = f"{(folder / 'pythons').as_uri()}/"
    return replace(world, folders=(folder / "wheels",), standalone=(mirror,)), archive


@pytest.mark.programs
def test_a_python_that_the_suite_lacks_is_locked_as_a_standalone_build(
    tmp_path: Path, world: Sources
) -> None:
    sources, _ = with_python(world, tmp_path, "3.12")
    recipe = make_recipe(tmp_path, python="3.12", packages=())
    build = load_standalones().by_name["3.12"]
    options = LockOptions(today=DAY)
    lock = lock_as_of(recipe, make_means(tmp_path, sources), options=options)
    assert lock.interpreter is not None
    assert asdict(lock.interpreter) == {
        "kind": "archive", "name": "cpython", "version": f"{build.version}+{build.release}", "sha256": build.x86_64,
        "size": len(b"an archive"), "source": "python-build-standalone", "path": build.path(X86_64),
    }  # fmt: skip
    assert lock.interpreter in lock_artifacts(lock)
    assert not [deb.name for deb in lock.debs if deb.name.startswith("python")]
    assert parse_lock(lock_text(lock), "x.lock") == lock
    # A second lock asks nobody, and one for the suite's own Python does without.
    kept = lock_as_of(recipe, make_idle_means(tmp_path), old=lock, options=options)
    assert kept == lock
    usual = make_recipe(tmp_path)
    changed = lock_as_of(usual, make_means(tmp_path, world), old=lock, options=options)
    assert changed.interpreter is None
    assert "python3.11" in {deb.name for deb in changed.debs}
    assert [str(change) for change in diff_locks(lock, changed) if change.name == "cpython"] == [
        f"- cpython {build.version}+{build.release}"
    ]


@pytest.mark.programs
def test_a_newer_build_of_the_tables_is_taken_with_an_upgrade_alone(tmp_path: Path, world: Sources) -> None:
    sources, archive = with_python(world, tmp_path, "3.12")
    recipe = make_recipe(tmp_path, python="3.12", packages=())
    target, options = make_target(recipe), LockOptions(today=DAY)
    lock = lock_as_of(recipe, make_means(tmp_path, sources), target=target, options=options)
    assert target.standalone is not None
    newer = replace(target, standalone=replace(target.standalone, version="3.12.99", release="20270101"))
    assert newer.standalone is not None
    other = archive.parents[1] / newer.standalone.path(X86_64)
    other.parent.mkdir()
    other.write_bytes(b"a newer archive")
    means = make_means(tmp_path, sources)
    assert lock_as_of(recipe, means, target=newer, old=lock, options=options).interpreter == lock.interpreter
    moved_on = lock_as_of(
        recipe, means, target=newer, old=lock, options=replace(options, upgrade_only=("cpython",))
    )
    assert moved_on.interpreter is not None
    assert (moved_on.interpreter.version, moved_on.interpreter.size) == ("3.12.99+20270101", 15)
    assert (moved_on.debs, moved_on.wheels) == (lock.debs, lock.wheels)


def test_a_build_after_the_day_that_is_asked_for_is_refused(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, python="3.12")
    options = LockOptions(today=DAY, before=date(2024, 1, 1))
    with pytest.raises(
        IncompatibleError, match=r"the tables have Python 3\.12\.\d+ of .*, which is not before 2024-01-01"
    ):
        resolve_interpreter(make_task(recipe, make_idle_means(tmp_path), options))


def test_a_mirror_without_the_build_is_named(tmp_path: Path, world: Sources) -> None:
    sources, archive = with_python(world, tmp_path, "3.12")
    archive.unlink()
    recipe = make_recipe(tmp_path, python="3.12")
    with pytest.raises(
        FetchError, match=r"(?s)could not ask for the size of a file.*pythons/\d+/cpython-3\.12"
    ):
        resolve_interpreter(make_task(recipe, make_means(tmp_path, sources), LockOptions(today=DAY)))


def test_a_build_in_a_folder_needs_no_mirror(tmp_path: Path, world: Sources) -> None:
    sources, archive = with_python(world, tmp_path, "3.12")
    folder = replace(sources, folders=(archive.parent,), standalone=())
    recipe = make_recipe(tmp_path, python="3.12")
    (found,) = resolve_interpreter(make_task(recipe, make_means(tmp_path, folder), LockOptions(today=DAY)))
    assert found.size == len(b"an archive")


@pytest.mark.parametrize("base", ["debian/bullseye", "debian/bookworm", "debian/trixie"])
def test_each_suite_has_its_own_python_and_a_build_of_each_other(tmp_path: Path, base: str) -> None:
    own = load_distributions().by_name[base].python
    for python in load_standalones().by_name:
        found = make_target(make_recipe(tmp_path, base=base, python=python)).standalone
        assert (found.python if found else own) == python
