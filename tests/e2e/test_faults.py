"""Builds that something happens to: each ends with a clear error or not at all, and the next one works."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuilder.layers.layer import load_layer
from tests.support.faults import Bench
from tests.support.workbench import (
    CACHE,
    ENVBUILDER,
    NO_ENGINE,
    ROOT,
    WITHOUT_NETWORK,
    Built,
    attempt,
    build,
    build_command,
    cache_with_artifacts,
    findings,
    link_tree,
    locked_artifacts,
    open_folder,
    run,
    start,
)

pytestmark = pytest.mark.builds

WITH_TORCH = pytest.mark.release  # test_tiny_faults.py kills and starts builds of `tiny` for every change
KILLS = (
    1.5,
    6.0,
    14.0,
)  # seconds after the start: while hashing, while installing, while compiling or compressing


@dataclass(frozen=True)
class Killed:
    """What builds that were killed left, before a build that was not."""

    after: float
    code: int
    left: tuple[str, ...]  # names below the output folder
    broken_layers: tuple[str, ...]


@dataclass(frozen=True)
class Rebuilt:
    """One cache's life: builds are killed, then three builds at once are not; without network from first to last."""

    cache: Path
    output: Path
    killed: tuple[Killed, ...]
    together: tuple["subprocess.CompletedProcess[str]", ...]


@pytest.fixture(scope="module")
def rebuilt(cpu: Built) -> Iterator[Rebuilt]:
    with open_folder() as folder:
        cache, output = cache_with_artifacts(folder, "cpu"), folder / "out"
        env = NO_ENGINE | {"ENVBUILDER_CACHE": str(cache)}
        killed = tuple(_kill(after, cache, output, env) for after in KILLS)
        commands = [build_command("cpu", place, "--offline") for place in (output, output, folder / "other")]
        builds = [start(*WITHOUT_NETWORK, *command, env=env) for command in commands]
        together = tuple(
            subprocess.CompletedProcess(one.args, code, out, err)
            for one, (out, err) in [(one, one.communicate(timeout=1500)) for one in builds]
            for code in [one.returncode]
        )
        yield Rebuilt(cache, output, killed, together)


def _kill(after: float, cache: Path, output: Path, env: dict[str, str]) -> Killed:
    process = start(*WITHOUT_NETWORK, *build_command("cpu", output, "--offline"), env=env)
    time.sleep(after)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    layers = sorted((cache / "layers").iterdir()) if (cache / "layers").exists() else []
    return Killed(
        after,
        process.returncode,
        tuple(sorted(path.name for path in output.iterdir())) if output.exists() else (),
        tuple(path.name for path in layers if load_layer(path) is None),
    )


@WITH_TORCH
def test_a_killed_build_leaves_nothing_under_a_final_name(rebuilt: Rebuilt):
    for one in rebuilt.killed:
        assert one.code == -signal.SIGKILL, f"ended by itself before {one.after} s: take less"
        assert [name for name in one.left if not name.startswith(".")] in ([], ["cpu.log"])
        assert one.broken_layers == ()


@WITH_TORCH
def test_builds_at_once_in_one_cache_all_succeed(rebuilt: Rebuilt):
    assert [(one.returncode, one.stderr[-2000:]) for one in rebuilt.together if one.returncode] == []


@WITH_TORCH
def test_one_of_two_builds_of_the_same_artifacts_waits_and_has_nothing_to_do(rebuilt: Rebuilt):
    first, second, _ = rebuilt.together
    waited = [one for one in (first, second) if "another build of `cpu` is running" in one.stderr]
    assert len(waited) == 1
    assert '"built": false' in waited[0].stdout


@WITH_TORCH
def test_a_build_from_the_same_lock_in_another_cache_gives_the_same_bytes(rebuilt: Rebuilt, cpu: Built):
    for name in ("manifest", "sif_sha256"):
        for one in rebuilt.together:
            assert f'"{cpu.data[name]}"' in one.stdout


