"""What a lock promises: all that it names can be carried away, and a build reads nothing else."""

import json
from pathlib import Path

import pytest

from tests.support.workbench import (
    ENVBUILDER,
    NO_ENGINE,
    WITHOUT_NETWORK,
    Built,
    build,
    locked_artefacts,
    run,
)

pytestmark = pytest.mark.builds


def test_a_vendored_lock_builds_the_same_on_a_machine_with_nothing_and_no_network(cpu: Built, spacious: Path):
    carried = spacious / "carried"
    answer = json.loads(run(ENVBUILDER, "cache", "vendor", "cpu", carried, "--json"))["data"]
    assert len(list((carried / "files").iterdir())) == len(locked_artefacts("cpu"))
    assert answer["command"].endswith(f"envbuilder build {carried}/cpu.yaml --offline")
    env = NO_ENGINE | {
        "ENVBUILDER_CACHE": str(spacious / "empty"),
        "ENVBUILDER_FOLDERS": str(carried / "files"),
        "ENVBUILDER_INDEX": "file:///nonexistent",
    }
    again = build(str(carried / "cpu.yaml"), spacious / "out", "--offline", env=env, prefix=WITHOUT_NETWORK)
    assert (again.data["manifest"], again.data["sif_sha256"]) == cpu.digests
