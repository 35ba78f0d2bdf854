"""The command line without a build: answers on stdout, the rest on stderr, one exit code per kind of failure."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from docs import make_reference
from envbuilder import __version__, cli
from envbuilder.builder.extensions.compiler_errors import extension_error
from envbuilder.commands import COMMANDS, GROUPS
from envbuilder.core import console
from envbuilder.core.errors import BuildError
from envbuilder.lock.file import lock_text
from envbuilder.recipe.load import list_recipes, load
from envbuilder.sources.http import session
from tests.support import command_line
from tests.support.command_line import Call
from tests.support.locks import make_lock
from tests.support.serving import silent_server

ROOT = Path(__file__).parents[2]
GOOD = """\
base: debian/bookworm
python: "3.11"
gcc: "12"
libxcrypt: "4.4"
pytorch: "2.13.0"
extensions:
  - {name: fused, sources: [fused.cpp]}
"""

pytestmark = pytest.mark.usefixtures("clean_environment")
call = command_line.call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of recipes with one recipe, `good`, that has no lock."""
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    (recipes / "good.yaml").write_text(GOOD)
    (recipes / "fused.cpp").write_text("int one() { return 1; }\n")
    return recipes


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    """A copy of this repository's recipes and locks."""
    return Path(shutil.copytree(ROOT / "recipes", tmp_path / "copy"))


def test_version(call: Call):
    neighbours = "(envbuilder-hpc, neither Coder's envbuilder nor the one on PyPI)"
    assert call("--version") == (0, f"envbuilder {__version__} {neighbours}\n", "")


@pytest.mark.parametrize("words", [(), ("launch",)])
def test_a_list_of_commands_says_in_whole_words_what_each_does(call: Call, words: tuple[str, ...]):
    commands = call(*words, "--help").out.rpartition("--help")[2]
    assert commands
    assert "..." not in commands


def test_help_names_every_command_below_its_heading(call: Call):
    sections = {
        heading: [line.split()[0] for line in lines.splitlines()]
        for heading, lines in re.findall(r"^(\w.*):\n((?:  [a-z].*\n?)+)", call("--help").out, re.MULTILINE)
    }
    assert sections == {heading: list(commands) for heading, commands in GROUPS.items()}


@pytest.mark.parametrize(
    ("line", "now"),
    [
        ("extensions a100", "`envbuilder show a100 --extensions`"),
        ("sbom build/a100.sif --provenance", "`envbuilder show build/a100.sif --provenance --sbom`"),
        ("shell a100 --in image", "`envbuilder exec a100 --in image`"),
        ("shell", "`envbuilder exec NAME`"),
    ],
)
def test_an_earlier_name_of_a_command_answers_with_the_present_one(call: Call, line: str, now: str):
    assert call(*line.split()) == (2, "", f"error: `envbuilder {line.split(maxsplit=1)[0]}` is now {now}\n")


@pytest.mark.parametrize(
    ("line", "old", "now"),
    [
        ("build cpu --engine docker", "--engine docker", "--runner buildkit"),
        ("build cpu --engine=assemble --offline", "--engine assemble", "--runner sandbox"),
        ("build cpu --engine", "--engine", "--runner"),
        ("build cpu --engine --offline", "--engine", "--runner"),
        ("build cpu --engine other", "--engine other", "--runner"),
        ("build cpu --runner docker", "--runner docker", "--runner buildkit"),
    ],
)
def test_the_earlier_name_of_a_runner_is_answered_with_the_present_one(
    call: Call, line: str, old: str, now: str
):
    assert call(*line.split()) == (2, "", f"error: `{old}` is now `{now}`\n")


def test_extensions_that_were_not_compiled_yet_are_listed_with_their_keys(call: Call):
    answer = call("show", "cpu", "--extensions", "--json")
    (row,) = json.loads(answer.out)["data"]
    assert (row["name"], row["form"], row["origin"], len(row["key"])) == (
        "fused",
        "load",
        "not compiled yet",
        64,
    )
    assert "gcc 12" in row["decided_by"]["compiler"]


