"""Builds that something happens to: each ends with a clear error or not at all, and the next one works."""

import os
import re
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from envbuilder.layers.layer import load_layer
from tests.support.faults import Bench
from tests.support.workbench import (
    ENVBUILDER,
    NO_ENGINE,
    ROOT,
    WITHOUT_NETWORK,
    Built,
    Ended,
    attempt,
    build,
    build_command,
    cache_with_artifacts,
    findings,
    link_tree,
    run,
    start,
)

pytestmark = pytest.mark.builds


@pytest.mark.release  # test_tiny_faults.py kills and starts builds of `tiny` for every change
def test_killed_builds_and_three_at_once_without_network_end_in_the_same_bytes(cpu: Built, spacious: Path):
    """Killed while hashing, while installing, and while compiling or compressing."""
    cache, output = cache_with_artifacts(spacious, "cpu"), spacious / "out"
    env = NO_ENGINE | {"ENVBUILDER_CACHE": str(cache)}
    commands = [build_command("cpu", place, "--offline") for place in (output, output, spacious / "other")]
    for seconds in (1.5, 6.0, 14.0):
        process = start(*WITHOUT_NETWORK, *commands[0], env=env)
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, f"ended by itself before {seconds} s: take less"
        assert {path.name for path in output.glob("[!.]*")} <= {"cpu.log"}
        assert [path.name for path in (cache / "layers").glob("*") if load_layer(path) is None] == []
    builds = [start(*WITHOUT_NETWORK, *command, env=env) for command in commands]
    ended = [(build.communicate(timeout=1500), build.returncode) for build in builds]
    assert [code for _, code in ended] == [0, 0, 0], ended
    (waiting,) = (out for (out, err), _ in ended[:2] if "another build of `cpu` is running" in err)
    assert '"built": false' in waiting
    for (out, _), _ in ended:
        assert all(f'"{cpu.data[name]}"' in out for name in ("manifest", "sif_sha256"))
    assert list((cache / "work").iterdir()) == []
    assert sorted(path.name for path in output.iterdir()) == ["cpu.json", "cpu.log", "cpu.oci", "cpu.sif"]


def test_a_killed_writer_of_the_sif_leaves_the_old_one(cpu: Built, spacious: Path):
    link_tree(cpu.output, copied := spacious / "out")
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


def _in_small_disk(script: str, *, place: Path, size: str, env: dict[str, str]) -> Ended:
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
    output = spacious / "out"
    fetched = sum(package.size for package in (*bench.lock.debs, *bench.lock.wheels))
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
while not glob.glob(f"{place}/.cpu.*/cpu.sif") and time.monotonic() < end:
    time.sleep(0.001)
os.kill(build, signal.SIGSTOP)
with open(f"{place}/filler", "wb") as stream:
    state = os.statvfs(place)
    os.posix_fallocate(stream.fileno(), 0, state.f_bavail * state.f_frsize - (10 << 20))
os.kill(build, signal.SIGCONT)
"""


def test_a_disk_that_fills_up_meanwhile_is_exit_6_and_keeps_nothing_half_written(cpu: Built, spacious: Path):
    """There is room until the SIF has been begun; then another program takes it."""
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


def test_an_edited_extension_is_the_only_layer_made_anew(cpu: Built, spacious: Path):
    recipes = spacious / "recipes"
    shutil.copytree(ROOT / "recipes", recipes)
    source = recipes / "fused/fused_bias_act_cpu.cpp"
    source.write_text(source.read_text() + "// one more line\n")
    run(ENVBUILDER, "lock", "cpu", "--recipes", recipes)
    words = ("build", "cpu", "--recipes", recipes, "--dry-run", "--output", spacious / "out")
    commands = run(ENVBUILDER, *words)
    lines = [line for line in commands.splitlines() if line.startswith("$ ")]
    programs = [re.search(r"/steps/(\w+\.py) /step/spec.json", line) for line in lines]
    assert [program and program[1] for program in programs] == ["extension.py", "extensions.py"]
