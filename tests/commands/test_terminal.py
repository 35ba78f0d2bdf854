"""What stands on a real terminal's screen, narrow and wide: nothing is broken by the terminal itself, and it can be answered."""

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.serving import silent_server
from tests.support.tmux import terminal

ROOT = Path(__file__).parents[2]
ENVBUILDER = ROOT / ".venv/bin/envbuilder"
pytestmark = pytest.mark.programs
SECONDS = 60  # for what takes one, on a machine that builds as well


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str]:
    return {"ENVBUILDER_CACHE": str(tmp_path / "cache")}


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("show", "t4"),
        ("show", "cpu", "--extensions"),
        ("--help",),
        ("lock", "--help"),
        ("cache",),
        ("diff", "cpu", "a100"),
        ("detect",),
        ("doctor", "--for", "run"),
    ],
)
def test_tables_and_help_fit_the_terminal(
    words: tuple[str, ...], width: int, tmp_path: Path, cache: dict[str, str], warm: Path
):
    with terminal(ROOT, tmp_path, width=width, height=120, **cache) as screen:
        screen.start(warm / "envbuilder", *words)
        assert screen.code(SECONDS) == 0 or words[0] == "doctor"  # which may find something missing
        lines = screen.screen()
        assert len(lines) > 2
        assert lines == screen.screen(joined=True)


def test_a_mistake_fits_the_screen_with_its_hint_last(tmp_path: Path, cache: dict[str, str]):
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "bad.yaml").write_text("\n".join(f"key{number}: x" for number in range(60)))
    with terminal(ROOT, tmp_path, width=80, height=24, **cache) as screen:
        screen.start(ENVBUILDER, "check", folder / "bad.yaml")
        assert screen.code(SECONDS) == 2
        lines = screen.screen()
    assert lines[0].startswith("error: the recipe")
    assert any("more lines; `--json` has all" in line for line in lines)


@pytest.mark.parametrize(
    "words",
    [
        ("check", "cpuu"),
        ("diff", "cpu", "nope"),
        ("pull", "cpu"),
        ("render", "cpu", "--as", "podman"),
        ("cache", "nope"),
        ("init", "mine", "--gpu", "A1000"),
    ],
)
def test_what_is_said_of_a_mistake_breaks_between_words(
    words: tuple[str, ...], tmp_path: Path, cache: dict[str, str], warm: Path
):
    with terminal(ROOT, tmp_path, width=80, **cache) as screen:
        screen.start(warm / "envbuilder", *words)
        assert screen.code(SECONDS) == 2
        lines = screen.screen()
        assert lines[1:]
        assert lines == screen.screen(joined=True)


def is_asked(question: str, lines: list[str], *, after: str) -> bool:
    """Whether the question is asked below a line that begins with `after`."""
    is_last = question in "".join(lines[-1:]) and lines[-1].endswith("]:")
    return is_last and any(line.startswith(after) for line in lines)


def test_init_asks_three_questions_and_writes_the_recipe(tmp_path: Path, cache: dict[str, str]):
    with terminal(tmp_path, tmp_path, width=80, **cache) as screen:
        screen.start(ENVBUILDER, "init", "mine")
        for question, after, answer in (
            ("GPU model", "", "A1000"),
            ("GPU model", "no GPU `A1000` is known", "a100"),
            ("PyTorch", "", "2.6.0"),
            ("Python", "", "3.11"),
        ):
            screen.wait(
                lambda asked=question, after=after: is_asked(asked, screen.screen(), after=after), SECONDS
            )
            screen.type(answer, "Enter")
        assert screen.code(SECONDS) == 0
        lines = screen.screen()
        assert lines == screen.screen(joined=True)
        assert any(line.startswith("no GPU `A1000` is known: did you mean") for line in lines)
    assert 'pytorch: "2.6.0"' in (tmp_path / "recipes/mine.yaml").read_text()


def test_ctrl_c_at_a_question_writes_nothing(tmp_path: Path, cache: dict[str, str]):
    with terminal(tmp_path, tmp_path, width=80, **cache) as screen:
        screen.start(ENVBUILDER, "init", "mine")
        screen.wait(lambda: any("GPU model" in line for line in screen.screen()), SECONDS)
        screen.type("C-c")
        assert screen.code(SECONDS) == 130
    assert not (tmp_path / "recipes").exists()