def test_list_has_a_line_for_each_recipe(call: Call):
    lines = call("list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(list_recipes(ROOT / "recipes"))


def test_list_names_the_mistakes_of_one_recipe_and_lists_the_others(call: Call, folder: Path):
    (folder / "broken.yaml").write_text(GOOD.replace('"3.11"', "3.11"))
    for name in ("one", "other"):  # what both extend is told once
        (folder / f"{name}.yaml").write_text("extends: broken\n")
    answer = call("list", "--recipes", folder)
    assert (answer.code, [line.split()[0] for line in answer.out.splitlines()]) == (2, ["good"])
    assert answer.err.splitlines()[0].startswith(f"error[EB108]: {folder}/broken.yaml:2:9: $.python: ")
    assert answer.err.count("EB108") == 1
    told = json.loads(call("list", "--json", "--recipes", folder).out)
    assert (told["status"], told["exit_code"], len(told["findings"])) == ("failed", 2, 1)
    assert [row["name"] for row in told["data"]] == ["good"]


@pytest.mark.parametrize("place", ["nowhere", "empty"])
def test_list_of_a_folder_without_recipes_is_no_success(call: Call, tmp_path: Path, place: str):
    (tmp_path / "empty").mkdir()
    answer = call("list", "--recipes", tmp_path / place)
    assert (answer.code, answer.out) == (2, "")
    assert f"`{tmp_path / place}` holds no recipes" in answer.err
    assert (
        "hint: `envbuilder init NAME` writes a first one, and `envbuilder init --example cpu`" in answer.err
    )


def test_show_says_where_a_value_came_from(call: Call):
    line = next(line for line in call("show", "a100").out.splitlines() if line.startswith("cuda "))
    assert line.split()[1] == "12.4"
    assert "recipes/a100.yaml:" in line


@pytest.mark.parametrize("name", list_recipes(ROOT / "recipes"))
def test_check_passes_each_recipe_of_the_repository(call: Call, name: str):
    assert call("check", name).code == 0


@pytest.mark.parametrize(
    ("arguments", "command"),
    [(("list",), "list"), (("show", "cpu"), "show"), (("check", "cpu"), "check")],
)
def test_the_envelope_of_an_answer(call: Call, arguments: tuple[str, ...], command: str):
    answer = call(*arguments, "--json")
    envelope = json.loads(answer.out)
    assert list(envelope) == ["version", "command", "status", "exit_code", "data", "findings"]
    assert (envelope["version"], envelope["command"], envelope["status"]) == (1, command, "ok")
    assert (envelope["exit_code"], answer.code, answer.err) == (0, 0, "")


def test_the_envelope_of_a_failure(call: Call, folder: Path):
    (folder / "bad.yaml").write_text(GOOD.replace('"12"', "12"))
    answer = call("check", folder / "bad.yaml", "--json")
    envelope = json.loads(answer.out)
    assert (envelope["status"], envelope["exit_code"], answer.code) == ("failed", 2, 2)
    (finding,) = envelope["findings"]
    assert list(finding) == ["code", "severity", "where", "message", "hint"]
    assert finding["where"].endswith("bad.yaml:3:6")
    assert answer.err == ""


def test_a_failure_without_findings_is_a_finding_itself(call: Call):
    answer = call("build", "a10", "--json")
    (finding,) = json.loads(answer.out)["findings"]
    assert (finding["code"], finding["severity"]) == ("EB200", "error")
    assert "a100" in finding["hint"]


@pytest.mark.parametrize("arguments", [("build", "--json"), ("list", "--json", "--nonsense")])
def test_wrong_use_is_an_envelope_too(call: Call, arguments: tuple[str, ...]):
    answer = call(*arguments)
    envelope = json.loads(answer.out)
    assert (answer.code, envelope["exit_code"], envelope["status"]) == (2, 2, "failed")


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "list --nonsense",
        "build",
        "build --all cpu",
        "build --all --jobs 0",
        "build cpu --wait",
        "build cpu --on cluster",
        "build cpu --on slurm --sbatch mem=16G --dry-run",
        "build cpu --on slurm --runner buildkit",
        "build cpu a100 --runner buildkit --prepare x",
        "lock cpu numpy",
        "lock cpu --before yesterday",
        "show cpu --extensions --sbom",
        "exec cpu --in vm -- true",
    ],
)  # fmt: skip
def test_wrong_use_is_exit_2_with_a_hint(call: Call, line: str):
    answer = call(*line.split())
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert "\nhint: " in answer.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "show",
            "missing argument 'NAME|SIF'\n\nhint: such as `envbuilder show a100`; `envbuilder show --help`",
        ),
        (
            "launch slurm a100 --nodes two",
            "such as `envbuilder launch slurm a100 --nodes 2 --gpus-per-node 4",
        ),
        ("init --example", "\n\nhint: `envbuilder init --help` lists what there is"),
    ],
)
def test_wrong_use_is_answered_with_an_example(call: Call, line: str, said: str):
    assert said in call(*line.split()).err


@pytest.mark.parametrize("verb", ["show", "check", "lock", "build"])
def test_an_unknown_recipe_is_exit_2_and_the_nearest_is_named(call: Call, verb: str):
    answer = call(verb, "a10")
    assert (answer.code, answer.out) == (2, "")
    assert "a10" in answer.err
    assert "did you mean `a100`" in answer.err


