"""A few of each fault that `bench/faults` does in plenty, with a tiny environment."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuilder.core.cache import Store
from envbuilder.runners.toolbox import toolbox_files
from tests.support import faults
from tests.support.conditions import FIVE, USER, missing_tools
from tests.support.damage import flip, flip_alone
from tests.support.faults import Bench, digests
from tests.support.stranger import as_user
from tests.support.tiny import edit_tiny, make_tiny
from tests.support.workbench import (
    ENVBUILDER,
    NO_ENGINE,
    WITH_ZSTD,
    WITHOUT_NETWORK,
    attempt,
    build_command,
    builds_in,
    findings,
    locked_artifacts,
    open_folder,
    run,
    start,
)

pytestmark = pytest.mark.builds


@pytest.mark.slow
def test_a_build_where_all_is_different_gives_the_same_bytes(bench: Bench):
    """Another user, folder, zone, language, umask, host name, number of cores and clock; `bench/reproducible` does five."""
    assert missing_tools() == ()
    (built,) = builds_in(FIVE[-1:], bench.recipe)
    assert (built["manifest"], built["sif_sha256"]) == bench.digests


@pytest.mark.parametrize("number", [0, 2])
def test_a_build_killed_at_any_moment_leaves_nothing_wrong(bench: Bench, number: int):
    moment, state = list(faults.moments(bench, 4, seed=3))[number]
    assert faults.kill(bench, moment, state=state).wrong == ()


@pytest.mark.parametrize(("mebibytes", "state"), [(1, 2), (90, 1)])
def test_a_disk_that_fills_up_in_a_build_leaves_nothing_wrong(bench: Bench, mebibytes: int, state: int):
    outcome = faults.fill_disk(bench, mebibytes << 20, after=0.2 * bench.seconds[state], state=state)
    assert outcome.wrong == ()


def test_an_artifact_gone_bad_in_the_cache_is_fetched_again(bench: Bench):
    assert faults.damage(bench, "one bit").wrong == ()


@pytest.mark.parametrize("after", [pytest.param(100, marks=pytest.mark.release), 6 << 20])
def test_downloads_that_are_cut_go_on_where_they_ended(bench: Bench, after: int):
    """At once only before a release: the same code goes on, from a place further on."""
    assert faults.cut_download(bench, after).wrong == ()


def test_half_a_file_that_a_killed_download_left_is_not_believed(bench: Bench):
    assert faults.kill_download(bench).wrong == ()


def test_an_artifact_gone_bad_is_exit_5_offline_and_named(bench: Bench, spacious: Path):
    cache, wheel = bench.cache(1), faults.largest_wheel(bench)
    flip_alone(Store(cache).artifact(wheel.sha256))
    # The machine's own index may be a folder that has the right file.
    env = bench.env(cache) | {"ENVBUILDER_INDEX": "file:///nonexistent"}
    ended = attempt(*WITHOUT_NETWORK, *build_command(bench.recipe, spacious / "out", "--offline"), env=env)
    assert ended.returncode == 5
    (finding,) = findings(ended)
    assert wheel.filename in finding["message"]
    assert "--offline" in finding["hint"]
    assert not (spacious / "out/tiny.sif").exists()


def test_a_layer_gone_bad_in_the_cache_is_made_again(bench: Bench):
    outcome = faults.damage_layer(bench, "one bit", "python")
    assert (outcome.ended, outcome.wrong) == (0, ())


ARTIFACTS = {
    "an empty index": ("tiny.oci/index.json", lambda path: os.truncate(path, 0)),
    "an empty SIF": ("tiny.sif", lambda path: os.truncate(path, 0)),
    "one bit of a blob": ("tiny.oci/blobs/sha256/*", flip_alone),
}


@pytest.mark.parametrize("name", ARTIFACTS)
def test_a_build_with_nothing_to_do_looks_at_what_is_there(bench: Bench, spacious: Path, name: str):
    run("cp", "-a", bench.states[2], spacious / "cache")
    env, command = bench.env(spacious / "cache"), build_command(bench.recipe, spacious / "out", "--offline")
    run(*command, env=env)
    assert '"built": false' in run(*command, env=env)
    pattern, do = ARTIFACTS[name]
    (spacious / "link").hardlink_to(spacious / "out/tiny.sif")  # changes its state alone
    assert '"built": false' in run(*command, env=env)
    victim = max((spacious / "out").glob(pattern), key=lambda path: path.stat().st_size)
    do(victim)
    ended = attempt(*WITHOUT_NETWORK, *command, env=env)
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"`tiny\.(sif|oci/\S+)` .*; the artifacts are made again", ended.stderr)
    assert faults.digests(ended.stdout) == bench.digests
    assert '"built": false' in run(*command, env=env)


# Other runs use the engine, and have images of their own.
FAILING, CLEAN = f"failing{os.getpid()}", f"clean{os.getpid()}"


def in_the_engine() -> str:
    return run("docker", "images", "--no-trunc", "--format", "{{.Tag}} {{.ID}}", f"envbuilder/{FAILING}")


@pytest.fixture
def failing(bench: Bench, spacious: Path) -> Iterator[Path]:
    """A recipe that was built, into the Docker engine too, and has since another environment and a test that fails."""
    recipe, _ = make_tiny(spacious / "recipe", FAILING)
    try:
        run(*build_command(recipe, spacious / "out", "--offline"), env=used_by(bench))
        other = 'env: {WHICH: other}\ntests: ["true", "ls /no-such-file"]'
        edit_tiny(recipe, f"env: {{WHICH: {FAILING}}}", other)
        yield recipe
    finally:
        run("docker", "image", "rm", "--force", f"envbuilder/{FAILING}:latest")


def images(name: str) -> list[str]:
    """The tags of a recipe's images in the Docker engine; `<none>` for one without a name."""
    return sorted(run("docker", "images", "--all", "--filter", _title(name), "--format", "{{.Tag}}").split())