@WITH_TORCH
def test_what_killed_builds_left_is_swept(rebuilt: Rebuilt):
    assert list((rebuilt.cache / "work").iterdir()) == []
    assert sorted(path.name for path in rebuilt.output.iterdir()) == [
        "cpu.json",
        "cpu.log",
        "cpu.oci",
        "cpu.sif",
    ]


@pytest.fixture
def copied(cpu: Built, spacious: Path) -> Path:
    """A copy of what was built; all its layers are in the user's cache."""
    link_tree(cpu.output, spacious / "out")
    return spacious / "out"


def test_an_artifact_that_is_lost_is_made_again(copied: Path, cpu: Built):
    (copied / "cpu.sif").unlink()
    assert build("cpu", copied, "--offline", env=NO_ENGINE).digests == cpu.digests


def test_a_killed_writer_of_the_sif_leaves_the_old_one(copied: Path):
    (copied / "cpu.json").unlink()
    before = (copied / "cpu.sif").stat()
    process = start(*build_command("cpu", copied, "--offline"), env=NO_ENGINE)
    time.sleep(1.5)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert (copied / "cpu.sif").stat().st_ino == before.st_ino
    assert build("cpu", copied, "--offline", env=NO_ENGINE).data["sif_bytes"] == before.st_size
    assert not list(copied.glob(".*"))


def _wheel(name: str) -> dict[str, object]:
    return next(artifact for artifact in locked_artifacts("cpu") if artifact["name"] == name)


# The machine's own index may be a folder that has the right file.
NO_INDEX = {"ENVBUILDER_INDEX": "file:///nonexistent"}


@pytest.fixture
def damaged(cpu: Built, spacious: Path) -> tuple[Path, Path]:
    """A cache whose copy of numpy has one wrong byte, and that file."""
    cache = cache_with_artifacts(spacious, "cpu")
    layers = [layer for folder in (CACHE / "layers").iterdir() if (layer := load_layer(folder))]
    for layer in layers:  # so that nothing but the Python layer is to be made
        if layer.name != "python":
            link_tree(layer.folder, cache / "layers" / layer.folder.name)
    digest = str(_wheel("numpy")["sha256"])
    path = cache / "artifacts" / digest[:2] / digest
    copy = path.with_suffix(".copy")
    shutil.copyfile(path, copy)
    with copy.open("r+b") as stream:
        stream.seek(1000)
        stream.write(b"wrong")
    copy.rename(path)  # a file of its own: the user's cache keeps the right one
    return cache, path


def test_a_damaged_artifact_is_exit_5_offline_and_named(damaged: tuple[Path, Path], spacious: Path):
    cache, _ = damaged
    env = NO_ENGINE | NO_INDEX | {"ENVBUILDER_CACHE": str(cache)}
    ended = attempt(*WITHOUT_NETWORK, *build_command("cpu", spacious / "out", "--offline"), env=env)
    assert ended.returncode == 5
    (finding,) = findings(ended)
    assert str(_wheel("numpy")["path"]).rpartition("/")[2] in finding["message"]
    assert "--offline" in finding["hint"]
    assert not (spacious / "out/cpu.sif").exists()


@WITH_TORCH
def test_a_damaged_artifact_is_taken_from_a_folder_that_holds_it(
    damaged: tuple[Path, Path], spacious: Path, cpu: Built
):
    """For every change: `test_an_artifact_gone_bad_in_the_cache_is_fetched_again` of test_tiny_faults.py."""
    cache, path = damaged
    folder = spacious / "wheels"
    folder.mkdir()
    good = CACHE / "artifacts" / path.name[:2] / path.name
    shutil.copyfile(good, folder / str(_wheel("numpy")["path"]).rpartition("/")[2])
    env = NO_ENGINE | NO_INDEX | {"ENVBUILDER_CACHE": str(cache), "ENVBUILDER_FOLDERS": str(folder)}
    again = build("cpu", spacious / "out", "--offline", env=env, prefix=WITHOUT_NETWORK)
    assert again.digests == cpu.digests
    assert path.read_bytes() == good.read_bytes()