def test_a_recipe_file_that_is_not_there_is_exit_2(call: Call, folder: Path):
    answer = call("build", folder / "none.yaml")
    assert answer.code == 2
    assert "none.yaml" in answer.err


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("gcc:", "gc:", "bad.yaml:3:1: $.gc", "did you mean `gcc`"),
        ('"3.11"', "3.11", "bad.yaml:2:9: $.python", 'write "3.11" in quotes'),
        ('"12"', "12", "bad.yaml:3:6: $.gcc", 'write "12" in quotes'),
        ("fused.cpp", "fusd.cpp", "bad.yaml:7:29: $.extensions[0].sources[0]", "there is no file `fusd.cpp`"),
    ],
)
def test_a_mistake_shows_its_place_and_repair(
    call: Call, folder: Path, old: str, new: str, place: str, words: str
):
    (folder / "bad.yaml").write_text(GOOD.replace(old, new))
    answer = call("build", folder / "bad.yaml")
    assert answer.code == 2
    assert place in answer.err
    assert words in answer.err


def test_every_mistake_has_one_line(call: Call, folder: Path, golden: Callable[[str, str], None]):
    (folder / "bad.yaml").write_text(
        textwrap.dedent("""\
            base: debian/bookwurm
            pyton: "3.11"
            gcc: 12
            pytorch: "2.13.0"
            extensions:
              - {name: fused, sources: [missing.cpp]}
            """)
    )
    answer = call("check", folder / "bad.yaml")
    assert (answer.code, answer.out) == (2, "")
    golden("bad-recipe.txt", answer.err.replace(str(folder), "FOLDER"))


def test_pins_that_cannot_work_together_are_exit_3(call: Call, folder: Path):
    (folder / "odd.yaml").write_text(GOOD.replace("bookworm", "bullseye"))
    answer = call("check", folder / "odd.yaml")
    assert (answer.code, answer.out) == (3, "")
    assert "odd.yaml:3:6" in answer.err  # Debian 11 has no gcc 12


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--offline",)])
def test_no_lock_is_exit_4_and_the_command_that_makes_it_is_named(
    call: Call, folder: Path, options: tuple[str, ...]
):
    answer = call("build", "good", "--recipes", folder, "--output", folder / "out", *options)
    assert answer.code == 4
    assert "good.lock" in answer.err
    assert "`envbuilder lock" in answer.err
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("file", "old", "new", "what"),
    [
        ("cpu.yaml", "numpy>=2,<3", "numpy>=2.1,<3", "cpu.yaml"),
        ("fused/fused_bias_act_cpu.cpp", "forward_cpu", "forward_cpu_", "fused_bias_act_cpu.cpp"),
    ],
)
def test_a_stale_lock_is_exit_4_and_says_what_changed(
    call: Call, locked: Path, file: str, old: str, new: str, what: str
):
    path = locked / file
    path.write_text(path.read_text().replace(old, new))
    answer = call("build", "cpu", "--recipes", locked, "--output", locked / "out")
    assert answer.code == 4
    assert "no longer fits" in answer.err
    assert "envbuilder lock" in answer.err
    assert not (locked / "out").exists()


def test_a_lock_that_is_no_lock_is_exit_4(call: Call, locked: Path):
    (locked / "cpu.lock").write_text("<<<<<<< ours\n")
    answer = call("build", "cpu", "--recipes", locked, "--output", locked / "out")
    assert answer.code == 4
    assert "cpu.lock:1" in answer.err


def test_a_dry_run_prints_plan_and_commands_and_writes_nothing(
    call: Call, locked: Path, clean_environment: Path
):
    before = sorted(locked.rglob("*"))
    answer = call("build", "cpu", "--dry-run", "--recipes", locked, "--output", locked / "out")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0] == "envbuilder plan"
    assert any(line.startswith("step os bookworm") for line in lines)
    commands = [line for line in lines if line.startswith("$ ")]
    assert [word for word in ("dpkg --configure", "uv", "bwrap") if any(word in line for line in commands)]
    assert sorted(locked.rglob("*")) == before
    assert not clean_environment.exists()


def test_the_script_of_an_array_of_builds_is_printed_and_nothing_is_written(
    call: Call, locked: Path, clean_environment: Path
):
    words = ("--recipes", locked, "--output", locked / "out", "--jobs", "2", "--sbatch=--mem=16G", "--dry-run")  # fmt: skip
    answer = call("build", "cpu", "--on", "slurm", *words)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("#!/usr/bin/env bash\n# builds 1 recipes, one per task.")
    for line in (
        "#SBATCH --array=0-0%2",
        "#SBATCH --mem=16G",
        f"cache={clean_environment}",
        f"recipes=({locked}/cpu.yaml)",
    ):
        assert line in answer.out.splitlines()
    assert not (locked / "out").exists()
    assert not clean_environment.exists()


