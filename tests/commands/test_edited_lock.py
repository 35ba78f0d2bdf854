"""Each command that reads a lock refuses one that was edited, before anything is downloaded or built."""

import json
import re
import shutil
from pathlib import Path

import pytest

from envbuilder.lock.resolve import mend
from tests.support import command_line
from tests.support.command_line import Call

ROOT = Path(__file__).parents[2]
call = command_line.call
pytestmark = pytest.mark.usefixtures("clean_environment")

COMMANDS = (
    ("check", "cpu"),
    ("lock", "cpu", "--check"),
    ("lock", "cpu", "--upgrade", "--check"),
    ("build", "cpu"),
    ("build", "cpu", "--dry-run"),
    ("render", "cpu"),
    ("show", "cpu", "--extensions"),
    ("diff", "cpu.yaml", "whole.lock"),
    ("detect", "--recipe", "cpu"),
    ("devcontainer", "cpu", "--artifacts", "project"),
    ("cache", "vendor", "cpu", "vendored"),
)


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands run in: a recipe, and its lock without libc6."""
    folder = tmp_path / "recipes"
    shutil.copytree(ROOT / "recipes/fused", folder / "fused")
    shutil.copy(ROOT / "recipes/cpu.yaml", folder)
    shutil.copy(ROOT / "recipes/cpu.lock", folder / "whole.lock")
    body = json.loads((folder / "whole.lock").read_text())
    body["debs"] = [one for one in body["debs"] if one["name"] != "libc6"]
    (folder / "cpu.lock").write_text(json.dumps(body, indent=1))
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:3]))
def test_a_command_names_the_entry_and_the_repair(call: Call, recipes: Path, words: tuple[str, ...]):
    options = () if words[0] == "diff" else ("--recipes", recipes)
    before = sorted(recipes.iterdir())
    answer = call(*words, *options)
    assert answer.code == 4, answer
    assert "`libc6` 2.36-" in answer.err
    assert "is gone from `debs`" in answer.err
    assert "`git checkout " in answer.err
    assert re.search(r"`envbuilder lock \S*cpu(\.yaml)?` repairs it", answer.err)
    assert sorted(recipes.iterdir()) == before


def test_a_lock_that_cannot_be_read_hides_no_warning_and_is_not_said_to_be_absent(call: Call, recipes: Path):
    with (recipes / "cpu.yaml").open("a") as stream:
        stream.write("env: {PYTHONPATH: /x}\n")
    (recipes / "whole.lock").rename(recipes / "cpu.lock")
    findings = json.loads(call("check", "cpu", "--recipes", recipes, "--json").out)["findings"]
    warned = [finding for finding in findings if finding["code"] != "EB415"]  # that the lock is stale
    (recipes / "cpu.lock").write_text("<<<<<<< HEAD\n")
    answer = json.loads(call("check", "cpu", "--recipes", recipes, "--json").out)
    assert answer["exit_code"] == 4
    assert not any("without a lock" in line for line in answer["data"]["not_checked"])
    assert warned
    assert answer["findings"][: len(warned)] == warned


def test_only_a_lock_without_pins_needs_an_upgrade(call: Call, recipes: Path):
    (recipes / "cpu.lock").write_text((recipes / "whole.lock").read_text()[:5000])
    answer = call("lock", "cpu", "--recipes", recipes)
    assert answer.code == 4
    assert "`envbuilder lock cpu --upgrade` chooses every version anew" in answer.err
    assert mend.LOST not in (recipes / "cpu.lock").read_text()