@pytest.mark.parametrize("words", [("pull", "{place}/x"), ("lock", "cpu", "--recipes", "recipes")])
def test_ctrl_c_ends_what_waits_for_a_server_within_two_seconds(
    words: tuple[str, ...], tmp_path: Path, cache: dict[str, str]
):
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    with silent_server() as (place, asked):
        lock = tmp_path / "recipes/cpu.lock"
        lock.unlink()
        sources = dict.fromkeys(("ENVBUILDER_INDEX", "ENVBUILDER_DEBIAN_MIRROR"), f"http://{place}/debian")
        with terminal(tmp_path, tmp_path, width=80, **cache, **sources) as screen:
            screen.start(ENVBUILDER, *(word.format(place=place) for word in words))
            assert asked.wait(SECONDS)
            began = time.monotonic()
            screen.type("C-c")
            assert screen.code(SECONDS) == 130
            assert time.monotonic() - began < 2
            assert "interrupted" in screen.screen()
            assert screen.has_cursor()
        assert not lock.exists()


def test_in_a_pipe_there_are_no_control_codes_and_no_breaks():
    env = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | {
        "COLUMNS": "40",
        "TERM": "xterm-256color",
    }
    ended = subprocess.run(
        [ENVBUILDER, "list"], cwd=ROOT, env=env, capture_output=True, check=True, timeout=SECONDS
    )
    assert b"\x1b" not in ended.stdout + ended.stderr
    assert len(ended.stdout.splitlines()) == len(list((ROOT / "recipes").glob("*.yaml")))


PROMPT = "ready>"
RC = {
    "bash": (".bashrc", f"PS1='{PROMPT} '\n"),
    "zsh": (".zshrc", f"PS1='{PROMPT} '\nunsetopt PROMPT_SP\n"),
    "fish": (
        ".config/fish/config.fish",
        # What it suggests while a word is typed would run the completion for every letter.
        f"function fish_prompt; echo -n '{PROMPT} '; end\nset fish_greeting\nset fish_autosuggestion_enabled 0\n",
    ),
}


# The same program answers in every shell, twice for each word in fish.
COMPLETED = (
    ("det", "detect"),
    ("build oct", "build octformer"),
    ("build --off", "build --offline"),
    ("launch slurm a", "launch slurm a100"),
    ("show m", "show mudiff"),
)


@pytest.mark.parametrize("shell", RC)
def test_tab_completes_in_a_shell_that_installed_it(
    shell: str, tmp_path: Path, cache: dict[str, str], warm: Path
):
    """What is typed is known to have come when it is on the screen, what TAB made of it when the shell has echoed it."""
    home = tmp_path / "home"
    rc = home / RC[shell][0]
    rc.parent.mkdir(parents=True)
    rc.write_text(RC[shell][1])

    def begin(programs: Path) -> None:
        env = f"env HOME={home} PATH={shlex.quote(str(programs))}:/usr/bin:/bin"  # tmux would keep the PATH that it was started with
        screen.type(f"clear; exec {env} {shell} -i", "Enter")
        screen.wait(lambda: screen.screen() == [PROMPT], SECONDS)

    with terminal(ROOT, tmp_path, width=100, **cache) as screen:
        begin(ENVBUILDER.parent)  # it looks which shell has started it
        screen.type("envbuilder --install-completion", "Enter")
        screen.wait(lambda: any("take effect" in line for line in screen.screen()), SECONDS)
        begin(warm)
        for typed, made in COMPLETED if shell == "bash" else COMPLETED[:2]:
            screen.type("-l", f"envbuilder {typed}")
            screen.wait(
                lambda typed=typed: screen.screen()[-1].startswith(f"{PROMPT} envbuilder {typed}"), SECONDS
            )
            screen.type("Tab", "C-a")
            screen.type("-l", "echo : ")
            screen.type("Enter")
            screen.wait(lambda made=made: f": envbuilder {made}" in screen.screen(), SECONDS)
            screen.wait(lambda: screen.screen()[-1] == PROMPT, SECONDS)
        screen.type("-l", "envbuilder launch ")
        screen.type("Tab", "Tab")
        screen.wait(
            lambda: {"slurm", "ssh", "local", "lint"} <= set(" ".join(screen.screen()).split()), SECONDS
        )


def test_the_json_of_an_error_has_what_the_screen_leaves_out(tmp_path: Path):
    (tmp_path / "bad.yaml").write_text("\n".join(f"key{number}: x" for number in range(60)))
    ended = subprocess.run(
        [ENVBUILDER, "check", tmp_path / "bad.yaml", "--json"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    named = {re.search(r"`(key\d+)`", finding["message"]) for finding in json.loads(ended.stdout)["findings"]}
    assert len({found[1] for found in named if found}) == 60