def test_a_wrong_file_in_a_folder_is_refused(damaged: tuple[Path, Path], spacious: Path):
    cache, path = damaged
    folder = spacious / "wheels"
    folder.mkdir()
    shutil.copyfile(path, folder / str(_wheel("numpy")["path"]).rpartition("/")[2])
    env = NO_ENGINE | NO_INDEX | {"ENVBUILDER_CACHE": str(cache), "ENVBUILDER_FOLDERS": str(folder)}
    ended = attempt(*WITHOUT_NETWORK, *build_command("cpu", spacious / "out", "--offline"), env=env)
    assert ended.returncode == 5
    (finding,) = findings(ended)
    assert "numpy" in finding["message"]
    assert not path.exists()


def test_no_network_and_an_empty_cache_is_exit_5(spacious: Path):
    began = time.monotonic()
    env = NO_ENGINE | {"ENVBUILDER_CACHE": str(spacious / "cache")}
    ended = attempt(*WITHOUT_NETWORK, *build_command("cpu", spacious / "out"), env=env)
    assert ended.returncode == 5, ended.stderr
    (finding,) = findings(ended)
    assert "no source could be reached" in finding["message"]
    assert "network" in finding["hint"]
    assert not (spacious / "out/cpu.sif").exists()
    assert time.monotonic() - began < 120


def test_offline_with_an_empty_cache_is_exit_5_and_names_what_is_missing(spacious: Path):
    env = NO_ENGINE | {"ENVBUILDER_CACHE": str(spacious / "cache")}
    ended = attempt(ENVBUILDER, "build", "cpu", "--output", spacious / "out", "--offline", env=env)
    assert ended.returncode == 5
    assert ".deb" in ended.stderr or ".whl" in ended.stderr
    assert "\nhint: " in ended.stderr