@pytest.mark.parametrize(
    "line",
    [
        "exec {} -- true",
        "exec {} --in sif -- true",
        "exec {}",
        "launch local {} -- true",
        "module {}",
        "verify {}",
        "history {}",
    ],
)
def test_a_recipe_that_was_not_built_is_exit_2_with_a_hint(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    verb, rest = line.split("{}")
    meant, typed = (
        call(*verb.split(), name, "--artifacts", tmp_path, *rest.split()) for name in ("cpu", "cpuu")
    )
    assert (meant.code, typed.code) == (2, 2)
    assert "hint: `envbuilder build cpu` makes image and SIF, `envbuilder pull cpu` fetches" in meant.err
    assert "did you mean `cpu`?" in typed.err


@pytest.mark.parametrize(
    "line", ["build {}", "show --extensions {}", "render {}", "diff {} cpu", "diff cpu {}"]
)
def test_a_recipe_without_a_lock_is_exit_4_and_the_hint_is_a_line_to_paste(
    call: Call, folder: Path, locked: Path, line: str
):
    shutil.copy(locked / "cpu.lock", folder)
    for typed in ("good", str(folder / "good.yaml")):
        answer = call(*line.format(typed).split(), "--recipes", folder)
        assert answer.code == 4
        assert f"error: there is no lock `{folder}/good.lock`" in answer.err
        assert f"hint: `envbuilder lock {typed}` makes it" in answer.err


def test_what_cannot_be_compared_names_the_recipe_that_was_meant(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    answer = call("diff", "cpu", "cpuu")
    assert answer.code == 2
    assert answer.err.endswith("hint: did you mean `cpu`?\n")


@pytest.mark.parametrize("verb", ["report", "show --sbom"])
def test_what_was_not_built_is_named_as_it_was_typed(call: Call, tmp_path: Path, verb: str):
    answer = call(*verb.split(), "recipes/cpu.yaml", "--artifacts", tmp_path)
    assert answer.code == 2
    assert f"there is no SIF `{tmp_path}/cpu.sif`" in answer.err
    assert "`envbuilder build recipes/cpu.yaml` makes image and SIF" in answer.err


def test_verify_of_a_sif_that_is_none_speaks_of_that(call: Call, tmp_path: Path):
    text = tmp_path / "text.sif"
    text.write_text("no SIF")
    assert f"there is no SIF `{tmp_path / 'absent.sif'}`" in call("verify", tmp_path / "absent.sif").err
    assert f"`{text}` is not a SIF" in call("verify", text).err


def test_a_cache_that_others_can_write_is_refused(call: Call, locked: Path, clean_environment: Path):
    clean_environment.mkdir()
    clean_environment.chmod(0o777)
    answer = call("build", "cpu", "--recipes", locked, "--output", locked / "out")
    assert answer.code == 2
    assert "ENVBUILDER_CACHE" in answer.err


@pytest.mark.parametrize("name", ["NO_COLOR", "--no-color"])
def test_no_color_codes_in_messages(call: Call, monkeypatch: pytest.MonkeyPatch, name: str):
    if name == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")
        answer = call("check", "a10")
    else:
        answer = call("check", "a10", "--no-color")
    assert "\x1b" not in answer.err + answer.out


@pytest.mark.parametrize("line", ["pull {place}/x --output {folder}", "lock imaged --recipes {folder}"])
def test_whoever_never_answers_is_named_while_it_is_waited_for(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch, line: str
):
    monkeypatch.setattr(console, "SILENCE", 0.0)
    monkeypatch.setattr(session, "FIRST", 2.0)
    with silent_server() as (place, _):
        (folder / "imaged.yaml").write_text(GOOD.replace("debian/bookworm", f"{{image: {place}/x}}"))
        answer = call(*line.format(place=place, folder=folder).split())
    assert "  waiting for an answer from http://127.0.0.1:" in answer.err
    assert "no answer in 2 s" in answer.err
    assert answer.code == 5


@pytest.mark.parametrize(("kind", "entry"), [("tools", "tools/one"), ("work", "work/left")])
def test_the_cache_is_freed_by_kind(call: Call, clean_environment: Path, kind: str, entry: str):
    """`work` is what a killed build left."""
    call("cache")
    for folder in (entry, "layers/one"):
        (clean_environment / folder).mkdir()
        (clean_environment / folder / "file").write_bytes(bytes(5000))
    before = json.loads(call("cache", "--json").out)["data"]["bytes"]
    after = json.loads(call("cache", "--gc", kind, "--json").out)["data"]["bytes"]
    assert (before[kind] > 0, before["layers"] > 0) == (True, True)
    assert after == before | {kind: 0}


def test_what_no_lock_names_is_freed_by_age(call: Call, clean_environment: Path):
    lock = json.loads(Path("recipes/cpu.lock").read_text())
    keys = json.loads(call("cache", "keys", "--json").out)["data"]["keys"]
    file, other = lock["debs"][0]["sha256"], "0" * 64
    entries = {
        f"layers/{keys[0]}": 0, f"layers/{other}": 0, "layers/fresh": time.time(), f"extensions/{other}": 0,
        f"artifacts/{file[:2]}/{file}": 0, f"artifacts/00/{other}": 0,
    }  # fmt: skip
    for name, used in entries.items():
        (clean_environment / name).mkdir(parents=True)
        os.utime(clean_environment / name, (used, used))
    assert call("cache", "--gc", "--unused", "30").code == 0
    left = {name for name in entries if (clean_environment / name).exists()}
    assert left == {f"layers/{keys[0]}", "layers/fresh", f"artifacts/{file[:2]}/{file}"}


@pytest.mark.parametrize(
    "arguments", [("--gc", "toools"), ("tools",), ("--unused", "3"), ("--gc", "uv", "--unused", "3")]
)
def test_what_the_cache_cannot_free_is_wrong_use(call: Call, arguments: tuple[str, ...]):
    assert call("cache", *arguments).code == 2


def test_show_tells_what_follows_from_the_pins(call: Call):
    (line,) = (line for line in call("show", "a100").out.splitlines() if line.startswith("driver floor "))
    assert "525.60.13" in line
    facts = json.loads(call("show", "a100", "--json").out)["data"]["facts"]
    assert {"name", "value", "source"} == set(facts[0])
    assert "2.21.5" in [fact["value"] for fact in facts if fact["name"] == "NCCL"]


def test_check_refuses_with_the_repair_as_data(call: Call, folder: Path):
    (folder / "bad.yaml").write_text(GOOD.replace('"12"', '"9"'))
    answer = call("check", folder / "bad.yaml", "--json")
    envelope = json.loads(answer.out)
    assert (answer.code, envelope["data"]["repairs"][0]) == (3, {"gcc": "11"})
    assert envelope["findings"][0]["hint"].startswith('write `gcc: "11"`')


@pytest.mark.parametrize(
    "line", ["build none", "lock none", "verify none", "report none", "push none localhost/none", "cache vendor none x"]
)  # fmt: skip
def test_what_takes_long_folds_its_lines_in_the_log_of_ci(
    call: Call, line: str, monkeypatch: pytest.MonkeyPatch, folder: Path
):
    (folder / "none.yaml").write_text(GOOD.replace('"12"', '"9"'))
    monkeypatch.setenv("ENVBUILDER_RECIPES", str(folder))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    opening, closing, rest = call(*line.split()).err.split("\n", 2)
    assert (opening, closing) == (
        f"::group::{line.split(' none', maxsplit=1)[0].rsplit(maxsplit=1)[-1]} none",
        "::endgroup::",
    )
    assert rest.startswith("error: ")


def test_no_registry_is_asked_for_a_base_that_is_refused_for_arm(call: Call, folder: Path):
    text = GOOD.partition("extensions")[0].replace("debian/bookworm", "{image: registry.invalid/cuda:1}")
    (folder / "superchip.yaml").write_text(text + "platform: linux/arm64\n")
    refused = call("lock", folder / "superchip.yaml")
    assert refused.code == 3
    assert "error[EB352]" in refused.err


def test_list_names_a_platform_that_is_not_the_usual(call: Call, folder: Path):
    (folder / "superchip.yaml").write_text(GOOD.partition("extensions")[0] + "platform: linux/arm64\n")
    lines = {line.partition(" ")[0]: line for line in call("list", "--recipes", folder).out.splitlines()}
    assert " debian/bookworm linux/arm64" in lines["superchip"]
    told = json.loads(call("list", "--json", "--recipes", folder).out)["data"]
    assert {one["name"]: one["platform"] for one in told} == {
        name: "linux/arm64" if name == "superchip" else "linux/amd64" for name in lines
    }


def test_lock_checks_first(call: Call, folder: Path):
    (folder / "bad.yaml").write_text(GOOD.replace('"12"', '"9"'))
    assert call("lock", folder / "bad.yaml").code == 3


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (("build",), 4, "the lock of `superchip` for linux/arm64 does not name the tools that build it"),
        (("build", "--dry-run"), 4, "`envbuilder lock superchip` adds the"),
    ],
)
def test_a_lock_for_arm_without_tools_is_checked_and_not_built(
    call: Call, folder: Path, command: tuple[str, ...], code: int, message: str
):
    path = folder / "superchip.yaml"
    path.write_text(GOOD.partition("extensions")[0] + "platform: linux/arm64\n")
    lock = dataclasses.replace(make_lock(load(path)), platform="linux/arm64")
    path.with_suffix(".lock").write_text(lock_text(lock))
    checked = call("check", path)
    assert checked.code == 0
    assert "warning[EB337]" in checked.err
    refused = call(command[0], path, *command[1:])
    assert refused.code == code
    assert message in refused.err


