"""A real test of P2P on this node: peer copies for every pair of GPUs, and an all-reduce with P2P and without.

Each run has processes of its own that may hang: they get a time limit and are killed. What a pass or a failure means is
for `rules`; this only runs and reports.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess  # noqa: TID251 - it runs inside the images, where there is no `envbuilder.core.process`
import tempfile
import time
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import IO, Callable, Mapping, Sequence

WITHOUT = {"NCCL_P2P_DISABLE": "1"}
CLEARED = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")


@dataclass(frozen=True)
class Bench:
    python: str
    program: str  # rank.py
    backend: str = "nccl"
    limit: float = 90.0  # seconds for one run; the import of torch from a cold disk is part of it
    # Seconds that the others get when one process has failed, and that a killed one gets to go.
    grace: float = 3.0


@dataclass(frozen=True)
class Result:
    """How one run ended; `answer` is its last line, or the reason of the failure."""

    ok: bool
    answer: str


def measured_path(environment: Mapping[str, str], node: str) -> Path:
    """Return the file of a node's verdict in the user's home; `envbuilder_nccl` uses the same."""
    state = environment.get("XDG_STATE_HOME") or f"{environment.get('HOME', '/nonexistent')}/.local/state"
    return Path(state, "envbuilder", f"measured-{node}.json")


def count_gpus(bench: Bench, environment: Mapping[str, str]) -> int:
    """Count the GPUs that torch sees; 0 where torch fails."""
    ran = run_together(bench, [("count",)], [environment])
    return int(ran.answer) if ran.ok and ran.answer.isdigit() else 0


def measure(
    bench: Bench, count: int, environment: Mapping[str, str], tell: Callable[[str], None]
) -> tuple[bool, bool, str]:
    """Whether all passed with P2P as NCCL would use it, whether the all-reduce passed without, and the details."""
    plain = {name: value for name, value in environment.items() if name not in CLEARED}
    failures = []
    pairs = list(combinations(range(count), 2))
    for gpu, other in pairs:
        ran = run_together(bench, [("pair", str(gpu), str(other))], [plain])
        tell(f"GPU{gpu} and GPU{other}: {ran.answer}")
        if not ran.ok:
            failures.append(f"GPU{gpu} and GPU{other}: {ran.answer}")
    details = failures or [f"{len(pairs)} pair{'s' if len(pairs) > 1 else ''} of GPUs: ok"]
    results = []
    for name, more in (("with P2P", {}), ("without P2P", WITHOUT)):
        ran = all_reduce(bench, count, {**plain, **more})
        tell(f"all-reduce over {count} GPUs {name}: {ran.answer}")
        details.append(f"all-reduce {name}: {ran.answer}")
        results.append(ran.ok)
    return not failures and results[0], results[1], "; ".join(details)


def all_reduce(bench: Bench, count: int, environment: Mapping[str, str]) -> Result:
    """Run one rank for each GPU of this node."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    ranks = [{**environment, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    return run_together(bench, [("reduce", bench.backend)] * count, ranks)


def run_together(
    bench: Bench, arguments: Sequence[tuple[str, ...]], environments: Sequence[Mapping[str, str]]
) -> Result:
    """Start all and wait; the first failure or the time limit ends the others."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in arguments]
        processes = [
            subprocess.Popen(
                [bench.python, bench.program, *words],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for words, environment, out in zip(arguments, environments, files)
        ]
        try:
            late = _wait(processes, bench)
            return _judge(processes, files, bench.limit, late=late)
        finally:
            _end(processes, bench.grace)


def _wait(processes: list[subprocess.Popen[bytes]], bench: Bench) -> bool:
    """Wait until all have ended, or one has failed and the others had their grace. Return whether time ran out before."""
    deadline = time.monotonic() + bench.limit
    failed = False
    while any(process.poll() is None for process in processes):
        if not failed and any(process.poll() for process in processes):
            failed = True
            deadline = min(deadline, time.monotonic() + bench.grace)
        if time.monotonic() > deadline:
            return not failed
        time.sleep(0.02)
    return False


def _judge(
    processes: list[subprocess.Popen[bytes]], files: Sequence[IO[str]], limit: float, *, late: bool
) -> Result:
    if late:
        hanging = [str(rank) for rank, process in enumerate(processes) if process.poll() is None]
        who = f"process {', '.join(hanging)} of {len(processes)}" if len(processes) > 1 else "the process"
        return Result(ok=False, answer=f"hangs: {who} did not end within {limit:.0f} s")
    for rank, process in enumerate(processes):
        if code := process.poll():
            last = _last_line(files[rank]) or "no word"
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            return Result(ok=False, answer=f"process {rank} {how}: {last}")
    return Result(ok=True, answer=_last_line(files[0]))


def _last_line(file: IO[str]) -> str:
    file.seek(0)
    return file.read().rstrip().rpartition("\n")[2].strip()


def _end(processes: list[subprocess.Popen[bytes]], grace: float) -> None:
    """Kill the processes that are left. Wait only for `grace`: a broken driver can make a process unkillable."""
    for process in processes:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + grace
    for process in processes:
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
