"""A few of each fault that `bench/faults` does in plenty, with a tiny environment."""

from pathlib import Path

import faults
import pytest
from conditions import USER
from faults import Bench
from tiny import make_tiny
from workbench import (
    NO_ENGINE,
    attempt,
    build_command,
    findings,
)

pytestmark = pytest.mark.builds


@pytest.mark.parametrize("number", range(4))
def test_a_build_killed_at_any_moment_leaves_nothing_wrong(bench: Bench, number: int):
    moment, state = list(faults.moments(bench, 4, seed=3))[number]
    assert faults.kill(bench, moment, state=state).wrong == ()


@pytest.mark.parametrize(("mebibytes", "state"), [(1, 2), (30, 2), (90, 1)])
def test_a_disk_that_fills_up_in_a_build_leaves_nothing_wrong(bench: Bench, mebibytes: int, state: int):
    outcome = faults.fill_disk(bench, mebibytes << 20, after=0.2 * bench.seconds[state], state=state)
    assert outcome.wrong == ()


@pytest.mark.parametrize("name", ["os", "python", "runtime"])
def test_a_layer_gone_bad_in_the_cache_is_made_again(bench: Bench, name: str):
    outcome = faults.damage_layer(bench, "one bit", name)
    assert (outcome.ended, outcome.wrong) == (0, ())


def test_four_builds_of_two_recipes_share_a_cache(bench: Bench):
    other, _ = make_tiny(bench.folder / "recipe", "other", ("filelock", "typing-extensions"))
    for outcome in faults.at_once(bench, other):
        assert outcome.wrong == (), outcome


# ------------------------------------------------------------------------------------------------------- two users


def as_user(user: int, *argv: object) -> tuple[object, ...]:
    return ("setpriv", "--reuid", user, "--regid", user, "--clear-groups", "env", "HOME=/nonexistent", *argv)


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
