"""A recipe for 64-bit Arm, locked on a machine of another processor from sources on loopback."""

import dataclasses
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from envbuilder.builder.context import RunnerChoice, RunnerName
from envbuilder.compat.repositories import repositories
from envbuilder.compat.tables.distribution import load_standalones
from envbuilder.core.cache import Sha256
from envbuilder.core.processor import AARCH64, PROCESSORS, X86_64
from envbuilder.lock.changes import check_fresh, diff_locks
from envbuilder.lock.file import lock_text, parse_lock
from envbuilder.lock.model import Artifact, Lock, lock_artifacts
from envbuilder.lock.package_lists import MissedUpdates, missed_updates
from envbuilder.lock.resolve import make_target, resolve_interpreter
from envbuilder.lock.resolve.context import LockOptions
from envbuilder.lock.resolve.wheels import torch_requirement
from envbuilder.plan.make import make, need_buildable, toolkit_for
from envbuilder.plan.model import Plan
from envbuilder.recipe.model import Recipe
from envbuilder.recipe.repository import make_repository
from envbuilder.sources.names import Sources
from tests.support import redist
from tests.support.locks import lock_as_of, make_lock, make_means, make_recipe, make_task
from tests.support.package_sources import PACKAGES, TOOLS, debian, write_index, write_mirror, write_wheel
from tests.support.serving import served

OPTIONS = LockOptions(today=date(2026, 11, 23))
RDMA = {"libibverbs1": ("44.0-2", "libc6"), "ibverbs-providers": ("44.0-2", "libibverbs1")}
GH200 = {"gpus": ("GH200",), "cuda": "13.2", "pytorch": "2.15.0"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sources]:
    """Sources in the shape of the real ones. The mirror has packages for Arm alone, the others have both processors."""
    if not all(shutil.which(program) for program in ("apt-get", "gpg", "gpgconf")):
        pytest.skip("needs apt-get and gpg")
    folder = tmp_path_factory.mktemp("arm")
    patched = {"make": ("4.4", "")}
    write_mirror(
        folder / "mirror", folder / "keyring.gpg", PACKAGES | RDMA, security=patched, processor=AARCH64,
        native=TOOLS,
    )  # fmt: skip
    files, torch = folder / "web/files", []
    projects = [
        write_wheel(files, name, "80.0.0") for name in ("setuptools", "nvidia_ml_py", "onarm", "onx86")
    ]
    needs = ("onarm; platform_machine == 'aarch64'", "onx86; platform_machine == 'x86_64'")
    for one in PROCESSORS:
        tag = f"cp311-cp311-manylinux_2_28_{one.machine}"
        projects.append(write_wheel(files, "numpy", "2.4.0", tag=tag))
        projects.append(write_wheel(files, "torch", "2.15.0", tag=tag, requires=needs))
        torch.append(write_wheel(files, "torch", "2.15.0+cpu", tag=tag))
    write_index(folder / "web/simple", *projects)
    write_index(folder / "web/pytorch/cpu", *torch)
    redist.write_small(folder / "web/redist", "13.2.3", processors=PROCESSORS)
    for python in ("3.12",):
        archive = folder / "web/pythons" / load_standalones().by_name[python].path(AARCH64)
        archive.parent.mkdir(parents=True)
        archive.write_bytes(b"an archive")
    with served(folder / "web") as url:
        yield Sources(
            **debian(folder / "mirror"),
            keyring=folder / "keyring.gpg",
            indexes=(f"{url}simple/",),
            pytorch=f"{url}pytorch/",
            cuda=f"{url}redist/",
            standalone=(f"{url}pythons/",),
        )


def locked(recipe: Recipe, tmp_path: Path, sources: Sources, old: Lock | None = None) -> Lock:
    return lock_as_of(recipe, make_means(tmp_path, sources), old=old, options=OPTIONS)


@pytest.fixture(scope="module")
def gh200(tmp_path_factory: pytest.TempPathFactory, sources: Sources) -> tuple[Recipe, Lock]:
    folder = tmp_path_factory.mktemp("gh200")
    recipe = make_recipe(folder, **GH200)
    return recipe, locked(recipe, folder, sources)