def _in_small_disk(
    script: str, *, place: Path, size: str, env: dict[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run a shell script with a small file system at `place`, in a mount namespace of its own."""
    place.mkdir(exist_ok=True)
    mount = f"mount -t tmpfs -o size={size},mode=0700 none {place}"
    return attempt("unshare", "--mount", "--", "sh", "-c", f"{mount} && {script}", env=env)


def test_a_cache_without_space_is_exit_6_before_anything_is_fetched(spacious: Path):
    cache = spacious / "cache"
    ended = _in_small_disk(
        f"'{ENVBUILDER}' build cpu --output {spacious}/out; code=$?; du -s {cache}; exit $code",
        place=cache, size="64m", env=NO_ENGINE | {"ENVBUILDER_CACHE": str(cache)},
    )  # fmt: skip
    assert ended.returncode == 6
    assert f"`{cache}`" in ended.stderr
    assert "free space there, point ENVBUILDER_CACHE" in ended.stderr
    assert int(ended.stdout.split()[0]) < 1024  # KiB: sources of the extension at most


def test_a_cache_without_inodes_is_exit_6_and_doctor_says_the_same(spacious: Path):
    cache = spacious / "cache"
    ended = _in_small_disk(
        f"'{ENVBUILDER}' doctor --for build; '{ENVBUILDER}' build cpu --output {spacious}/out",
        place=cache, size="50g,nr_inodes=90", env=NO_ENGINE | {"ENVBUILDER_CACHE": str(cache)},
    )  # fmt: skip
    words = f"no inodes left on the file system of `{cache}`"
    assert ended.returncode == 6
    assert words in ended.stdout.replace("\n", " ")
    assert words in ended.stderr


def test_an_output_folder_without_space_is_exit_6(cpu: Built, spacious: Path):
    output = spacious / "out"
    ended = _in_small_disk(
        f"'{ENVBUILDER}' build cpu --output {output}; code=$?; ls {output}; exit $code",
        place=output, size="64m", env=NO_ENGINE,
    )  # fmt: skip
    assert ended.returncode == 6
    assert f"`{output}`" in ended.stderr
    assert "cpu.sif" not in ended.stdout


def test_room_for_the_sif_alone_is_exit_6_before_it_is_begun(bench: Bench, spacious: Path):
    """On another file system than the cache's the image's layers are copies."""
    output, fetched = spacious / "out", sum(one.size for one in (*bench.lock.debs, *bench.lock.wheels))
    command = shlex.join(map(str, build_command(bench.recipe, output, "--offline")))
    ended = _in_small_disk(
        f"{command}; code=$?; ls -A {output}; exit $code",
        place=output, size=f"{int(1.8 * fetched) >> 20}m", env=bench.env(bench.states[2]),
    )  # fmt: skip
    assert ended.returncode == 6
    layers = sum(path.stat().st_size for path in bench.states[2].glob("layers/*/layer.tar.zst"))
    assert f"this build needs up to {2.02 * layers / 1e9:.2f} GB at `{output}`" in ended.stdout
    assert ended.stdout.endswith("}\ntiny.log\n")


# It holds the build still when the SIF has been begun, takes the rest of the disk, and lets the build go on.
FILLER = """
import glob, os, signal, sys, time
place, build = sys.argv[1], int(sys.argv[2])
end = time.monotonic() + 120
while not glob.glob(f"{place}/.cpu.*/.cpu.sif.*/sif") and time.monotonic() < end:
    time.sleep(0.001)
os.kill(build, signal.SIGSTOP)
with open(f"{place}/filler", "wb") as stream:
    state = os.statvfs(place)
    os.posix_fallocate(stream.fileno(), 0, state.f_bavail * state.f_frsize - (10 << 20))
os.kill(build, signal.SIGCONT)
"""


def test_a_disk_that_fills_up_meanwhile_is_exit_6_and_keeps_nothing_half_written(cpu: Built, spacious: Path):
    """There is room until the SIF has been begun; then another program takes it. By then the image is whole."""
    output = spacious / "out"
    blobs = f"{output}/cpu.oci/blobs/sha256"
    whole = f"cd {blobs} && for name in *; do echo $name '' $name; done | sha256sum --check --quiet >&2"
    filler = shlex.join([sys.executable, "-c", FILLER, str(output)])
    ended = _in_small_disk(
        f"'{ENVBUILDER}' build cpu --output {output} & {filler} $!; wait $!; code=$?; ls -A {output};"
        f" [ ! -e {output}/cpu.oci ] || ({whole}) || echo damaged; exit $code",
        place=output, size="1500m", env=NO_ENGINE,
    )  # fmt: skip
    assert ended.returncode == 6, ended.stderr
    assert "no space left" in ended.stderr.lower()
    assert "\nhint: free space" in ended.stderr
    assert set(ended.stdout.split()) <= {"cpu.log", "cpu.oci", "filler"}


def test_without_a_docker_engine_the_build_says_that_nothing_was_loaded(cpu: Built):
    said = run(ENVBUILDER, "build", "cpu", "--output", cpu.output, env=NO_ENGINE)
    assert "no Docker engine is running" in said


def test_ctrl_c_is_exit_130_and_leaves_nothing(cpu: Built, spacious: Path):
    cache = cache_with_artifacts(spacious, "cpu")
    process = start(*build_command("cpu", spacious / "out"), env=NO_ENGINE | {"ENVBUILDER_CACHE": str(cache)})
    time.sleep(4)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does: every program of the group gets it
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: finished parts are kept; run the same command to go on" in err
    assert not (spacious / "out/cpu.sif").exists()


def test_an_edited_extension_is_the_only_layer_made_anew(cpu: Built, spacious: Path):
    recipes = spacious / "recipes"
    shutil.copytree(ROOT / "recipes", recipes)
    source = recipes / "fused/fused_bias_act_cpu.cpp"
    source.write_text(source.read_text() + "// one more line\n")
    run(ENVBUILDER, "lock", "cpu", "--recipes", recipes)
    commands = run(
        ENVBUILDER, "build", "cpu", "--recipes", recipes, "--dry-run", "--output", spacious / "out"
    )
    lines = [line for line in commands.splitlines() if line.startswith("$ ")]
    programs = [re.search(r"/steps/(\w+\.py) /step/spec.json", line) for line in lines]
    assert [program and program[1] for program in programs] == ["extension.py", "extensions.py"]
