"""What commands answer under `--json` fits the published schema. End-to-end tests check the answers about artifacts."""

import json
from pathlib import Path

import jsonschema
import pytest

from tests.support import command_line
from tests.support.command_line import Call, check_answer, validator

call = command_line.call
pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.mark.parametrize(
    "line",
    [
        "list",
        "show a100",
        "check octformer",
        "render cpu --as apptainer",
        "build cpu --dry-run",
        "build cpu a100 --on slurm --dry-run",
        "show octformer --extensions",
        "diff cpu a100",
        "cache",
        "cache keys",
        "detect",
        pytest.param("doctor --for run", marks=pytest.mark.programs),
        "diagnose README.md",
        pytest.param("devcontainer cpu --print", marks=pytest.mark.programs),
        "init mine --gpu A100 --pytorch 2.6.0 --recipes {folder}",
        pytest.param("launch lint scripts/test", marks=pytest.mark.programs),
    ],
)
def test_a_real_answer_fits_the_schema(call: Call, tmp_path: Path, line: str):
    answer = json.loads(call(*line.format(folder=tmp_path).split(), "--json").out)
    assert answer["data"] or line.startswith("launch lint")


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"status": "good"},
        {"command": "show"},
        {"data": [{"name": "cpu"}]},
        {"data": {"log": "build/cpu.log", "more": 1}},
        {"findings": [{"code": "EB200"}]},
    ],
)
def test_another_answer_does_not_fit(call: Call, change: dict[str, object]):
    answer = json.loads(call("list", "--json").out)
    with pytest.raises(jsonschema.ValidationError):
        check_answer(json.dumps(answer | change))


def test_a_failure_with_a_log_fits_the_schema():
    failed = {"version": 1, "command": "build", "status": "failed", "exit_code": 6, "findings": []}
    validator().validate(failed | {"data": {"log": "build/cpu.log"}})


def test_detect_answers_with_links_settings_and_reasons(call: Call, tmp_path: Path):
    (tmp_path / "node.txt").write_text("\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n")
    data = json.loads(call("detect", "--from", tmp_path / "node.txt", "--json").out)["data"]
    assert (data["gpus"], data["links"]) == (2, [["X", "SYS"], ["SYS", "X"]])
    assert {"name", "value", "reason", "evidence", "lapses"} <= set(data["settings"][0])
