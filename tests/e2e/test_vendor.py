"""What a lock promises: all that it names can be carried away, and a build reads nothing else."""

import json
from pathlib import Path

import pytest

from envbuilder.runners.toolbox import toolbox_files
from tests.support.faults import Bench, digests
from tests.support.workbench import (
    ENVBUILDER,
    NO_ENGINE,
    WITHOUT_NETWORK,
    build_command,
    locked_artifacts,
    run,
)

pytestmark = [pytest.mark.builds, pytest.mark.slow]  # test_trouble.py builds from such a folder too


def test_a_vendored_lock_builds_the_same_with_nothing_and_no_network(bench: Bench, spacious: Path):
    carried = spacious / "carried"
    vendor = (ENVBUILDER, "cache", "vendor", bench.recipe, carried, "--json")
    answer = json.loads(run(*vendor, env=bench.env(bench.states[0])))["data"]
    paths = [str(one["path"]) for one in locked_artifacts(bench.recipe)] + [
        one.path for one in toolbox_files()
    ]
    assert {one.name for one in (carried / "files").iterdir()} == {path.rpartition("/")[2] for path in paths}
    assert answer["command"].endswith(f"envbuilder build {carried}/tiny.yaml --offline")
    env = NO_ENGINE | {
        "ENVBUILDER_CACHE": str(spacious / "empty"),
        "ENVBUILDER_FOLDERS": str(carried / "files"),
        "ENVBUILDER_INDEX": "file:///nonexistent",
    }
    command = build_command(carried / "tiny.yaml", spacious / "out", "--offline")
    assert digests(run(*WITHOUT_NETWORK, *command, env=env)) == bench.digests