@pytest.mark.parametrize(("driver", "code"), [("550.54.15", 0), ("535.104.05", 0), ("510.47.03", 3)])
def test_check_judges_the_host(call: Call, tmp_path: Path, driver: str, code: int):
    facts = tmp_path / "node.json"
    facts.write_text(json.dumps({"driver": driver, "gpus": ["NVIDIA A100-SXM4-80GB"]}))
    assert call("check", "a100", "--host", facts).code == code


def test_host_facts_with_a_mistake_are_wrong_use(call: Call, tmp_path: Path):
    (tmp_path / "node.yaml").write_text("drivers: 5\n")
    answer = call("check", "a100", "--host", tmp_path / "node.yaml")
    assert answer.code == 2
    assert "did you mean `driver`?" in answer.err


def test_diff_of_two_recipes_compares_their_locks(call: Call):
    data = json.loads(call("diff", "cpu", "a100", "--json").out)["data"]
    assert [one["name"] for one in data["subjects"]] == ["recipes/cpu.lock", "recipes/a100.lock"]
    torch = next(one for one in data["packages"] if one["name"] == "python torch")
    assert torch["before"].startswith("2.13.0+cpu ")
    assert torch["after"].startswith("2.6.0 ")
    assert data["files"] is None


def test_diff_of_what_is_not_there_names_it(call: Call):
    answer = call("diff", "cpu", "nothing.sif")
    assert answer.code == 2
    assert "`nothing.sif`" in answer.err


