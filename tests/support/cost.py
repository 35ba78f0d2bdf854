"""What a command costs, in a way that neither other load nor the machine's speed changes much.

CPU time is compared with that of a reference in the same run: an import of what every command imports. Other load makes a
long program slower than a short one, by half of it, because programs push each other out of the processor's caches.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

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