def _title(name: str) -> str:
    """Return the filter of a recipe's images and containers."""
    return f"label=org.opencontainers.image.title={name}"


@pytest.fixture(scope="module")
def clean(bench: Bench) -> Iterator[tuple[Path, tuple[object, ...]]]:
    """A recipe and the command that builds it."""
    with open_folder() as folder:
        recipe, _ = make_tiny(folder / "recipe", CLEAN)
        edit_tiny(recipe, f"env: {{WHICH: {CLEAN}}}", 'env: {WHICH: build0}\ntests: ["true"]')
        yield recipe, build_command(recipe, folder / "out", "--offline")
    _remove_images(CLEAN)


def _remove_images(name: str) -> None:
    """Remove a recipe's images with their containers."""
    if containers := run("docker", "ps", "--all", "--quiet", "--filter", _title(name)).split():
        run("docker", "rm", "--force", *containers)
    if identities := run("docker", "images", "--all", "--quiet", "--filter", _title(name)).split():
        run("docker", "image", "rm", "--force", *identities)


def test_builds_and_failures_leave_one_image(bench: Bench, clean: tuple[Path, tuple[object, ...]]):
    """`bench/faults` does more of them, with both runners."""
    recipe, command = clean
    for _ in range(3):
        _edit_which(recipe)
        run(*command, env=used_by(bench))
        assert images(CLEAN) == ["latest"]
    edit_tiny(recipe, 'tests: ["true"]', 'tests: ["ls /no-such-file"]')
    _edit_which(recipe)
    assert attempt(*command, env=used_by(bench)).returncode == 6
    assert images(CLEAN) == ["latest"]
    edit_tiny(recipe, '["ls /no-such-file"]', '["true"]')


def _edit_which(recipe: Path) -> None:
    """Make the next build another one."""
    (number,) = re.findall(r"build(\d+)", recipe.read_text())
    edit_tiny(recipe, f"build{number}}}", f"build{int(number) + 1}}}")


@pytest.mark.parametrize(
    ("number", "seconds"),
    [(signal.SIGINT, 0.0), (signal.SIGTERM, 0.3), (signal.SIGINT, 1.0), (signal.SIGTERM, 1.5)],
)
def test_an_interrupted_build_leaves_no_image(
    bench: Bench, clean: tuple[Path, tuple[object, ...]], number: signal.Signals, seconds: float
):
    """Some seconds after the image began to be loaded, which takes one or two; one that had its name with its artifacts stays."""
    recipe, command = clean
    attempt("docker", "image", "rm", "--force", f"envbuilder/{CLEAN}:latest")
    code, answer = end_by(number, command, bench, seconds)
    if left := images(
        CLEAN
    ):  # it came too late; it may have ended the writing of the record or of the answer
        assert left == ["latest"]
        (manifest,) = json.loads((recipe.parents[1] / f"out/{CLEAN}.oci/index.json").read_text())["manifests"]
        shown = run("docker", "images", "--no-trunc", "--format", "{{.ID}}", f"envbuilder/{CLEAN}")
        assert shown.strip() == manifest["digest"]
        assert seconds > 0
        assert code in (0, -number, 130)
    else:
        assert (code, answer) == (130, "")


