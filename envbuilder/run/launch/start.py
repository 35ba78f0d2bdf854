"""Submit a script to Slurm, or replace this process by it."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn

from envbuilder.core.cache import save_text
from envbuilder.core.errors import CommandError, LaunchError, ToolError, UsageError, blaming_path
from envbuilder.core.findings import Finding
from envbuilder.core.plain import pasted
from envbuilder.core.private import is_trusted
from envbuilder.core.process import Command, Runner, exec_process
from envbuilder.run.launch.copier import save_copier
from envbuilder.run.launch.job import Job
from envbuilder.run.launch.script import render
from envbuilder.run.launch.slurm import after_interrupt, wait_for_end

EXECUTABLE: Final = 0o755
HINTS: Final = {
    "partition": "`sinfo` lists the partitions; `--partition`, or `partition` in the site profile, names one",
    "account": "`sacctmgr show associations user=$USER` lists yours; `account` in the site profile names one",
    "qos": "`sacctmgr show qos` lists them; `qos` in the site profile names one",
    "gres": "`sinfo --format='%P %G'` shows the names of the GPUs: `gpu_flag` and `gpu_type` in the site profile",
    "node configuration": "`sinfo --Node --long` shows what a node has; `--gpus-per-node`, `cpus_per_rank` in the site profile",
    "time limit": "`sinfo` shows each partition's limit; `--time` asks for less",
    "controller": "is this a machine of the cluster? `scontrol ping` shows the state of the controller",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The text of a script, and its folders."""

    name: str
    text: str
    folder: Path  # the script's working folder
    logs: Path
    copied: Job | None = None  # the job, if its nodes get copies of the SIF


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The result of a submitted script."""

    number: str  # of the Slurm job
    script: Path
    log: Path
    code: int = 0
    has_ended: bool = False

    def text(self) -> str:
        state = "has failed" if self.code else "has ended well" if self.has_ended else "is submitted"
        return f"job {self.number} {state}: log {self.log}, script {self.script}"


def script_of(job: Job) -> Script:
    return Script(
        name=job.environment.name, text=render(job), folder=job.folder, logs=job.logs,
        copied=job if job.local_copy else None,
    )  # fmt: skip


def save_script(path: Path, script: Script) -> Path:
    """Write an executable script."""
    hint = "launch from a folder that you may write to, and that every node has"
    with blaming_path(f"cannot write the script `{path}`", hint=hint):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Slurm does not make it, and fails silently without it. A process with umask 002 would let the group write.
        script.logs.mkdir(mode=0o755, parents=True, exist_ok=True)
        _need_own_logs(script.logs)
        if script.copied:
            save_copier(script.copied)
        save_text(path, script.text, mode=EXECUTABLE)
    return path.absolute()


def _need_own_logs(folder: Path) -> None:
    """Raise UsageError for a folder of logs in which any user may put links and programs. Its group is trusted with the project."""
    status = folder.stat()
    if not is_trusted(str(folder)) or status.st_mode & 0o1002 == 0o002:
        raise UsageError(
            f"the folder of logs `{folder}` belongs to user {status.st_uid} with mode {status.st_mode & 0o7777:o}: "
            "others could exchange what your job runs there",
            hint=f"`--logs` names another folder; `chmod o-w {pasted(folder)}` if it is yours",
        )


def keep_other(path: Path, script: Script) -> Path | None:
    """Give a file with another text than the script's a second name, `FILE~`, and return that: somebody may have edited it."""
    if not path.is_file() or path.read_bytes() == script.text.encode():
        return None
    kept = path.with_name(f"{path.name}~")
    with blaming_path(f"cannot keep `{path}` as `{kept}`", hint="write the script to another file"):
        path.replace(kept)
    return kept


def submit(script: Script, runner: Runner, *, wait: bool, report: Callable[[str], None]) -> Started:
    """Submit the script; with `wait`, wait for the end of the job. Raises LaunchError when Slurm rejects it."""
    name = script.name
    path = save_script(script.logs / f"{name}.sh", script)
    command = Command(
        argv=("sbatch", "--parsable", str(path)), why="submit the job to Slurm", cwd=script.folder
    )
    try:
        number = runner.run(command).strip().partition(";")[0]
    except ToolError as error:
        hint = f"submit it on a machine of the cluster: `{pasted('sbatch', path)}`"
        raise ToolError(error.message, hint=hint) from error
    except CommandError as error:
        hint = next((hint for word, hint in HINTS.items() if word in error.message.lower()), error.hint)
        raise LaunchError(error.message, hint=hint) from error
    except KeyboardInterrupt:
        report("the job may have been submitted: `squeue --me` shows it")
        raise
    path = path.rename(path.with_name(f"{name}-{number}.sh"))
    log = script.logs / f"{name}-{number}.log"
    if wait:
        report(f"job {number} is submitted: log {log}")
    code = LaunchError.exit_code if wait and not _wait(number, runner, report) else 0
    return Started(number=number, script=path, log=log, code=code, has_ended=wait)


def _wait(number: str, runner: Runner, report: Callable[[str], None]) -> bool:
    try:
        return wait_for_end(number, runner, report)
    except KeyboardInterrupt:
        report(after_interrupt(number, runner))
        raise


def failures(started: Started) -> tuple[Finding, ...]:
    """Return the known failures in the log of a job, in which each line names its rank, without what followed from them."""
    from envbuilder.node.diagnose import Role, diagnose, findings  # noqa: PLC0415 - its catalogue is large

    if not started.log.exists():
        return ()
    found = diagnose((str(started.log),), sys.stdin.buffer)
    return findings(
        replace(found, found=tuple(one for one in found.found if one.role is not Role.CONSEQUENCE))
    )


def missing_program(job: Job) -> str:
    """Return a warning about a script of Python that the folder of the job lacks, or "". The environment has files too."""
    named = next((word for word in job.program[:2] if word.endswith(".py")), "")
    if not named or named.startswith("/") or (job.folder / named).exists():
        return ""
    return f"there is no `{named}` in {job.folder}, where the ranks start"


def exec_script(job: Job) -> NoReturn:
    """Replace this process by the script: signals, output and exit code are then its own."""
    script = save_script(job.logs / f"{job.environment.name}-{os.getpid()}.sh", script_of(job))
    exec_process(("bash", str(script)))
