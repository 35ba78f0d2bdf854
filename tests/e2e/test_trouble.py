"""A few of each fault that `bench/faults` does in plenty, and five builds in conditions that differ, with a tiny environment."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import faults
import pytest
from conditions import USER, missing_tools
from faults import Bench
from tiny import make_tiny
from workbench import (
    NO_ENGINE,
    WITHOUT_NETWORK,
    attempt,
    build_command,
    findings,
    five_builds,
    open_folder,
    run,
)

pytestmark = pytest.mark.builds


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with open_folder() as folder:
        yield faults.set_up(folder)


def test_five_builds_in_conditions_that_differ_give_the_same_bytes(bench: Bench):
    assert missing_tools() == ()
    built = five_builds(bench.recipe)
    assert {(one["manifest"], one["sif_sha256"]) for one in built} == {bench.digests}
    assert len(built) == 5


@pytest.mark.parametrize("number", range(6))
def test_a_build_killed_at_any_moment_leaves_nothing_wrong(bench: Bench, number: int):
    moment, state = list(faults.moments(bench, 6, seed=3))[number]
    assert faults.kill(bench, moment, state=state).wrong == ()


@pytest.mark.parametrize(("mebibytes", "state"), [(1, 2), (30, 2), (90, 1)])
def test_a_disk_that_fills_up_in_a_build_leaves_nothing_wrong(bench: Bench, mebibytes: int, state: int):
    outcome = faults.fill_disk(bench, mebibytes << 20, after=0.2 * bench.seconds[state], state=state)
    assert outcome.wrong == ()


@pytest.mark.parametrize("name", ["os", "python", "runtime"])
def test_a_layer_gone_bad_in_the_cache_is_made_again(bench: Bench, name: str):
    outcome = faults.damage_layer(bench, "one bit", name)
    assert (outcome.ended, outcome.wrong) == (0, ())


def test_downloads_that_are_cut_go_on_where_they_ended(bench: Bench):
    for outcome in faults.cut_downloads(bench, seed=1):
        assert outcome.wrong == (), outcome


def test_four_builds_of_two_recipes_share_a_cache(bench: Bench):
    other, _ = make_tiny(bench.folder / "recipe", "other", ("filelock", "typing-extensions"))
    for outcome in faults.at_once(bench, other):
        assert outcome.wrong == (), outcome


# ------------------------------------------------------------------------------------------------------- two users


def as_user(user: int, *argv: object) -> tuple[object, ...]:
    return ("setpriv", "--reuid", user, "--regid", user, "--clear-groups", "env", "HOME=/nonexistent", *argv)


@pytest.fixture
def shared(bench: Bench, spacious: Path) -> Path:
    """What one user fetched, in a folder for all to read: what `cache vendor` writes."""
    env = NO_ENGINE | {"ENVBUILDER_CACHE": str(bench.cache(0))}
    from workbench import ENVBUILDER  # noqa: PLC0415

    run(ENVBUILDER, "cache", "vendor", bench.recipe, spacious / "shared", env=env)
    run("chmod", "-R", "a+rX", spacious / "shared")
    return spacious / "shared"


def test_a_second_user_builds_from_the_folder_that_a_first_one_shares(
    bench: Bench, shared: Path, spacious: Path
):
    """Each has a cache of their own; what they share is read, never written, and believed only by its digest."""
    env = NO_ENGINE | {"ENVBUILDER_FOLDERS": str(shared)}
    homes = {user: spacious / str(user) for user in (0, USER)}
    for user, home in homes.items():
        home.mkdir(mode=0o700)
        os.chown(home, user, user)
        layers = bench.states[2] / "layers"  # so that no ids need be mapped for the second user
        (home / "cache").mkdir(mode=0o700)
        run("cp", "-a", layers, home / "cache/layers")
        for path in (home / "cache/layers").iterdir():
            if '"name": "python"' in (path / "layer.json").read_text():
                shutil.rmtree(path)
        run("chown", "-R", f"{user}:{user}", home)
        command = build_command(bench.recipe, home / "out", "--offline")
        cache = f"ENVBUILDER_CACHE={home}/cache"
        answer = run(*WITHOUT_NETWORK, *as_user(user, cache, *command), env=env)
        assert faults._digests(answer) == bench.digests


def test_another_users_cache_is_not_used(bench: Bench, spacious: Path):
    cache = bench.cache(2)
    cache.chmod(0o755)
    command = build_command(bench.recipe, spacious / "out", "--offline")
    ended = attempt(*as_user(USER, f"ENVBUILDER_CACHE={cache}", *command), env=NO_ENGINE)
    assert ended.returncode == 2
    assert "must be a folder of yours" in findings(ended)[0]["message"]


def test_a_cache_that_is_a_link_planted_by_another_is_not_followed(bench: Bench, spacious: Path):
    (spacious / "mine").mkdir(mode=0o700)
    (spacious / "cache").symlink_to(spacious / "mine")
    env = NO_ENGINE | {"ENVBUILDER_CACHE": str(spacious / "cache")}
    ended = attempt(*build_command(bench.recipe, spacious / "out", "--offline"), env=env)
    assert ended.returncode == 2
    assert list((spacious / "mine").iterdir()) == []


def test_a_file_planted_in_a_shared_folder_is_refused(bench: Bench, shared: Path, spacious: Path):
    """It has the right name and size, so that only its digest tells."""
    (spacious / "cache").mkdir(mode=0o700)
    victim = max(shared.rglob("*.whl"), key=lambda path: path.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.chmod(0o644)
    victim.write_bytes(content)
    env = NO_ENGINE | {"ENVBUILDER_FOLDERS": str(shared), "ENVBUILDER_CACHE": str(spacious / "cache")}
    ended = attempt(*WITHOUT_NETWORK, *build_command(bench.recipe, spacious / "out", "--offline"), env=env)
    assert ended.returncode == 5
    assert victim.name in findings(ended)[0]["message"]
    assert list(faults.broken_cache(spacious / "cache")) == []
