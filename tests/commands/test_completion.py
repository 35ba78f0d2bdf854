"""What TAB offers: the table agrees with the command line, each shell gets its form, and Typer is not imported for it."""

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import typer
from typer.main import get_command

from envbuilder import __main__ as program
from envbuilder import __version__, cli
from envbuilder.artifacts.oci.naming import FORMS
from envbuilder.build.engine import EngineName
from envbuilder.commands import completion
from envbuilder.commands.completion import complete, offers
from envbuilder.commands.recipe import Form as Rendered
from envbuilder.node.doctor import Purpose
from envbuilder.recipe.model import list_recipes
from envbuilder.run.exec import Form
from envbuilder.run.launch.job import Shape

ROOT = Path(__file__).parents[2]
RECIPES = list(list_recipes(ROOT / "recipes"))

pytestmark = pytest.mark.usefixtures("clean_environment")


def ask(shell: str, line: str, **more: str) -> completion.Answer | None:
    words = line.split(" ")
    return complete(
        {
            "_ENVBUILDER_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": "\n".join(words),
            "COMP_CWORD": str(len(words) - 1),
            "_TYPER_COMPLETE_ARGS": line,
            **more,
        }
    )


def bash(line: str, **more: str) -> list[str]:
    answer = ask("bash", line, **more)
    assert answer
    return answer.text.splitlines()


def test_the_table_is_the_command_line():
    app = get_command(cli.app)
    context = typer.Context(app)
    assert {option for one in app.get_params(context) for option in one.opts} - {"-h"} == set(completion.TOP)
    commands = {name: one for name, one in app.commands.items() if not one.hidden}  # type: ignore[attr-defined]
    for name, group in list(commands.items()):
        commands |= {f"{name} {inner}": one for inner, one in getattr(group, "commands", {}).items()}
    assert set(completion.VERBS) == set(commands)
    with_value = set()
    for name, command in commands.items():
        verb = completion.VERBS[name]
        options = [one for one in command.get_params(context) if one.param_type_name == "option"]
        long = {word for one in options for word in one.opts if word.startswith("--")}
        assert (name, set(verb.options)) == (name, long)
        assert command.help.startswith(verb.help), name
        with_value |= {one.opts[0] for one in options if not one.is_flag and not one.count}
        takes = any(one.name in ("name", "names", "one") for one in command.params)
        assert (name, bool(verb.recipes)) == (name, takes)
    assert with_value == set(completion.WITH_VALUE)


def test_the_values_that_are_offered_are_those_that_are_taken():
    taken = {
        "--as": set(Rendered),
        "--engine": set(EngineName),
        "--for": set(Purpose),
        "--in": set(get_args(Form)) - {""},
        "--only": set(FORMS),
        "--shape": set(get_args(Shape)),
    }
    offered = {option: set(completion.VALUES[option]) for option in taken}
    assert offered == taken
    assert set(completion.VALUES) < set(completion.WITH_VALUE)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("envbuilder ", [name for name in completion.VERBS if " " not in name]),
        ("envbuilder l", ["list", "lock", "launch"]),
        ("envbuilder launch ", ["slurm", "ssh", "local", "lint"]),
        ("envbuilder launch --", ["--help"]),
        ("envbuilder launch slurm a", ["a100"]),
        ("envbuilder launch slurm --sh", ["--shape"]),
        ("envbuilder launch slurm --shape ", ["torchrun", "tasks"]),
        ("envbuilder render cpu --as ", ["dockerfile", "apptainer"]),
        ("envbuilder exec cpu --in s", ["sif"]),
        ("envbuilder exec cpu --in sif ", []),
        ("envbuilder doctor --for ", ["build", "run"]),
        ("envbuilder diff ", RECIPES),
        ("envbuilder diff cpu a", ["a100"]),
        ("envbuilder diff cpu a100 ", []),
        ("envbuilder --v", ["--version"]),
        ("envbuilder show ", RECIPES),
        ("envbuilder show a", ["a100"]),
        ("envbuilder show a100 ", []),
        ("envbuilder build a100 --offline c", ["cpu"]),
        ("envbuilder build --output out ", RECIPES),
        ("envbuilder build --output ", []),
        ("envbuilder build --off", ["--offline"]),
        ("envbuilder build --offline --off", []),
        ("envbuilder exec cpu -- ", []),
        ("envbuilder cache ", []),
        ("envbuilder nonsense ", []),
        ("envbuilder show 'a", []),
        ("envbuilder show --recipes nowhere ", []),
    ],
)
def test_what_fits_is_offered(line: str, expected: list[str]):
    assert bash(line) == expected


