"""What a command costs that has nothing to do: no library that it does not need, and little CPU time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envbuilder.commands import COMMANDS
from tests.support.cost import LOADED, ROOT, cpu_seconds, reference

pytestmark = pytest.mark.programs

ENVBUILDER = ROOT / ".venv/bin/envbuilder"
IDLE = (
    "--version", "--help", "list", "show a100", "check a100", "lock cpu --check",
    "render cpu", "extensions a100", "detect", "cache",
)  # fmt: skip
HELP = tuple(f"{name} --help" for name in COMMANDS)
LIGHT = ("add --help", "doctor --help", "exec --help")
# Libraries for networks, engines, keys and SIFs: each takes as long to import as the rest of such a command.
HEAVY = frozenset({"cryptography", "docker", "requests", "spython", "sqlite3", "urllib3", "zstandard"})
TIMES_REFERENCE = 3.5  # 0.35 s where the reference takes 0.1 s


@pytest.mark.parametrize("command", [*IDLE, *LIGHT])
def test_a_command_imports_no_library_that_it_does_not_need(command: str, tmp_path: Path):
    argv = [sys.executable, "-X", "importtime", ENVBUILDER, *command.split()]
    env = os.environ | own_cache(tmp_path)
    ended = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    lines = [line for line in ended.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip() for line in lines}
    assert "typer" in imported
    assert imported & HEAVY == set()


def test_a_command_with_nothing_to_do_takes_little_cpu_time(tmp_path: Path):
    """One that took too much is measured again, since other load on the machine only ever adds."""
    env, slow = own_cache(tmp_path), dict.fromkeys((*IDLE, *HELP), 0.0)
    limit = LOADED * TIMES_REFERENCE * min(reference() for _ in range(3))
    for _ in range(3):
        took = {command: cpu_seconds(ENVBUILDER, *command.split(), env=env) for command in slow}
        slow = {command: seconds for command, seconds in took.items() if seconds > limit}
    assert slow == {}, limit


def own_cache(folder: Path) -> dict[str, str]:
    return {"ENVBUILDER_CACHE": str(folder / "cache")}
