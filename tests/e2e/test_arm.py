"""An environment for 64-bit Arm, built on x86-64 with an emulator and native compilers."""

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuilder.artifacts.oci.reader import read_tree
from envbuilder.artifacts.sif import processor_in, read_sif
from envbuilder.core.cache import Store, save_text, sha256_file
from envbuilder.core.processor import AARCH64, X86_64
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.runners.enter_sandbox import FORMATS, machine_has, register
from envbuilder.verify.compare import BUILDER_ADDS, sif_manifest
from tests.support.conditions import USER, Conditions
from tests.support.registries import registry
from tests.support.rendered import build_definition, build_dockerfile, make_base, need_equal
from tests.support.sdists import make_arm
from tests.support.tiny import make_lock
from tests.support.two_runners import need_the_same
from tests.support.workbench import (
    CACHE,
    ENVBUILDER,
    NO_ENGINE,
    ROOT,
    Built,
    attempt,
    build,
    builds_in,
    cache_with_artifacts,
    fetch_packages,
    open_folder,
    run,
)

pytestmark = pytest.mark.builds


@pytest.fixture(scope="module")
def recipe() -> Iterator[Path]:
    fetch_packages("gh200", kinds=("deb",))
    with open_folder() as folder:
        yield make_arm(folder)


@pytest.fixture(scope="module")
def arm(recipe: Path) -> Built:
    env = NO_ENGINE | {"ENVBUILDER_FOLDERS": str(recipe.parent.parent / "files")}
    return build(str(recipe), recipe.parent.parent / "out", env=env)


def test_an_environment_for_arm_is_built_and_tested_and_the_machine_stays_as_it_was(arm: Built):
    """The test of the recipe imported `fast`."""
    assert processor_in(arm.sif) == AARCH64
    (listed,) = json.loads((arm.layout / "index.json").read_text())["manifests"]
    assert listed["platform"] == {"os": "linux", "architecture": "arm64"}
    log = arm.sif.with_suffix(".log").read_text()
    assert "end: test in the SIF: python -c" in log
    assert not list(FORMATS.glob("envbuilder-*"))


def test_every_program_of_the_environment_is_for_arm(arm: Built, tmp_path: Path):
    offset = read_sif(arm.sif).system.offset
    run("unsquashfs", "-quiet", "-no-progress", "-offset", offset, "-dest", tmp_path / "tree", arm.sif)
    programs = {
        path.relative_to(tmp_path / "tree"): path.read_bytes()[:20]
        for path in (tmp_path / "tree").rglob("*")
        if path.is_file() and not path.is_symlink()
    }
    machines = {path: head[18:20] for path, head in programs.items() if head.startswith(b"\x7fELF")}
    assert {int.from_bytes(machine, "little") for machine in machines.values()} == {AARCH64.elf}
    assert {"fast.so", "bash"} <= {path.name for path in machines}


@pytest.fixture
def arm_engine(spacious: Path) -> Iterator[None]:
    """Let this machine's engine run programs for Arm, and leave the machine as it was."""
    if machine_has(AARCH64.elf):
        yield
        return
    tools = load_lock(ROOT / "recipes/gh200.lock").tools
    assert tools
    run("dpkg-deb", "--extract", Store(CACHE).artifact(tools.emulator.sha256), spacious / "emulator")
    is_mounted = (FORMATS / "register").exists()
    if not is_mounted:
        run("mount", "-t", "binfmt_misc", "binfmt_misc", FORMATS)
    try:
        register(AARCH64.elf, str(spacious / "emulator/usr/bin" / f"qemu-{AARCH64.machine}"))
        yield
    finally:
        (FORMATS / f"envbuilder-{AARCH64.elf}").write_text("-1")
        if not is_mounted:
            run("umount", FORMATS)


