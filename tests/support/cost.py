"""What a command costs, in a way that neither other load nor the machine's speed changes.

A command that has nothing to do is measured by the calls of functions that it makes, which are the same each time, however
loaded the machine is. `bench/run` has the CPU time. As a program this module imports what every command imports, and forks for each
command; those imports are not counted.

For programs that work, CPU time is compared with that of a reference in the same run: an import of what every command imports.
Other load makes a long program slower than a short one, by half of it, because programs push each other out of the processor's caches.
"""

import cProfile
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from envbuilder import cli

ROOT: Final = Path(__file__).parents[2]
LOADED: Final = 2  # how many times the promised cost something may take beside other load


def reference() -> float:
    """0.1 s on the machine for which costs are promised."""
    return cpu_seconds(sys.executable, "-c", "import pydantic, typer")


def cpu_seconds(*argv: object, env: dict[str, str] | None = None) -> float:
    """Of a program that must succeed, with all that it starts."""
    process = subprocess.Popen(
        [str(word) for word in argv], cwd=ROOT, env=os.environ | (env or {}),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, argv
    return usage.ru_utime + usage.ru_stime


def bytes_read(*argv: object, env: dict[str, str] | None = None) -> int:
    """By a program that must succeed, with all that it starts and waits for."""
    before = _own_reads()
    cpu_seconds(*argv, env=env)
    return _own_reads() - before


def counts_of_a_copy(folder: Path) -> int:
    """Return how often `_own_reads` counts a byte that the kernel copies there: 1, and 2 on an overlay, as in a container."""
    size = 1 << 20
    with tempfile.TemporaryFile(dir=folder) as source, tempfile.TemporaryFile(dir=folder) as target:
        source.write(bytes(size))
        source.seek(0)
        before = _own_reads()
        os.copy_file_range(source.fileno(), target.fileno(), size)
        return round((_own_reads() - before) / size)


def _own_reads() -> int:
    """Return how many bytes this process and its children that have ended have read."""
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])


class Idle(NamedTuple):
    calls: int  # of functions, beside those of what every command imports
    modules: frozenset[str]


def measure(commands: Iterable[str], env: Mapping[str, str]) -> dict[str, Idle]:
    """Run each command line once. Each must succeed."""
    argv = [sys.executable, "-m", "tests.support.cost", json.dumps([*commands])]
    ended = subprocess.run(
        argv, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=True
    )
    rows = json.loads(ended.stdout).items()
    return {command: Idle(calls, frozenset(modules)) for command, (calls, modules) in rows}


def main() -> None:
    rows = {}
    for command in json.loads(sys.argv[1]):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            run(command, writer)
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as stream:
            rows[command] = json.load(stream)
        _, status = os.waitpid(child, 0)
        assert status == 0, command
    print(json.dumps(rows))


def run(command: str, answer: int) -> None:
    """Run a command whose output is thrown away, write its calls and its modules into the pipe, and end this process."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    profile = cProfile.Profile()
    code = profile.runcall(cli.run, command.split())
    calls = sum(entry.callcount for entry in profile.getstats())
    os.write(answer, json.dumps([calls, [*sys.modules]]).encode())
    sys.exit(code)


if __name__ == "__main__":
    main()
