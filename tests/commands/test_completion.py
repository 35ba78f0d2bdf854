"""TAB offers commands, options, fixed values and recipes, in the form of each shell."""

from collections.abc import Callable
from pathlib import Path

import pytest

from envbuilder import cli
from envbuilder.commands import COMMANDS
from envbuilder.recipe.load import list_recipes

ROOT = Path(__file__).parents[2]
RECIPES = list(list_recipes(ROOT / "recipes"))
ZSH = """_arguments '*: :(("list":"List the recipes with their pins"
"lock":"Resolve a recipe into its lock"
"launch":"Start a distributed run"))'"""
Ask = Callable[..., str]

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Answer a line as the installed script of a shell asks for it."""

    def run(shell: str, line: str) -> str:
        words = line.split(" ")
        for name, value in {
            "_ENVBUILDER_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": "\n".join(words),
            "COMP_CWORD": str(len(words) - 1),
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.argv", ["envbuilder"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        return capsys.readouterr().out.rstrip("\n")

    return run


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("envbuilder ", list(COMMANDS)),
        ("envbuilder l", ["list", "lock", "launch"]),
        ("envbuilder launch ", ["slurm", "ssh", "local", "lint"]),
        ("envbuilder launch --", ["--help"]),
        ("envbuilder launch slurm a", ["a100"]),
        ("envbuilder launch slurm --sh", ["--shape"]),
        ("envbuilder launch slurm --shape ", ["torchrun", "tasks"]),
        ("envbuilder render cpu --as ", ["dockerfile", "apptainer"]),
        ("envbuilder build --runner ", ["sandbox", "buildkit"]),
        ("envbuilder build --on ", ["slurm"]),
        ("envbuilder exec cpu --in s", ["sif"]),
        ("envbuilder exec cpu --in sif ", []),
        ("envbuilder push --only ", ["image", "sif"]),
        ("envbuilder pull --only ", ["image", "sif"]),
        ("envbuilder doctor --for ", ["build", "run"]),
        ("envbuilder detect --recipe a", ["a100"]),
        ("envbuilder diff ", RECIPES),
        ("envbuilder diff cpu a", ["a100"]),
        ("envbuilder diff cpu a100 ", []),
        ("envbuilder --v", ["--version"]),
        ("envbuilder show ", RECIPES),
        ("envbuilder show a", ["a100"]),
        ("envbuilder show a100 ", []),
        ("envbuilder show ./re", []),
        ("envbuilder build a100 --offline cp", ["cpu"]),
        ("envbuilder build --output out ", RECIPES),
        ("envbuilder build --output ", []),
        ("envbuilder build --off", ["--offline"]),
        ("envbuilder build --offline --off", []),
        ("envbuilder exec cpu -- ", []),
        ("envbuilder cache ", []),
        ("envbuilder show 'a", ["a100"]),
        ("envbuilder show --recipes nowhere ", []),
    ],
)
def test_what_fits_is_offered(ask: Ask, line: str, expected: list[str]):
    assert ask("bash", line).splitlines() == expected


def test_recipes_come_from_the_named_folder_without_odd_files(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("mine.yaml", "$(touch x).yaml", "notes.txt"):
        (tmp_path / name).touch()
    assert ask("bash", f"envbuilder check --recipes {tmp_path} ") == "mine"
    monkeypatch.setenv("ENVBUILDER_RECIPES", str(tmp_path))
    assert ask("bash", "envbuilder check ") == "mine"
    assert ask("bash", "envbuilder exec ") == "mine"


@pytest.mark.parametrize(
    ("shell", "expected"),
    [
        ("bash", "list\nlock\nlaunch"),
        (
            "zsh",
            ZSH,
        ),
        (
            "fish",
            "list\tList the recipes with their pins\nlock\tResolve a recipe into its lock\nlaunch\tStart a distributed run",
        ),
    ],
)
def test_each_shell_gets_its_form(ask: Ask, shell: str, expected: str):
    assert ask(shell, "envbuilder l") == expected


def test_zsh_offers_files_where_nothing_else_fits(ask: Ask):
    assert ask("zsh", "envbuilder build --output ") == "_files"


@pytest.mark.parametrize(("line", "code"), [("envbuilder show ", 0), ("envbuilder build --output ", 1)])
def test_fish_learns_from_the_exit_code_whether_files_fit(
    line: str, code: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("_ENVBUILDER_COMPLETE", "complete_fish")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "is-args")
    monkeypatch.setattr("sys.argv", ["envbuilder"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code


@pytest.mark.parametrize(
    ("shell", "form"), [("zsh", "#compdef envbuilder"), ("fish", "complete --command envbuilder")]
)
def test_the_script_is_that_of_the_shell_that_was_named(
    shell: str, form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "")
    with pytest.raises(SystemExit) as ended:
        cli.run(["--show-completion", shell])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(form)


def test_a_shell_that_cannot_be_completed_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "")
    assert cli.run(["--install-completion", "tcsh"]) == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in capsys.readouterr().err
