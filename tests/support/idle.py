"""Measure commands that have nothing to do: their CPU time, and the modules that they import.

This program imports what every command imports, and then forks for each command. The time of those imports counts for
every command, so the sum is what a process of its own takes.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from envbuilder import cli

ROOT: Final = Path(__file__).parents[2]


class Idle(NamedTuple):
    seconds: float  # of CPU
    modules: frozenset[str]


def measure(commands: Iterable[str], env: Mapping[str, str]) -> dict[str, Idle]:
    """Run each command line once. Each must succeed."""
    argv = [sys.executable, "-m", "tests.support.idle", json.dumps([*commands])]
    ended = subprocess.run(
        argv, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=True
    )
    rows = json.loads(ended.stdout).items()
    return {command: Idle(seconds, frozenset(modules)) for command, (seconds, modules) in rows}


def main() -> None:
    shared, rows = time.process_time(), {}
    for command in json.loads(sys.argv[1]):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            run(command, writer)
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as stream:
            modules = json.load(stream)
        _, status, usage = os.wait4(child, 0)
        assert status == 0, command
        rows[command] = shared + usage.ru_utime + usage.ru_stime, modules
    print(json.dumps(rows))


def run(command: str, modules: int) -> None:
    """Run a command whose output is thrown away, write the names of modules into the pipe, and end this process."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    code = cli.run(command.split())
    os.write(modules, json.dumps([*sys.modules]).encode())
    sys.exit(code)


if __name__ == "__main__":
    main()
