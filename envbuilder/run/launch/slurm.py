"""Ask Slurm about partitions before a job is submitted, and about the job until it ends."""

import re
import time
from collections.abc import Callable
from typing import Final

from envbuilder.core.errors import CommandError, LaunchError, ToolError, UsageError
from envbuilder.core.process import Command, Runner
from envbuilder.run.launch.job import Job

LONGEST_PAUSE: Final = 10.0  # seconds between two questions about a job; `sbatch --wait` has the same
# Options of `sbatch` that change which nodes a job can get.
_OTHER_NODES: Final = frozenset({"--partition", "--nodes", "--clusters", "--cluster"})
_ENDED: Final = frozenset(
    {
        "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED",
        "REVOKED", "LAUNCH_FAILED",
    }
)  # fmt: skip
# The beginnings of Slurm's reasons (https://slurm.schedmd.com/job_reason_codes.html), in words.
_REASONS: Final = {
    "Resources": "its nodes are in use",
    "Priority": "other jobs come first",
    "Dependency": "another job must end first",
    "BeginTime": "its time has not come",
    "ReqNodeNotAvail": "a node that it needs is down or reserved",
    "Partition": "its partition does not take it as it is: see `scontrol show partition`",
    "Assoc": "a limit of your account is reached",
    "QOS": "a limit of the QOS is reached",
    "JobHeld": "it is held: `scontrol release` frees it",
}


def check_job(job: Job, runner: Runner) -> str:
    """Return a warning about a job without GPUs, or "". Raises UsageError for more nodes or time than its partition has.

    Slurm would queue such a job, and never start it.
    """
    slurm = job.site.slurm
    if not any(option.partition("=")[0] in _OTHER_NODES for option in slurm.options):
        _check_partition(job.nodes, slurm.time, slurm.partition, runner)
    if job.environment.cuda and not job.gpus:
        return f"`{job.environment.name}` is made for GPUs, and the job asks for none: `--gpus-per-node G`"
    return ""


def check_time(job: Job) -> str:
    """Return a warning about a time limit that leaves none for the program, or ""."""
    limit = job.site.slurm.time
    if limit in ("", "UNLIMITED") or _seconds(limit) > job.grace:
        return ""
    return f"`--time {limit}` leaves no time: ranks get TERM {job.grace} s before the limit (`--grace`)"


def _seconds(limit: str) -> int:
    """Return the seconds of M, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    days, _, rest = limit.rpartition("-")
    hours = [] if days or rest.count(":") == 2 else [0]
    h, m, s, *_ = (*hours, *map(int, rest.split(":")), 0, 0)
    return ((int(days or 0) * 24 + h) * 60 + m) * 60 + s


def _check_partition(nodes: int, limit: str, named: str, runner: Runner) -> None:
    command = Command(
        argv=("scontrol", "--oneliner", "show", "partition"), why="ask Slurm for its partitions"
    )
    try:
        lines = runner.run(command).splitlines()
    except (CommandError, ToolError):
        return  # `sbatch` will say it
    rooms = {_value(line, "PartitionName"): _room(line) for line in lines}
    chosen = (
        named.split(",")
        if named
        else [_value(one, "PartitionName") for one in lines if _value(one, "Default") == "YES"]
    )
    longest = {_value(one, "MaxTime") for one in lines if _value(one, "PartitionName") in chosen} - {""}
    if limit not in ("", "UNLIMITED") and longest and "UNLIMITED" not in longest:
        most = max(longest, key=_seconds)
        if _seconds(limit) > _seconds(most):
            raise UsageError(
                f"the job asks for the time {limit}, and the partition `{','.join(chosen)}` gives a job {most} at most",
                hint=f"`--time {most}`",
            )
    largest = max((rooms[name] for name in chosen if name in rooms), default=nodes)
    if nodes > largest:
        fitting = [name for name, room in rooms.items() if room >= nodes]
        raise UsageError(
            f"the job asks for {nodes} nodes, and the partition `{','.join(chosen)}` gives a job {largest} at most",
            hint=f"`--partition {fitting[0]}` has as many"
            if fitting
            else f"`--nodes {largest}`; no partition has as many",
        )


def _room(line: str) -> int:
    """Return how many nodes a partition gives one job."""
    total, most = _value(line, "TotalNodes"), _value(line, "MaxNodes")
    return min(int(number) for number in (total, most, str(2**31)) if number.isdigit())


def wait_for_end(
    number: str, runner: Runner, report: Callable[[str], None], pause: Callable[[float], None] = time.sleep
) -> bool:
    """Wait until the job, or each task of an array, has ended; report why it waits. Return whether all went well.

    Raises LaunchError when Slurm no longer knows the job.
    """
    said, is_well, seconds = "", True, 1.0
    while True:
        states, words = _ask(number, runner)
        is_well = is_well and not states & (_ENDED - {"COMPLETED"})
        if states <= _ENDED:
            return is_well
        if words not in ("", said):
            report(f"job {number} {words}")
            said = words
        pause(seconds)
        seconds = min(seconds + 1, LONGEST_PAUSE)


def after_interrupt(number: str, runner: Runner) -> str:
    """Say whether the job goes on when nobody waits for it any more."""
    try:
        states, _ = _ask(number, runner)
    except LaunchError:
        states = {"COMPLETED"}
    if states <= _ENDED:
        return f"job {number} has ended"
    return f"job {number} goes on; to end it: scancel {number}"


def _ask(number: str, runner: Runner) -> tuple[set[str], str]:
    """Return the states of the job's tasks, and what it does in words."""
    command = Command(
        argv=("scontrol", "--oneliner", "show", "job", number), why=f"ask Slurm about job {number}"
    )
    try:
        lines = runner.run(command).splitlines()
    except CommandError as error:
        why = error.message.splitlines()[-1]
        if "invalid job id" not in why.lower():
            return {"UNKNOWN"}, f"is not known at the moment: {why}"
        raise LaunchError(
            f"Slurm no longer knows job {number}, so its end is not known",
            hint=f"the job's log shows it; `sacct --jobs {number}` too, if the site keeps accounts",
        ) from error
    states = {_value(line, "JobState") for line in lines}
    waiting = [line for line in lines if _value(line, "JobState") == "PENDING"]
    reasons = {_value(line, "Reason") for line in waiting} - {"None", ""}
    if waiting:
        return states, f"waits: {', '.join(map(_in_words, sorted(reasons)))}" if reasons else ""
    return states, "runs"


def _in_words(reason: str) -> str:
    words = next((words for beginning, words in _REASONS.items() if reason.startswith(beginning)), "")
    return f"{words} ({reason})" if words else reason


def _value(line: str, key: str) -> str:
    found = re.search(rf"(?:^|\s){key}=(\S*)", line)
    return found[1] if found else ""