@pytest.mark.release
@pytest.mark.skipif(os.geteuid() != 0, reason="only root registers an emulator for a whole machine")
@pytest.mark.usefixtures("arm_engine")
def test_buildkit_and_both_printed_texts_make_the_same_for_arm(recipe: Path, arm: Built, spacious: Path):
    files = {"ENVBUILDER_FOLDERS": str(recipe.parent.parent / "files")}
    apart = files | {"ENVBUILDER_CACHE": str(cache_with_artifacts(spacious, recipe))}
    baked = build(str(recipe), spacious / "baked", "--runner", "buildkit", "--no-load", env=apart)
    need_the_same(arm, baked)
    with make_base(AARCH64) as base:
        archive = build_dockerfile(spacious, base, recipe, AARCH64)
        sif = build_definition(spacious, base, recipe, spacious / "vendored")
    need_equal(read_tree(arm.layout).entries, read_tree(archive).entries)
    need_equal(read_tree(arm.layout).entries, sif_manifest(sif), ignore=BUILDER_ADDS)


CUDA = ("nvidia-cuda-runtime",)  # what the toolkit takes from the environment
BOTH = """\
base: debian/bookworm
python: "3.11"
gcc: "12"
pytorch: "2.15.0"
cuda: "13.2"
gpus: [A100, GH200]
"""


@pytest.mark.release
def test_a_recipe_for_both_processors_is_built_pushed_and_pulled_by_one_name():
    """The two environments have the toolkit of CUDA and no torch. It takes half a minute to three."""
    with open_folder() as folder, registry(folder / "registry") as real:
        save_text(folder / "both.yaml", BOTH)
        for name, of in (("amd64", "h100"), ("arm64", "gh200")):
            fetch_packages(of, kinds=("deb",))
            made = make_lock(folder / f"both@{name}.yaml", CUDA, of=of)
            if name == X86_64.debian:  # h100's has wheels that are linked from torch's
                tools = load_lock(ROOT / "recipes/gh200.lock").tools
                with_toolkit = dataclasses.replace(made, toolkit=tools.toolkit)
                save_text(folder / f"both@{name}.lock", lock_text(with_toolkit))
        out, recipes = ("--artifacts", folder / "out"), ("--recipes", folder)
        answer = json.loads(run(ENVBUILDER, "build", "both", "--output", folder / "out", *recipes, "--json", env=NO_ENGINE, timeout=900))  # fmt: skip
        assert [row["name"] for row in answer["data"]] == ["both@amd64", "both@arm64"]
        run(ENVBUILDER, "verify", "both", *out, *recipes)
        env = {"ENVBUILDER_REGISTRY": f"{real.host}/team"}
        private, public = folder / "key.pem", folder / "key.pub"
        run("openssl", "genpkey", "-algorithm", "ed25519", "-out", private)
        run("openssl", "pkey", "-in", private, "-pubout", "-out", public)
        run(ENVBUILDER, "sign", "both", *out, "--key", private)
        run(ENVBUILDER, "push", "both", *out, env=env)
        pull = (ENVBUILDER, "pull", "both", "--key", public, "--output")
        run(*pull, folder / "here", env=env)
        run(*pull, folder / "arm", "--platform", AARCH64.platform, env=env)
        for place, built in (("here", "amd64"), ("arm", "arm64")):
            assert sha256_file(folder / place / "both.sif") == sha256_file(folder / f"out/both@{built}.sif")
        assert run(ENVBUILDER, "exec", "both", *out, "--", "uname", "-m") == f"{X86_64.machine}\n"
        refused = attempt(ENVBUILDER, "exec", "both@arm64", *out, "--", "uname", "-m")
        assert "is for 64-bit Arm, and this machine is x86-64" in refused.stderr


@pytest.mark.torch
@pytest.mark.release
def test_gh200_is_the_same_twice_and_as_an_ordinary_user():
    """The tests above hold the same for an environment without torch, but for the second build."""
    fetch_packages("gh200")
    here, user = Conditions(name="here", folder="plain"), Conditions(name="user", folder="user", user=USER)
    first, second = builds_in((here, user), "gh200")
    assert (first["manifest"], first["sif_sha256"]) == (second["manifest"], second["sif_sha256"])