# At the terminal


LEAVES = make_reference.leaves()


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.name)
def test_the_help_of_every_command_ends_with_examples(call: Call, leaf: make_reference.Leaf):
    lines = call(*leaf.name.split(), "--help").out.rstrip().splitlines()
    head = lines.index("  Examples:")
    assert lines[head + 1 :] == [f"    $ {line}" for line in leaf.examples]
    assert lines[head + 1 :]


@pytest.mark.parametrize("line", [line for leaf in LEAVES for line in leaf.examples])
def test_every_example_is_understood(line: str):
    program, name, *words = shlex.split(line)
    assert program == "envbuilder"
    command, context = cli.load_command(name), typer.Context(get_command(cli.app))
    context = command.make_context(name, list(words), parent=context)
    if hasattr(command, "commands"):
        context = command.commands[words[0]].make_context(words[0], words[1:], parent=context)
    assert context.params


def test_every_command_has_a_module_and_every_module_a_command():
    folder = ROOT / "envbuilder/commands"
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")} - {"context"}
    assert modules == set(COMMANDS)


PROGRAMS = {"exec", "launch ssh", "launch local"}  # their output is the program's


def test_every_command_answers_in_json_but_those_that_run_a_program():
    without = {leaf.name for leaf in LEAVES if not any("--json" in one.opts for one in leaf.command.params)}
    assert without == PROGRAMS


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("biuld cpu", "did you mean `build`?"),
        ("nccl", "did you mean `detect`?"),
        ("vendor cpu DIR", "did you mean `cache vendor`?"),
        ("run cpu", "did you mean `exec`?"),
        ("launch slrum cpu", "'slurm'"),
        ("build cpu --ofline", "--offline"),
        ("show a10", "`a100`"),
        ("show CPU", "`cpu`"),
    ],
)  # fmt: skip
def test_a_misspelled_word_is_answered_with_the_nearest(call: Call, line: str, meant: str):
    answer = call(*line.split())
    assert answer.code == 2
    assert meant in answer.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("launch slurm cpu --gpu-per-node 4 -- train.py", "did you mean `--gpus-per-node`?"),
        ("launch ssh cpu --gpu-per-node=4 -- train.py", "did you mean `--gpus-per-node`?"),
        ("launch local cpu train.py --lr 3", "envbuilder launch local cpu -- train.py --lr 3"),
        ("launch local cpu --gpus 4 -- train.py", "did you mean `--gpus-per-node`?"),
        ("launch slurm cpu --nodes 2 --qos train.py train.py --lr 3", "envbuilder launch slurm cpu --nodes 2 --qos train.py -- train.py --lr 3"),
        ("launch slurm cpu --nodes 2 --epochs 3 train.py", "those of a program stand after `--`: envbuilder launch slurm cpu --nodes 2 -- train.py --epochs 3"),
        ("launch ssh cpu --batch-size 4 -- train.py --lr 3", "envbuilder launch ssh cpu -- train.py --lr 3 --batch-size 4"),
        ("launch ssh cpu --epochs", "envbuilder launch ssh cpu -- PROGRAM --epochs"),
        ("exec cpu --dry-run -- ls", "there is `--print` ("),
        ("exec cpu --pirnt -- python", "did you mean `--print`?"),
        ("exec cpu train.py --lr 3", "envbuilder exec cpu -- python train.py --lr 3"),
        ("exec cpu --lr 3 -- train.py", "envbuilder exec cpu -- python train.py --lr 3"),
        ("exec cpu train.py", "stands after `--`: envbuilder exec cpu -- python train.py\n"),
        ("exec cpu sh -- -c", "`sh` is neither an option nor after `--`"),
        ("module cpu --wriet x", "--write"),
        ("module cpu x", "x"),
    ],
)  # fmt: skip
def test_an_unknown_word_does_not_become_the_program(call: Call, line: str, said: str):
    answer = call(*line.split())
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