def files(artifacts: tuple[Artifact, ...]) -> list[str]:
    return [one.filename for one in artifacts]


@pytest.mark.programs
def test_every_file_of_a_lock_for_gh200_is_one_for_arm(gh200: tuple[Recipe, Lock]) -> None:
    recipe, lock = gh200
    assert lock.platform == "linux/arm64"
    assert {deb.filename.rpartition("_")[2] for deb in lock.debs} == {"arm64.deb"}
    assert files(lock.wheels) == [
        "numpy-2.4.0-cp311-cp311-manylinux_2_28_aarch64.whl",
        "nvidia_ml_py-80.0.0-py3-none-any.whl",
        "onarm-80.0.0-py3-none-any.whl",
        "setuptools-80.0.0-py3-none-any.whl",
        "torch-2.15.0-cp311-cp311-manylinux_2_28_aarch64.whl",
    ]
    assert {part.path.split("/")[1] for part in lock.toolkit} == {"linux-sbsa"}
    assert "cuda_nvcc" in {part.name for part in lock.toolkit}
    own = lock_artifacts(dataclasses.replace(lock, tools=None))
    assert not [one.path for one in own if "amd64" in one.path or "x86_64" in one.path]
    assert parse_lock(lock_text(lock), "x.lock") == lock
    assert check_fresh(recipe, lock, {}) == ()


@pytest.mark.programs
def test_a_lock_for_gh200_names_the_native_tools_that_build_it(gh200: tuple[Recipe, Lock]) -> None:
    tools = gh200[1].tools
    assert tools is not None
    assert tools.emulator.filename == "qemu-user_10.0_amd64.deb"
    assert [one.name for one in tools.debs] == sorted({*TOOLS} - {"libc6-dev-arm64-cross"})
    assert {one.filename.rpartition("_")[2] for one in tools.debs} == {"amd64.deb"}
    assert {part.path.split("/")[1] for part in tools.toolkit} == {"linux-x86_64"}
    assert {part.name for part in tools.toolkit} == {part.name for part in gh200[1].toolkit}
    assert set(tools.artifacts) <= set(lock_artifacts(gh200[1]))


@pytest.mark.programs
def test_tools_are_part_of_the_keys_of_the_layers_that_they_decide(gh200: tuple[Recipe, Lock]) -> None:
    recipe, lock = gh200
    assert lock.tools is not None
    moved = dataclasses.replace(lock.tools.emulator, sha256=Sha256("0" * 64))
    other = dataclasses.replace(lock, tools=dataclasses.replace(lock.tools, emulator=moved))
    old, new = (plan_of(recipe, one) for one in (lock, other))
    assert old.key != new.key
    steps = zip(old.steps, new.steps, strict=True)
    changed = {type(one).name for one, now in steps if old.step_key(one, "") != new.step_key(now, "")}
    assert changed == {"os", "runtime"}


@pytest.mark.programs
def test_another_qemu_is_shown_among_the_changes_of_a_lock(gh200: tuple[Recipe, Lock]) -> None:
    lock = gh200[1]
    assert lock.tools is not None
    newer = dataclasses.replace(lock.tools.emulator, version="1:11.0")
    other = dataclasses.replace(lock, tools=dataclasses.replace(lock.tools, emulator=newer))
    assert list(map(str, diff_locks(lock, other))) == ["~ tool qemu-user 1:10.0 → 1:11.0"]


@pytest.mark.programs
def test_what_was_locked_for_arm_is_kept_and_can_be_fetched(
    tmp_path: Path, sources: Sources, gh200: tuple[Recipe, Lock]
) -> None:
    (recipe, lock), means = gh200, make_means(tmp_path, sources)
    more = dataclasses.replace(recipe, env=(("A", "1"),))
    silent = dataclasses.replace(sources, debian=(), indexes=(), cuda="")
    assert locked(more, tmp_path, silent, lock) == dataclasses.replace(lock, recipe=more.digest)
    means.fetcher.fetch(lock_artifacts(lock))
    assert not means.fetcher.missing(lock_artifacts(lock))