def test_recipes_come_from_the_folder_that_is_named_and_odd_files_are_none(tmp_path: Path):
    for name in ("mine.yaml", "$(touch x).yaml", "notes.txt"):
        (tmp_path / name).touch()
    assert bash(f"envbuilder check --recipes {tmp_path} ") == ["mine"]
    assert bash("envbuilder check ", ENVBUILDER_RECIPES=str(tmp_path)) == ["mine"]


@pytest.mark.parametrize(
    "line", ["envbuilder ", "envbuilder l", "envbuilder show --re", "envbuilder exec --o"]
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_the_form_that_typer_gives_it(
    shell: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    action = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    answer = ask(shell, line, **action)
    assert answer
    for name, value in {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), **action}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    monkeypatch.setenv("_ENVBUILDER_COMPLETE", f"complete_{shell}")
    with pytest.raises(SystemExit):
        cli.app([], prog_name="envbuilder")
    typers = capsys.readouterr().out.strip()

    def names(text: str) -> list[str]:  # without the explanations, which differ in length
        return [part.split("\t")[0].split('":"')[0].rstrip("\")'") for part in text.splitlines()]

    assert names(answer.text) == names(typers)


def test_fish_is_told_by_the_exit_code_whether_files_belong_here():
    asked = {"_TYPER_COMPLETE_FISH_ACTION": "is-args"}
    assert ask("fish", "envbuilder show ", **asked) == ("", 0)
    assert ask("fish", "envbuilder build --output ", **asked) == ("", 1)
    assert ask("zsh", "envbuilder build --output ") == ("_files", 0)


@pytest.mark.parametrize("request_", ["", "source_bash", "complete_powershell"])
def test_other_requests_are_left_to_typer(request_: str):
    assert complete({"_ENVBUILDER_COMPLETE": request_}) is None


def test_a_line_without_words_offers_the_commands():
    assert list(offers([], "", {})) == [name for name in completion.VERBS if " " not in name]
    assert complete({"_ENVBUILDER_COMPLETE": "complete_bash"}) is not None


def test_the_program_answers_version_and_tab(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["envbuilder", "--version"])
    program.main()
    assert capsys.readouterr().out == f"envbuilder {__version__}\n"
    monkeypatch.setattr(sys, "argv", ["envbuilder"])
    monkeypatch.setenv("_ENVBUILDER_COMPLETE", "complete_fish")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "envbuilder show a")
    with pytest.raises(SystemExit) as end:
        program.main()
    assert (end.value.code, capsys.readouterr().out) == (0, "a100\n")


def test_the_program_hands_everything_else_to_the_command_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["envbuilder", "list"])
    monkeypatch.setattr(cli, "run", lambda arguments: 40 + len(arguments))
    with pytest.raises(SystemExit) as end:
        program.main()
    assert end.value.code == 41


@pytest.mark.programs
@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--version"], {}),
        ([], {"_ENVBUILDER_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "envbuilder s"}),
    ],
)
def test_neither_answer_imports_the_command_line(arguments: list[str], environment: dict[str, str]):
    end = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "envbuilder", *arguments],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in end.stderr.splitlines()}
    assert "envbuilder.commands.completion" in imported
    assert not imported & {"typer", "pydantic", "rich", "envbuilder.cli"}
    assert end.stdout