def test_exec_refuses_a_script_that_is_no_program(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.touch(mode=0o644)
    for name in ("train.py", "./train.py"):
        answer = call("exec", "cpu", "--in", "image", "--", name, "--lr", "3")
        assert (answer.code, answer.out) == (2, "")
        hint = f"hint: `python` runs it: envbuilder exec cpu --in image -- python {name} --lr 3\n"
        assert answer.err.endswith(hint)
    script.chmod(0o755)
    assert "is a script" in call("exec", "cpu", "--print", "--", "train.py").err  # `env` looks in PATH alone
    for argv in (["./train.py"], ["python", "train.py"], ["other.py"]):
        answer = call("exec", "cpu", "--in", "image", "--print", "--", *argv)
        assert (answer.code, answer.err) == (0, "")
        assert answer.out.endswith(f" {' '.join(argv)}\n")


def test_no_option_is_suggested_for_one_of_a_program(call: Call):
    for option in ("--epochs", "--batch-size", "--model", "--lr", "--seed", "--data"):
        answer = call("launch", "slurm", "cpu", option, "3", "--", "train.py")
        assert answer.code == 2
        assert "did you mean" not in answer.err


def test_a_misspelled_key_is_answered_with_the_nearest(call: Call, folder: Path):
    (folder / "bad.yaml").write_text(GOOD.replace("pytorch", "pytroch"))
    assert "did you mean `pytorch`?" in call("check", folder / "bad.yaml").err


def test_with_a_misspelled_key_the_pins_are_judged_all_the_same(call: Call, folder: Path):
    text = 'base: debian/bookworm\npython: "3.11"\ngcc: "12"\npytorch: "2.6.0"\ngpu: [A100]\ncuda: "11.9"\n'
    (folder / "typo.yaml").write_text(text)
    answer = call("check", "typo", "--recipes", str(folder))
    assert answer.code == 2
    assert "$.gpu: unknown key `gpu`" in answer.err
    assert "error[EB313]" in answer.err


def test_with_a_missing_source_the_pins_are_judged_all_the_same(call: Call, folder: Path):
    text = GOOD.replace('gcc: "12"', 'gcc: "14"').replace("fused.cpp", "nowhere.cpp")
    (folder / "bad.yaml").write_text(text)
    answer = call("check", "bad", "--recipes", str(folder))
    assert answer.code == 2
    assert "there is no file `nowhere.cpp`" in answer.err
    assert "$.gcc: " in answer.err


def test_a_setting_that_nobody_reads_is_warned_of(call: Call, monkeypatch: pytest.MonkeyPatch):
    known = ("ENVBUILDER_NCCL", "ENVBUILDER_RECIPES", "_ENVBUILDER_MINE")  # inside, an option, nobody of us
    for name in (*known, "ENVBUILDER_CHACHE", "ENVBUILDER_ZZZ"):
        monkeypatch.setenv(name, "recipes")
    answer = call("list", "--json")
    assert json.loads(answer.out)["findings"] == []
    assert answer.err.splitlines() == [
        "warning: there is no setting `ENVBUILDER_CHACHE`, and it has no effect: did you mean `ENVBUILDER_CACHE`?",
        "warning: there is no setting `ENVBUILDER_ZZZ`, and it has no effect",
    ]


def test_an_unset_key_has_no_place(call: Call):
    shown = call("show", "cpu").out
    assert re.search(r"^cuda +- +-$", shown, re.MULTILINE)


def test_without_a_command_the_help_is_shown(call: Call):
    answer = call()
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("Usage: envbuilder")


def test_an_error_fits_a_screen_and_names_its_log(monkeypatch: pytest.MonkeyPatch):
    error = BuildError(
        "it failed\n" + "\n".join(f"line {number} {'x' * 100}" for number in range(300)), hint="do it"
    )
    error.log = "build/cpu.log"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    lines = cli._fit_screen(cli._error_lines((), error), error)
    assert sum(-(-max(1, len(line)) // 80) for line in lines) <= 23
    assert (lines[0], lines[-2:]) == ("error: it failed", ["hint: do it", "log: build/cpu.log"])
    assert any(line.startswith("line 299") for line in lines)
    assert any("more lines; `--json` has all" in line for line in lines)


def test_an_error_that_goes_to_a_file_is_whole():
    error = BuildError("it failed\n" + "line\n" * 300)
    assert len(cli._fit_screen(cli._error_lines((), error), error)) == 301


def test_an_error_with_its_message_as_finding_is_printed_once():
    error = extension_error("EB629", "`ops` does not compile\n    op.cpp:4:3: error: no", "look there")
    assert cli._fit_screen(cli._error_lines(error.findings, error), error) == [
        "error[EB629]: `ops` does not compile",
        "    op.cpp:4:3: error: no",
        "",
        "hint: look there",
    ]


@pytest.mark.programs
@pytest.mark.parametrize("arguments", [("show", "cpu"), ("show", "cpu", "--json"), ("check", "nothing")])
def test_a_closed_pipe_gives_no_traceback(arguments: tuple[str, ...], tmp_path: Path):
    """As `head` does: the other end is closed before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    errors = tmp_path / "errors"
    with errors.open("wb") as stream:
        ended = subprocess.run(
            [ROOT / ".venv/bin/envbuilder", *arguments], cwd=ROOT, stdout=writing, stderr=stream, timeout=120, check=False,
        )  # fmt: skip
    os.close(writing)
    assert ended.returncode == (2 if "nothing" in arguments else 0)
    assert "Traceback" not in errors.read_text()
    assert "Broken" not in errors.read_text()


@pytest.mark.parametrize("place", ["file", "file/x", "/proc/x"])
@pytest.mark.parametrize(
    "words", [("build", "cpu", "--output"), ("detect", "--save"), ("init", "new", "--gpu", "A100", "--pytorch", "2.6.0", "--recipes")],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_wrong_use(
    call: Call, tmp_path: Path, words: tuple[str, ...], place: str
):
    (tmp_path / "file").touch()
    path = tmp_path / place / ("x" if words[0] == "detect" else "")
    answer = call(*words, path, "--json")
    found = json.loads(answer.out)
    (finding,) = found["findings"]
    assert (answer.code, found["exit_code"], found["status"], finding["code"]) == (2, 2, "failed", "EB200")
    assert finding["message"].startswith("cannot write `")
    assert str(tmp_path / place if place.startswith("/") else tmp_path / "file") in finding["message"]
    assert finding["hint"]


def test_a_cache_that_cannot_be_made_is_wrong_use(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "file"))
    answer = call("cache")
    assert answer.code == 2
    assert answer.err.startswith(f"error: cannot write `{tmp_path}/file`: it is not a folder\n\nhint: ")


@pytest.mark.programs
@pytest.mark.parametrize("line", ["build cpu --output {}", "detect --save {}/x"])
def test_a_read_only_file_system_is_named(tmp_path: Path, line: str):
    words = (sys.executable, "-m", "envbuilder", *line.format(tmp_path).split(), "--json")
    sandbox = ("bwrap", "--dev-bind", "/", "/", "--ro-bind", tmp_path, tmp_path, "--")
    with tempfile.TemporaryDirectory() as cache:
        ended = subprocess.run(
            [*sandbox, *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "ENVBUILDER_CACHE": cache},
        )
    found = json.loads(ended.stdout)
    assert (ended.returncode, found["exit_code"]) == (2, 2)
    assert re.fullmatch(
        rf"cannot write `{tmp_path}[^`]*`: read-only file system", found["findings"][0]["message"]
    )
    assert "Traceback" not in ended.stderr


@pytest.mark.programs
@pytest.mark.parametrize("much", [False, True])
def test_verbose_shows_where_a_write_failed(tmp_path: Path, much: bool):
    (tmp_path / "file").touch()
    words = ("detect", "--save", tmp_path / "file/x/y", *(("-vv",) if much else ()))
    ended = subprocess.run(
        [sys.executable, "-m", "envbuilder", *words], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert ("Traceback" in ended.stderr) == much


# Root may do anything to any file by two rights that it can give up for one program.
AS_ANYBODY = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()


@pytest.mark.programs
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("detect --from {}/closed/x", "cannot reach `{}/closed/x`: "),
        ("detect --save {}/closed/x", "cannot write `{}/closed`: "),
        ("detect --save {}/x", "cannot write `{}`: "),
        ("init x --gpu A100 --pytorch 2.6.0 --recipes {}", "cannot write `{}/schema.json`: "),
    ],
)
def test_a_folder_that_one_may_not_use_is_named(tmp_path: Path, line: str, said: str):
    (tmp_path / "closed").mkdir(mode=0o000)
    tmp_path.chmod(0o555)
    words = [*AS_ANYBODY, sys.executable, "-m", "envbuilder", *line.replace("{}", str(tmp_path)).split()]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    tmp_path.chmod(0o755)
    assert ended.returncode == 2
    assert f"error: {said.format(tmp_path)}permission denied" in ended.stderr


BUG = """\
import sys
from envbuilder import cli
from envbuilder.commands import show
show.find_recipe = lambda *_: open("/nowhere/it is read")
sys.argv = ["envbuilder", *sys.argv[1:]]
cli.main()
"""


@pytest.mark.programs
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_bug_has_a_traceback_and_a_json_answer(options: tuple[str, ...]):
    ended = subprocess.run(
        [sys.executable, "-c", BUG, "show", "cpu", *options], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("Traceback")
    assert bool(ended.stdout) == bool(options)
    if options:
        found = json.loads(ended.stdout)
        assert (found["command"], found["status"], found["exit_code"]) == ("show", "failed", 1)
        assert found["findings"][0]["message"].startswith("FileNotFoundError: ")