@pytest.mark.programs
def test_missed_security_updates_are_read_out_of_the_lists_for_arm(
    sources: Sources, gh200: tuple[Recipe, Lock]
) -> None:
    recipe, lock = gh200
    means = make_means(recipe.path.parent, sources)
    older = [dataclasses.replace(one, version="1.0") if one.name == "make" else one for one in lock.debs]
    recipe.path.with_suffix(".lock").write_text(lock_text(dataclasses.replace(lock, debs=tuple(older))))
    found = missed_updates(recipe, means.store, means.runner)
    assert isinstance(found, MissedUpdates)
    assert found.updates == ("make 1.0 → 4.4",)


@pytest.mark.programs
def test_torch_for_the_cpu_comes_from_its_own_index(tmp_path: Path, sources: Sources) -> None:
    recipe = make_recipe(tmp_path, pytorch="2.15.0", platform="linux/arm64")
    torch = locked(recipe, tmp_path, sources).wheels[-1]
    assert torch.source == "pytorch"
    assert torch.path == "cpu/torch/torch-2.15.0+cpu-cp311-cp311-manylinux_2_28_aarch64.whl"


def test_the_index_whose_only_build_is_for_the_cpu_is_asked_for_that(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, pytorch="2.6.0", platform="linux/arm64")
    assert torch_requirement(recipe, make_target(recipe), folders=()) == ("torch==2.6.0", "")


@pytest.mark.programs
def test_nothing_of_a_lock_for_another_processor_is_kept(tmp_path: Path, sources: Sources) -> None:
    plain = make_recipe(tmp_path, pytorch="2.15.0", gpus=("H100",), cuda="13.2")
    recipe = dataclasses.replace(plain, platform="linux/arm64")
    old = dataclasses.replace(make_lock(make_recipe(tmp_path)), recipe=plain.digest)
    lock = locked(recipe, tmp_path, sources, old)
    assert lock.platform == "linux/arm64"
    assert not {one.sha256 for one in old.debs} & {one.sha256 for one in lock.debs}


@pytest.mark.programs
def test_the_standalone_python_is_the_build_for_arm(tmp_path: Path, sources: Sources) -> None:
    recipe = make_recipe(tmp_path, python="3.12", packages=(), platform="linux/arm64")
    found = resolve_interpreter(make_task(recipe, make_means(tmp_path, sources), OPTIONS))
    build = load_standalones().by_name["3.12"]
    assert [(one.sha256, one.path) for one in found] == [(build.aarch64, build.path(AARCH64))]
    assert "aarch64" in build.path(AARCH64)


def test_nvidias_apt_repository_is_the_one_for_arm_servers(tmp_path: Path) -> None:
    nvidia = make_repository("nvidia/ubuntu2204", tmp_path)
    for processor, folder in ((X86_64, "x86_64"), (AARCH64, "sbsa")):
        recipe = make_recipe(tmp_path, apt_sources=(nvidia,), platform=processor.platform)
        (found,) = repositories(recipe, None)
        assert found.url.endswith(f"/cuda/repos/ubuntu2204/{folder}/")


def plan_of(recipe: Recipe, lock: Lock) -> Plan:
    return make(
        recipe, lock, toolkit=toolkit_for(recipe, lock), architectures=("9.0",), lock_text=lock_text(lock),
        start=(), more=(),
    )  # fmt: skip


@pytest.mark.programs
def test_the_plan_of_a_lock_for_arm_is_for_either_runner(gh200: tuple[Recipe, Lock]) -> None:
    plan = plan_of(*gh200)
    assert plan.canonical().splitlines()[1] == "platform linux/arm64"
    need_buildable(plan)
    assert RunnerChoice().runner_for(plan.name) is RunnerName.SANDBOX
    assert RunnerChoice(runner=RunnerName.BUILDKIT).runner_for(plan.name) is RunnerName.BUILDKIT


@pytest.mark.programs
def test_the_toolkit_for_arm_has_the_folder_of_arm_servers(gh200: tuple[Recipe, Lock]) -> None:
    toolkit = toolkit_for(*gh200)
    assert toolkit is not None
    assert "targets/sbsa-linux/include" in dict(toolkit.links)