def test_an_image_that_is_not_to_be_loaded_is_not(bench: Bench, clean: tuple[Path, tuple[object, ...]]):
    recipe, command = clean
    attempt("docker", "image", "rm", "--force", f"envbuilder/{CLEAN}:latest")
    _edit_which(recipe)
    words = [word for word in command if word != "--json"]
    for status in ("built and verified", "nothing to do"):
        ended = attempt(*words, "--no-load", env=used_by(bench))
        assert f"{CLEAN}: {status}" in ended.stdout, ended.stderr
        assert "  image  not loaded: `--no-load`  sha256:" in ended.stdout
        assert "in the image" not in ended.stderr  # nor tested there
        assert images(CLEAN) == []


@pytest.mark.parametrize("edited", [False, True])
def test_the_next_build_removes_what_a_killed_one_left(
    bench: Bench, clean: tuple[Path, tuple[object, ...]], *, edited: bool
):
    """The image, and the container that the killed build tested it in, whether the next image is the same or another."""
    recipe, command = clean
    run(*command, env=used_by(bench))
    _edit_which(recipe)
    edit_tiny(recipe, '["true"]', '["sleep 60"]')
    with start(*command, env=used_by(bench)) as building:
        while not (containers := run("docker", "ps", "--quiet", "--filter", _title(CLEAN)).split()):
            assert building.poll() is None
            time.sleep(0.1)
        building.kill()
    assert len(images(CLEAN)) == 2
    edit_tiny(recipe, '["sleep 60"]', '["true"]')
    if edited:
        _edit_which(recipe)
    run(*command, env=used_by(bench))
    assert attempt("docker", "inspect", *containers).returncode != 0
    run("docker", "image", "rm", f"envbuilder/{CLEAN}:latest")  # without `--force`: no container has it
    assert images(CLEAN) == []


def end_by(
    number: signal.Signals, command: tuple[object, ...], bench: Bench, seconds: float
) -> tuple[int, str]:
    """Signal a build some seconds after it began to load its image; returns its exit code and stdout."""
    with start(*command, env=used_by(bench)) as building:
        assert building.stderr is not None
        line = ""
        while "load envbuilder/clean" not in line:
            line = building.stderr.readline()
            assert line, "the build did not say that it loads the image"
        time.sleep(seconds)
        os.kill(building.pid, number)
        answer, _ = building.communicate()
    return building.returncode, answer


def used_by(bench: Bench) -> dict[str, str]:
    return {"ENVBUILDER_CACHE": str(bench.states[2])}


def test_a_build_whose_own_tests_fail_leaves_the_earlier_artifacts_as_they_were(
    bench: Bench, failing: Path, spacious: Path
):
    output, image = spacious / "out", in_the_engine()
    command = build_command(failing, output, "--offline")
    files = [output / f"{FAILING}{end}" for end in (".json", ".sif", ".oci/index.json")]
    before = [path.read_bytes() for path in files]
    ended = attempt(*command, env=used_by(bench))
    assert ended.returncode == 6, ended.stderr
    (finding,) = findings(ended)
    failure = "the recipe's test `ls /no-such-file` failed in the SIF with exit code 2"
    assert finding["message"].startswith(failure)
    assert f"`{output}/{FAILING}.sif.refused`" in finding["hint"]
    assert [path.read_bytes() for path in files] == before
    assert in_the_engine() == image
    assert image.startswith("latest sha256:")
    final = {f"{FAILING}.{end}" for end in ("json", "log", "oci", "sif")}
    refused = {f"{FAILING}.{end}.refused" for end in ("oci", "sif")}
    assert {path.name for path in output.iterdir()} == final | refused
    run("apptainer", "exec", output / f"{FAILING}.sif.refused", "true")
    edit_tiny(failing, "/no-such-file", "/")
    (built,) = json.loads(run(*command, env=used_by(bench)))["data"]
    assert in_the_engine() == f"latest {built['manifest']}\n"
    earlier = image.split()[1]
    assert attempt("docker", "image", "inspect", earlier).returncode != 0  # without a name, it is not kept
    assert {path.name for path in output.iterdir()} == final


def test_four_builds_of_two_recipes_share_a_cache(bench: Bench):
    other, _ = make_tiny(bench.folder / "recipe", "other", ("filelock", "typing-extensions"))
    for outcome in faults.at_once(bench, other, state=1):  # test_build_all.py begins with nothing
        assert outcome.wrong == (), outcome


