"""Find the nodes of a job and look at its ranks there: on this machine, over SSH or through Slurm, as `launch` reached them."""

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from envbuilder.core.errors import CommandError, LaunchError, UsageError
from envbuilder.core.process import Command, Runner
from envbuilder.diagnose.collectives import Ranks
from envbuilder.diagnose.recorder import read_dump
from envbuilder.run.watch.verdict import NodeLook, Verdict, judge

NODES: Final = (
    "nodes"  # in a job's folder of logs: how each node is reached, one command a line; none for this machine
)
_LOOK: Final = Path(__file__).with_name("look.py")
_PY_SPY: Final = Path(sys.executable).with_name("py-spy")
_SECONDS: Final = 3.0  # between the two looks
_PAUSE: Final = 5.0  # between two questions whether a rank has written


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A job to look at: its mark in the settings of its processes, or one of them, and the ways to its nodes."""

    job: str = ""
    pid: int = 0
    folder: Path = Path()
    ways: tuple[tuple[str, ...], ...] = ()


def find_job(name: str, logs: Path) -> Watched:
    """Return the job of a folder of logs, of the number of a job, or of a process. Raises UsageError for anything else."""
    folders = [Path(name)] if Path(name).is_dir() else sorted(logs.glob(f"*-{name}/"))
    if folders:
        folder = folders[-1].resolve()
        job = "-".join(folder.name.rsplit("-", 3)[-3:])  # NAME-DAY-TIME-PID; Slurm's is a number
        job = job if job.replace("-", "").isdigit() else folder.name.rpartition("-")[2]
        return Watched(job=job, folder=folder, ways=_read_ways(folder / NODES))
    if name.isdigit() and Path("/proc", name).is_dir():
        return Watched(pid=int(name))
    if name.isdigit():
        return Watched(job=name, ways=(slurm_way(name),))
    raise UsageError(
        f"`{name}` is no folder of logs, no job and no process",
        hint="`envbuilder watch logs/NAME-JOB`, or the PID of one rank or of torchrun",
    )


def _read_ways(path: Path) -> tuple[tuple[str, ...], ...]:
    """Return the commands that reach the nodes. Raises UsageError for a file that another user wrote: they would run as this one."""
    try:
        with path.open(encoding="utf-8") as stream:
            status = os.fstat(stream.fileno())
            lines = stream.read().splitlines()
    except OSError:
        return ()
    if lines and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
        raise UsageError(
            f"`{path}` has commands that another user may have written: it belongs to user {status.st_uid}",
            hint="run `watch` as the user who launched the job",
        )
    return tuple(tuple(shlex.split(line)) for line in lines)


def slurm_way(job: str) -> tuple[str, ...]:
    """Return the command that runs a program on each node of a job, beside its steps."""
    return ("srun", f"--jobid={job}", "--overlap", "--ntasks-per-node=1", "--quiet")


def look_at(watched: Watched, runner: Runner, *, ends: bool = False) -> Verdict:
    """Look at all ranks of a job. Raises LaunchError where a node cannot be reached."""
    spec = {
        "job": watched.job, "pid": watched.pid, "py_spy": str(_PY_SPY), "seconds": _SECONDS, "ends": ends,
        "folder": str(watched.folder),
    }  # fmt: skip
    began = time.time()
    nodes = [node for way in watched.ways or ((),) for node in _look(way, json.dumps(spec), runner)]
    return judge(nodes, _recorded(watched.folder, began))


def _look(way: Sequence[str], spec: str, runner: Runner) -> Iterator[NodeLook]:
    program = ("python3", "-", shlex.quote(spec) if "ssh" in way[:1] else spec)
    argv = (*way, *program) if way else (sys.executable, "-I", *program[1:])
    try:
        answer = runner.run(Command(argv=argv, why="look at the ranks of the job", input=_LOOK.read_bytes()))
        for line in answer.splitlines():
            if line.startswith("{"):
                yield NodeLook.model_validate_json(line)
    except (CommandError, ValidationError) as error:
        hint = "a node needs Python 3.8 or newer as `python3`, and must be reached without a password"
        raise LaunchError(f"cannot look at the ranks: {error}", hint=hint) from error


def _recorded(folder: Path, since: float) -> list[str]:
    """Return what the dumps that torch's recorder has just written say about the ranks."""
    ranks = Ranks()
    for path in sorted(folder.glob("recorder_*")) if folder != Path() else ():
        if path.stat().st_mtime >= since - 1:
            with path.open("rb") as stream:
                read_dump(stream, str(path), ranks)
    return [stall.message for stall in ranks.stalls()]


def wait_for_hang(
    watched: Watched, minutes: float, look: Callable[[], Verdict], report: Callable[[Verdict], None]
) -> None:
    """Report each hang of a job until it has no rank any more. It looks when no rank has written for so long."""
    parent, reported, has_begun = os.getppid(), 0.0, False
    while os.getppid() == parent:  # the script of the job that started this
        time.sleep(min(_PAUSE, minutes * 60))
        last = max((path.stat().st_mtime for path in watched.folder.rglob("*.log")), default=0.0)
        if time.time() - last < minutes * 60 or last == reported:
            continue
        verdict = look()
        if has_begun and not verdict.ranks:
            return
        has_begun = bool(verdict.ranks)
        if verdict.is_hang and (verdict := look()).is_hang:
            report(verdict)
            reported = last
