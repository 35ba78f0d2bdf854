"""`exec` and `shell` in the real SIF and the real image: input, output, signals, exit codes, and a real terminal."""

import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cluster import wait_until
from tests.support.workbench import ENVBUILDER, Built, attempt, open_folder

pytestmark = pytest.mark.builds

HANDLER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def project() -> Iterator[Path]:
    """A checkout outside of what Apptainer shares by itself, with a folder inside it."""
    with open_folder() as folder:
        (folder / ".git").mkdir()
        (folder / "data").write_text("of the project\n")
        (folder / "src").mkdir()
        yield folder / "src"


@pytest.fixture(params=["sif", "image"])
def line(request: pytest.FixtureRequest, tiny: Built) -> Callable[..., list[str]]:
    """A command line in one of the two forms."""

    def make(verb: str, *words: str) -> list[str]:
        return [ENVBUILDER, verb, "tiny", "--output", str(tiny.output), "--in", request.param, *words]

    return make


def test_the_project_is_where_it_was_and_output_and_code_pass_through(line, project):
    ended = attempt(*line("exec", "--", "sh", "-c", "pwd; cat ../data; echo why >&2; exit 7"), cwd=project)
    assert (ended.returncode, ended.stdout) == (7, f"{project}\nof the project\n")
    assert ended.stderr.endswith("why\n")


def test_input_passes_through(line):
    ended = subprocess.run(
        line("exec", "--", "wc", "-c"), input=b"x" * 300_000, capture_output=True, timeout=60, check=True
    )
    assert ended.stdout.strip() == b"300000"


def test_the_user_packages_stay_out(line):
    shown = attempt(*line("exec", "--", "python", "-c", "import site; print(site.ENABLE_USER_SITE)"))
    assert shown.stdout == "False\n"


def test_a_signal_reaches_the_program_and_its_exit_code_comes_back(line):
    running = subprocess.Popen(
        line("exec", "--", "python", "-c", HANDLER),
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == 9
    running.stdout.close()


def test_what_is_printed_is_what_is_run(line, project):
    shown = attempt(*line("exec", "--print", "--", "cat", "../data"), cwd=project).stdout
    assert attempt("sh", "-c", shown, cwd=project).stdout == "of the project\n"


def test_a_shell_has_a_terminal(line, tmp_path):
    """In tmux: the size of its window, Ctrl-C for what runs in it, and the shell's exit code."""
    socket, end = tmp_path / "tmux", tmp_path / "end"
    tmux = ("tmux", "-S", socket, "-f", "/dev/null")
    words = shlex.join(line("shell"))
    attempt(
        *tmux, "new-session", "-d", "-x", "93", "-y", "31", f"{words}; echo $? >{end}", env={"TERM": "xterm"}
    )

    def screen() -> str:
        return attempt(*tmux, "capture-pane", "-p", "-J").stdout

    def enter(keys: str) -> None:
        attempt(*tmux, "send-keys", keys, "Enter")

    try:
        wait_until("the shell asks", lambda: screen().strip().endswith((">", "#", "$")), 60)
        enter("tty && stty size")
        wait_until("it knows its size", lambda: "31 93" in screen() or "30 93" in screen())
        assert "/dev/pts/" in screen() or "/dev/console" in screen()
        enter("sleep 100")
        time.sleep(1)
        attempt(*tmux, "send-keys", "C-c")
        enter("exit 4")
        wait_until("it has ended", end.exists)
        wait_until("its code is known", end.read_text)
        assert end.read_text() == "4\n"
    finally:
        attempt(*tmux, "kill-server")


RANKS = """
import sys
import torch.distributed as dist
from envbuilder_smoke import StepMismatchError, assert_same_steps
dist.init_process_group("gloo")
assert_same_steps(7)
try:
    assert_same_steps(7 + dist.get_rank())
except StepMismatchError as error:
    # One write for the line and its end: two would be mixed with the other rank's where Python does not buffer.
    sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()}: {error}\\n")
    sys.stdout.flush()
dist.destroy_process_group()
"""


def test_ranks_that_made_different_numbers_of_steps_all_say_so(cpu, project):
    (project / "train.py").write_text(RANKS)
    words = ("torchrun", "--standalone", "--nproc_per_node", "2", "train.py")
    ended = attempt(ENVBUILDER, "exec", "cpu", "--output", cpu.output, "--", *words, cwd=project)
    said = [line for line in ended.stdout.splitlines() if line.startswith("rank")]
    assert sorted(line[:11] for line in said) == ["rank 0 of 2", "rank 1 of 2"]
    assert all("ranks made different numbers of steps" in line for line in said)


def test_a_smoke_run_of_too_few_ranks_fails(cpu, project):
    words = ("torchrun", "--standalone", "--nproc_per_node", "2", "-m", "envbuilder_smoke", "--ranks", "3")
    ended = attempt(ENVBUILDER, "exec", "cpu", "--output", cpu.output, "--", *words, cwd=project)
    assert ended.returncode != 0
    assert "WRONG: 2 ranks on 1 nodes, wanted 3" in ended.stdout
    assert "FAILED: rank 1: world size" in ended.stdout
