"""`build --all --jobs N` for real: what recipes share is made once, one failure stops no other, Ctrl-C ends all."""

import json
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.core.cache import save_text
from envbuilder.lock.file import lock_text
from envbuilder.lock.model import recipe_inputs
from envbuilder.recipe.load import load
from tests.support.bounded import within
from tests.support.cluster import wait_until
from tests.support.faults import Bench
from tests.support.tiny import make_tiny
from tests.support.workbench import (
    ENVBUILDER,
    NO_ENGINE,
    WITHOUT_NETWORK,
    attempt,
    cache_with_artifacts,
    start,
)

pytestmark = pytest.mark.builds
SAME = ("same@torch2.12.0", "same@torch2.13.0")


@pytest.fixture
def recipes(bench: Bench, spacious: Path) -> Path:
    """Recipes that stand on the same packages: one, two variants of a matrix with the same wheels, one with others, and
    one without a lock.
    """
    folder = spacious / "recipes"
    make_tiny(folder, "one", ("filelock",))
    path, lock = make_tiny(folder, "same", ("filelock",))
    path.with_suffix(".lock").unlink()
    path.write_text(path.read_text().replace('pytorch: "2.13.0"', 'matrix: {pytorch: ["2.12.0", "2.13.0"]}'))
    for variant in SAME:
        recipe = load(folder / f"{variant}.yaml")
        locked = replace(lock, recipe=recipe.digest, inputs=recipe_inputs(recipe))
        save_text(folder / f"{variant}.lock", lock_text(locked))
    make_tiny(folder, "two", ("markupsafe", "filelock"))
    (folder / "none.yaml").write_text((folder / "one.yaml").read_text())
    return folder


def command(recipes: Path, *options: object) -> tuple[object, ...]:
    out = recipes.parent / "out"
    return (*WITHOUT_NETWORK, ENVBUILDER, "build", "--all", "--recipes", recipes, "--output", out, "--offline", *options)  # fmt: skip


def test_what_several_recipes_share_is_made_once(bench: Bench, recipes: Path):
    env = bench.env(bench.cache(0))
    ended = attempt(*command(recipes, "--jobs", "3", "--json"), env=env)
    answer = json.loads(ended.stdout)
    assert (ended.returncode, answer["exit_code"], answer["status"]) == (4, 4, "failed")
    assert [(row["name"], row["built"], row["exit_code"]) for row in answer["data"]] == [
        ("none", False, 4), ("one", True, 0), *((name, True, 0) for name in SAME), ("two", True, 0),
    ]  # fmt: skip
    assert [finding["where"] for finding in answer["findings"]] == ["none"]
    made = re.findall(r"^✓ \S+: install (\w+)", ended.stderr, re.MULTILINE)
    assert sorted(made) == ["1", "2", "bookworm"], ended.stderr  # the packages of Python's, by their number
    again = attempt(*command(recipes, "--jobs", "2"), env=env)
    assert re.findall(r"^(\S+) +(.+?)  ", again.stdout, re.MULTILINE) == [
        ("none", "failed, exit code 4"), *((name, "nothing to do") for name in ("one", *SAME, "two")),
    ]  # fmt: skip
    both = attempt(
        ENVBUILDER, "build", "same", "--recipes", recipes, "--output", recipes.parent / "out",
        "--offline", env=env,
    )  # fmt: skip
    assert (both.returncode, re.findall(r"same@\S+(?= +nothing to do)", both.stdout)) == (0, list(SAME))


@pytest.mark.alone
def test_ctrl_c_ends_every_build_within_two_seconds(bench: Bench, recipes: Path, spacious: Path, slack: int):
    cache = cache_with_artifacts(spacious, bench.recipe)
    building = start(*command(recipes, "--jobs", "2"), env=NO_ENGINE | {"ENVBUILDER_CACHE": str(cache)})
    assert building.stderr is not None
    for line in building.stderr:
        if "install bookworm" in line:
            break
    time.sleep(1)
    with within(2 * slack):
        building.send_signal(signal.SIGINT)
        building.communicate(timeout=60)
    assert building.returncode == 130
    # What begins with a dot is nobody's result, and the next build sweeps it (test_tiny_faults.py).
    left = {path.suffix for path in (spacious / "out").glob("[!.]*")}
    assert left <= {".log"}
    wait_until("no process is left", lambda: attempt("pgrep", "-f", cache).returncode, 10)