def test_a_sif_alone_is_verified_by_its_own_lists(bench: Bench, spacious: Path):
    """Without image, lock and cache. A file that was changed with Apptainer's tools is named, though the SIF is whole."""
    env = NO_ENGINE | {"ENVBUILDER_CACHE": str(bench.states[2])}
    run(*build_command(bench.recipe, spacious / "out", "--offline"), env=env)
    sif, tree = spacious / "alone.sif", spacious / "tree"
    (spacious / "out/tiny.sif").rename(sif)
    nothing = NO_ENGINE | {"ENVBUILDER_CACHE": str(spacious / "cache")}
    answer = json.loads(run(ENVBUILDER, "verify", sif, "--json", env=nothing))["data"]
    assert answer["files"] > answer["listed"] > answer["files"] / 2
    run("apptainer", "build", "--sandbox", tree, sif)
    (module,) = tree.glob("opt/env/lib/python3.*/site-packages/filelock/version.py")
    module.write_text(module.read_text() + "\n")
    (tree / "usr/bin/env").write_bytes((tree / "usr/bin/env").read_bytes() + b"\0")
    (tree / "etc/debian_version").unlink()  # a configuration file, which no list has
    (tree / "usr/bin/yes").unlink()
    (tree / "var/lib/dpkg/info/tar.list").unlink()
    run("apptainer", "build", *WITH_ZSTD, spacious / "changed.sif", tree)
    ended = attempt(ENVBUILDER, "verify", spacious / "changed.sif", "--json", env=nothing)
    assert ended.returncode == 7
    assert [(finding["code"], finding["where"]) for finding in findings(ended)] == [
        ("EB703", f"/{module.relative_to(tree)}"), ("EB703", "/usr/bin/env"), ("EB701", "/usr/bin/yes"),
        ("EB708", "/var/lib/dpkg/info/tar.md5sums"),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------- two users


@pytest.fixture
def shared(bench: Bench, spacious: Path) -> Path:
    """What one user fetched, in a folder for all to read: the files of what `cache vendor` writes."""
    env = NO_ENGINE | {"ENVBUILDER_CACHE": str(bench.cache(0))}
    run(ENVBUILDER, "cache", "vendor", bench.recipe, spacious / "shared", env=env)
    run("chmod", "-R", "a+rX", spacious / "shared")
    return spacious / "shared/files"


def test_another_user_builds_from_a_shared_folder(bench: Bench, shared: Path, spacious: Path):
    """With a cache of their own. The folder is read, never written, and its files are believed only by their digests."""
    home = spacious / "home"
    home.mkdir()
    # The os layer; the wheels come from the folder. A copy, because `chown` would reach what the other caches have.
    cache = home / "cache"
    cache.mkdir(mode=0o700)
    run("cp", "-a", bench.states[1] / "layers", cache / "layers")
    run("chown", "-R", f"{USER}:{USER}", home)
    env = NO_ENGINE | {"ENVBUILDER_FOLDERS": str(shared)}
    command = build_command(bench.recipe, home / "out", "--offline")
    answer = run(*WITHOUT_NETWORK, *as_user(USER, f"ENVBUILDER_CACHE={cache}", *command), env=env)
    assert faults.digests(answer) == bench.digests


def test_a_file_planted_in_a_shared_folder_is_refused(bench: Bench, shared: Path, spacious: Path):
    """It has the right name and size, so that only its digest tells."""
    (spacious / "cache").mkdir(mode=0o700)
    victim = shared / faults.largest_wheel(bench).filename
    flip(victim)
    env = NO_ENGINE | {
        "ENVBUILDER_FOLDERS": str(shared),
        "ENVBUILDER_CACHE": str(spacious / "cache"),
        "ENVBUILDER_INDEX": "file:///nonexistent",  # the machine's own may be a folder that has the right one
    }
    ended = attempt(*WITHOUT_NETWORK, *build_command(bench.recipe, spacious / "out", "--offline"), env=env)
    assert ended.returncode == 5
    assert victim.name in findings(ended)[0]["message"]
    assert "expected" in findings(ended)[0]["message"]
    assert list(faults.broken_cache(spacious / "cache")) == []


@pytest.mark.slow  # other tests build from such a folder too
def test_a_vendored_lock_builds_the_same_with_nothing_and_no_network(bench: Bench, spacious: Path):
    carried = spacious / "carried"
    vendor = (ENVBUILDER, "cache", "vendor", bench.recipe, carried, "--json")
    answer = json.loads(run(*vendor, env=bench.env(bench.states[0])))["data"]
    paths = [
        *(artifact.path for artifact in locked_artifacts(bench.recipe)),
        *(tool.path for tool in toolbox_files()),
    ]
    names = {file.name for file in (carried / "files").iterdir()}
    assert names == {path.rpartition("/")[2] for path in paths}
    assert answer["command"].endswith(f"envbuilder build {carried}/tiny.yaml --offline")
    env = NO_ENGINE | {
        "ENVBUILDER_CACHE": str(spacious / "empty"),
        "ENVBUILDER_FOLDERS": str(carried / "files"),
        "ENVBUILDER_INDEX": "file:///nonexistent",
    }
    command = build_command(carried / "tiny.yaml", spacious / "out", "--offline")
    assert digests(run(*WITHOUT_NETWORK, *command, env=env)) == bench.digests
