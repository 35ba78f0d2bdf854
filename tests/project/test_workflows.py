"""The workflows of code hosts: what they run exists, what they take is fixed, and no job may do more than it needs."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import tiers

ROOT = Path(__file__).parents[2]
GITHUB = sorted((ROOT / ".github/workflows").glob("*.yml"))
GITLAB = ROOT / ".gitlab-ci.yml"
JOBS = [
    pytest.param(job, id=f"{path.stem}-{name}")
    for path in GITHUB for name, job in yaml.safe_load(path.read_text())["jobs"].items()
]  # fmt: skip


def test_the_workflows_test_release_and_document():
    assert [path.stem for path in GITHUB] == ["ci", "docs", "release"]


@pytest.mark.parametrize("path", GITHUB, ids=lambda path: path.stem)
def test_a_workflow_has_no_rights_of_its_own(path: Path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {}
    assert workflow["concurrency"]["group"]
    assert "pull_request_target" not in path.read_text()  # would run a stranger's change with our rights


@pytest.mark.parametrize("job", JOBS)
def test_a_job_has_a_timeout_and_names_its_rights(job: dict[str, Any]):
    minutes = job["timeout-minutes"]
    if minutes == "${{ matrix.minutes }}":
        minutes = max(entry["minutes"] for entry in job["strategy"]["matrix"]["include"])
    assert minutes <= 360  # what a hosted machine gives
    assert job["permissions"]
    assert "write-all" not in job["permissions"]


@pytest.mark.parametrize("job", JOBS)
def test_actions_and_images_are_fixed_and_a_checkout_keeps_no_password(job: dict[str, Any]):
    actions = [step for step in job["steps"] if "uses" in step]
    assert [
        step["uses"] for step in actions if not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", step["uses"])
    ] == []
    assert re.search(r"@sha256:[0-9a-f]{64}$", job.get("container", {}).get("image", f"@sha256:{'0' * 64}"))
    checkouts = [step for step in actions if step["uses"].startswith("actions/checkout@")]
    assert [step for step in checkouts if step["with"]["persist-credentials"] is not False] == []


def test_the_tag_of_each_action_stands_beside_its_commit_and_is_the_same_everywhere():
    lines = [line for path in GITHUB for line in path.read_text().splitlines() if "uses:" in line]
    assert [line for line in lines if not re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)] == []
    pins = {tuple(line.split("uses: ")[1].split("@")) for line in lines}
    assert len(pins) == len({action for action, _ in pins})


@pytest.mark.parametrize("job", JOBS)
def test_a_job_that_starts_an_engine_leaves_that_of_the_host_before(job: dict[str, Any]):
    # GitHub mounts the socket of its machine into each container, and `scripts/setup` cannot use that engine.
    runs = [step.get("run", "") for step in job["steps"]]
    if "container" in job and "scripts/setup" in runs:
        before = runs[: runs.index("scripts/setup")]
        assert [run for run in before if "umount /run/docker.sock" in run]


@pytest.mark.parametrize("path", [*GITHUB, GITLAB], ids=lambda path: path.name)
def test_every_script_of_a_workflow_exists_and_knows_its_option(path: Path):
    runs = re.findall(r"(?<![\w/])(scripts/[\w-]+)(?: (--[a-z]+|tests|docs)\b)?", path.read_text())
    assert runs
    for script, word in runs:
        assert (ROOT / script).is_file()
        assert word in (ROOT / script).read_text()


def test_both_hosts_run_the_same_scripts():
    def scripts(texts: list[str]) -> set[str]:
        text = "\n".join(line for text in texts for line in text.splitlines() if not line.startswith("#"))
        return set(re.findall(r"scripts/[\w-]+(?: (?:--[a-z]+|tests))?", text))

    assert scripts([path.read_text() for path in GITHUB]) == scripts([GITLAB.read_text()])


@pytest.mark.programs
def test_each_group_of_the_release_tier_is_a_job_that_ends_in_time_on_both_hosts():
    job = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["release"]
    group = yaml.safe_load(GITLAB.read_text())["group"]
    minutes = {entry["group"]: entry["minutes"] for entry in job["strategy"]["matrix"]["include"]}
    assert list(minutes) == [group.name for stage in tiers.make_tier("release").stages for group in stage]
    assert {entry["GROUP"]: int(entry["MINUTES"]) for entry in group["parallel"]["matrix"]} == minutes
    assert (job["needs"], group["needs"]) == ("tests", ["whole"])
    assert job["strategy"]["fail-fast"] is False


def test_no_value_of_a_workflow_is_pasted_into_a_script():
    steps = [
        step
        for path in GITHUB
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
    ]
    assert [step["run"] for step in steps if "${{" in step.get("run", "")] == []
