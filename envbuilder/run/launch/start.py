"""Submit a script to Slurm and ask about the job until it ends, or replace this process by the script."""

import contextlib
import io
import os
import re
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from envbuilder import runtime
from envbuilder.core.answer import Answer, Reply
from envbuilder.core.cache import save_bytes, save_text
from envbuilder.core.errors import CommandError, LaunchError, ToolError, UsageError, blaming_path
from envbuilder.core.plain import pasted
from envbuilder.core.private import is_trusted
from envbuilder.core.process import Command, Runner, exec_process
from envbuilder.diagnose import Incident, LogError, Role, diagnose
from envbuilder.run.desk_packages import requested_names
from envbuilder.run.launch.job import LaunchJob, LaunchOptions, local_paths, program_file
from envbuilder.run.launch.script import LOG, render

_DIAGNOSE: Final = "diagnose.pyz"  # beside the logs, for the end of a job that fails
EXECUTABLE: Final = 0o755
_ELF: Final = b"\x7fELF"
_MOST: Final = 1 << 20  # bytes of a program in which line endings are looked for
HINTS: Final = {
    "partition": "`sinfo` lists the partitions; `--partition`, or `partition` in the site profile, names one",
    "account": "`sacctmgr show associations user=$USER` lists yours; `account` in the site profile names one",
    "qos": "`sacctmgr show qos` lists them; `qos` in the site profile names one",
    "gres": "`sinfo --format='%P %G'` shows the names of the GPUs: `gpu_flag` and `gpu_type` in the site profile",
    "node configuration": "`sinfo --Node --long` shows what a node has; `--gpus-per-node`, `cpus_per_rank` in the site profile",
    "time limit": "`sinfo` shows each partition's limit; `--time` asks for less",
    "controller": "is this a machine of the cluster? `scontrol ping` shows the state of the controller",
    "configuration source": "is this a machine of the cluster? `--write FILE --for SITE` writes the script for another",
}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedScript:
    name: str
    text: str
    folder: Path  # the script's working folder
    logs: Path
    for_site: bool = False  # its folders are those of other machines
    log: str = ""  # what `sbatch --output` takes, if it is not in the text


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    number: str  # of the Slurm job
    script: Path
    log: Path
    code: int = 0
    has_ended: bool = False

    def text(self) -> str:
        state = "has failed" if self.code else "has ended well" if self.has_ended else "is submitted"
        log = f"log {self.log}"
        if self.code and "%" not in str(self.log) and not (self.log.is_file() and self.log.stat().st_size):
            log = f"it wrote nothing to {self.log}; can its node write there? See `scontrol show job {self.number}`"
        return f"job {self.number} {state}: {log}, script {self.script}"


def script_of(job: LaunchJob) -> GeneratedScript:
    given = (option.partition("=") for option in job.site.slurm.options)
    logs = [value for name, _, value in given if name == "--output"]
    return GeneratedScript(
        name=job.environment.name, text=render(job), folder=job.folder, logs=job.logs, for_site=job.for_site,
        log=logs[-1] if logs else f"{job.logs}/{LOG}",
    )  # fmt: skip


def save_script(path: Path, script: GeneratedScript) -> Path:
    hint = "launch from a folder that you may write to, and that every node has"
    with blaming_path(f"cannot write the script `{path}`", hint=hint):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not script.for_site:
            # Slurm does not make it, and fails silently without it. A process with umask 002 would let the group write.
            script.logs.mkdir(mode=0o755, parents=True, exist_ok=True)
            _need_own_logs(script.logs)
            if _DIAGNOSE in script.text:
                save_bytes(script.logs / _DIAGNOSE, _packed_diagnose())
        save_text(path, script.text, mode=EXECUTABLE)
    return path.absolute()


def _packed_diagnose() -> bytes:
    """Return `diagnose` as one file, which a Python from 3.9 runs by itself: a node may have no more, and an image is as old as it is."""
    main = (
        "import sys\nsys.version_info < (3, 9) and sys.exit(9)\n"
        "import runpy\nrunpy.run_module('envbuilder.diagnose', run_name='__main__')\n"
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in (
            ("__main__.py", main), ("envbuilder/__init__.py", ""), ("envbuilder/core/__init__.py", ""),
            *runtime.modules("core/text"), *runtime.modules("diagnose"),
        ):  # fmt: skip
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


class WrittenScript(Answer):
    """The answer of `--write` and `--dry-run`: the script's path where it was written, and its text."""

    script: str
    text: str


def write_job(job: LaunchJob, path: Path | None, report: Callable[[str], None]) -> Reply[WrittenScript]:
    """Write the script of a job and return the command that starts it; without a path, return the script."""
    script = script_of(job)
    if path and (earlier := keep_other(path, script)):
        report(f"the earlier `{path}` is kept as `{earlier}`")
    shown = show_script(script, path, "sbatch" if job.where == "slurm" else "bash")
    if path is None:
        return shown
    if (paths := local_paths(job)) and job.where != "local":
        repair = "give those of the site" if job.for_site else "`--for SITE` writes those of a site"
        report(f"note: `{path}` has paths of this machine: {', '.join(paths)}; elsewhere, {repair}")
    if job.for_site:
        report(f"it starts in {job.folder}, from {job.environment.location}")
    return shown


def show_script(script: GeneratedScript, path: Path | None, program: str) -> Reply[WrittenScript]:
    """Write a script and return the command that starts it; without a path, return the script."""
    written = save_script(path, script) if path else ""
    text = pasted(program, path) if path else script.text.removesuffix("\n")
    data = WrittenScript(script=str(written), text=script.text)
    return Reply(data=data, text=text, is_document=path is None)


def _need_own_logs(folder: Path) -> None:
    """Raise UsageError for a folder of logs in which any user may put links and programs. Its group is trusted with the project."""
    status = folder.stat()
    if not is_trusted(str(folder)) or status.st_mode & 0o1002 == 0o002:
        raise UsageError(
            f"the folder of logs `{folder}` belongs to user {status.st_uid} with mode {status.st_mode & 0o7777:o}: "
            "others could exchange what your job runs there",
            hint=f"`--logs` names another folder; `chmod o-w {pasted(folder)}` if it is yours",
        )


def keep_other(path: Path, script: GeneratedScript) -> Path | None:
    """Give a file with another text than the script's a second name, `FILE~`, and return that: somebody may have edited it."""
    if not path.is_file() or path.read_bytes() == script.text.encode():
        return None
    kept = path.with_name(f"{path.name}~")
    with blaming_path(f"cannot keep `{path}` as `{kept}`", hint="write the script to another file"):
        path.replace(kept)
    return kept


def submit(script: GeneratedScript, runner: Runner, *, wait: bool, report: Callable[[str], None]) -> Started:
    """Submit the script; with `wait`, wait for the end of the job. Raises LaunchError when Slurm rejects it."""
    name = script.name
    path = save_script(script.logs / f"{name}.sh", script)
    option = (f"--output={script.log}",) if script.log else ()
    argv = ("sbatch", "--parsable", *option, str(path))
    try:
        answer = runner.run(Command(argv=argv, why="submit the job to Slurm", cwd=script.folder))
        number = answer.strip().partition(";")[0]
    except ToolError as error:
        hint = "a machine of the cluster has it; `--write FILE --for SITE` writes the script for one"
        raise ToolError(error.message, hint=hint) from error
    except CommandError as error:
        hint = next((hint for word, hint in HINTS.items() if word in error.message.lower()), error.hint)
        raise LaunchError(error.message, hint=hint) from error
    except KeyboardInterrupt:
        report("the job may have been submitted: `squeue --me` shows it")
        raise
    path = path.rename(path.with_name(f"{name}-{number}.sh"))
    pattern = script.log or f"{script.logs}/{LOG}"
    log = script.folder / pattern.replace("%x", name).replace("%j", number)
    if wait:
        report(f"job {number} is submitted: log {log}")
    code = LaunchError.exit_code if wait and not wait_for_end(number, runner, report) else 0
    return Started(number=number, script=path, log=log, code=code, has_ended=wait)


def failures(started: Started) -> tuple[Incident, ...]:
    """Return the known failures in the log of a job, in which each line names its rank, without what followed from them."""
    try:
        diagnosis = diagnose((str(started.log),), sys.stdin.buffer)
    except LogError:  # the job wrote none
        return ()
    return tuple(incident for incident in diagnosis.incidents if incident.role is not Role.CONSEQUENCE)


def checked(
    job: LaunchJob, options: LaunchOptions, report: Callable[[str], None], *, starts: bool
) -> LaunchJob:
    """Return the job, after warnings of what it lacks. Raises UsageError for a program that cannot run."""
    late = check_time(job) if job.where == "slurm" else ""
    for warning in filter(None, (check_program(options, starts=starts), late)):
        report(f"warning: {warning}")
    name = job.environment.name
    if names := requested_names(name, options.folder):
        message = f"the job does not see {', '.join(names)} of `exec --writable`"
        hint = f"`envbuilder add {pasted(name)} --installed` builds them in"
        if options.strict:
            raise UsageError(message, hint=hint)
        report(f"warning: {message}: {hint}")
    return job


def check_program(options: LaunchOptions, *, starts: bool = True) -> str:
    """Return a warning about the program, or "". Raises UsageError for a file with which no rank can start.

    Without `starts`, the file may come later. Each node looks in the container for what is not in the folder.
    """
    first, word = (*options.program, "")[0], program_file(options.program, options.folder)
    path = options.folder / (word or first)
    if first and not word and path.is_dir():
        return f"`{first}` is a folder here, and a program of that name is looked for in the environment"
    if word and not path.exists():
        missing = f"there is no `{word}` in {options.folder}, where the ranks start"
        if word.startswith("/"):
            return ""
        if starts:
            raise UsageError(missing, hint="`ls` shows the files there; `-m MODULE` starts a module")
        return missing
    for message, hint in _mistakes(path, word, first):
        raise UsageError(message, hint=hint)
    if word.endswith(".py") and path.is_file() and re.match(rb"#!.*\r\n", path.read_bytes()):
        return f"`{word}` has Windows line endings (CRLF): it starts through `python` alone"
    return ""


def _mistakes(path: Path, word: str, first: str) -> Iterator[tuple[str, str]]:
    """Yield why the file cannot be started, with the repair. The first reason counts: the others may follow from it."""
    if not word and path.is_file() and path.suffix:
        yield f"`{first}` is looked for in the PATH of the environment", f"`./{first}` is the file here"
    if word and path.is_dir() and (word == first or not (path / "__main__.py").is_file()):
        yield f"`{word}` is a folder, and a program is a file", "name the script in it, or `-m PACKAGE`"
    if not word or not path.is_file():
        return
    if not os.access(path, os.R_OK):
        yield f"`{word}` cannot be read by this user", f"`ls -l {pasted(word)}` shows who may"
    if word.endswith(".py") or (word != first and "python" in first):  # Python takes both line endings
        return
    with path.open("rb") as stream:
        text = stream.read(_MOST)
    # The kernel reads the first line, and a shell each one.
    is_crlf = b"\0" not in text and 0 < text.count(b"\n") == text.count(b"\r\n")
    if re.match(rb"#!.*\r\n", text) if word == first else is_crlf:
        reason = f"`{word}` has Windows line endings (CRLF) and would not start"
        yield reason, f"`sed -i 's/\\r$//' {pasted(word)}`"
    if word == first and not os.access(path, os.X_OK):
        yield f"`{word}` may not be executed", f"`{pasted('chmod', '+x', word)}`"
    if word == first and not text.startswith((_ELF, b"#!")):
        reason = f"`{word}` has no first line that names its interpreter, such as `#!/usr/bin/env bash`"
        yield reason, f"add that line, or launch `{pasted('--', 'bash', word)}`"


def exec_script(job: LaunchJob) -> NoReturn:
    """Replace this process by the script: signals, output and exit code are then its own."""
    script = save_script(job.logs / f"{job.environment.name}-{os.getpid()}.sh", script_of(job))
    exec_process(("bash", str(script)))


def check_job(job: LaunchJob, runner: Runner) -> str:
    """Return a warning about a job without GPUs, or "". Raises UsageError for more nodes or time than its partition has.

    Slurm would queue such a job, and never start it.
    """
    slurm = job.site.slurm
    if not any(option.partition("=")[0] in _OTHER_NODES for option in slurm.options):
        _check_partition(job.nodes, slurm.time, slurm.partition, runner)
    if job.environment.cuda and not job.gpus:
        return f"`{job.environment.name}` is made for GPUs, and the job asks for none: `--gpus-per-node G`"
    return ""


def check_time(job: LaunchJob) -> str:
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
    argv = ("scontrol", "--oneliner", "show", "partition")
    try:
        lines = runner.run(Command(argv=argv, why="ask Slurm for its partitions")).splitlines()
    except (CommandError, ToolError):
        return  # `sbatch` will say it
    rows = {_value(line, "PartitionName"): line for line in lines}
    defaults = [name for name, row in rows.items() if _value(row, "Default") == "YES"]
    chosen = named.split(",") if named else defaults
    asked = [rows[name] for name in chosen if name in rows]
    longest = {_value(row, "MaxTime") for row in asked} - {""}
    if limit not in ("", "UNLIMITED") and longest and "UNLIMITED" not in longest:
        most = max(longest, key=_seconds)
        if _seconds(limit) > _seconds(most):
            raise UsageError(
                f"the job asks for the time {limit}, and the partition `{','.join(chosen)}` gives a job {most} at most",
                hint=f"`--time {most}`",
            )
    largest = max(map(_room, asked), default=nodes)
    if nodes > largest:
        fitting = next((name for name, row in rows.items() if _room(row) >= nodes), "")
        less = f"`--nodes {largest}`; no partition has as many"
        raise UsageError(
            f"the job asks for {nodes} nodes, and the partition `{','.join(chosen)}` gives a job {largest} at most",
            hint=f"`--partition {fitting}` has as many" if fitting else less,
        )


def _room(line: str) -> int:
    total, most = _value(line, "TotalNodes"), _value(line, "MaxNodes")
    return min(int(number) for number in (total, most, str(2**31)) if number.isdigit())


def wait_for_end(
    number: str, runner: Runner, report: Callable[[str], None], pause: Callable[[float], None] = time.sleep
) -> bool:
    """Wait until the job, or each task of an array, has ended; report why it waits. Return whether all went well.

    After Ctrl-C it reports whether the job goes on. Raises LaunchError when Slurm no longer knows the job.
    """
    reported, is_well, seconds = "", True, 1.0
    try:
        while True:
            states, words = _ask(number, runner)
            is_well = is_well and not states & (_ENDED - {"COMPLETED"})
            if states <= _ENDED:
                return is_well
            if words not in ("", reported):
                report(f"job {number} {words}")
                reported = words
            pause(seconds)
            seconds = min(seconds + 1, LONGEST_PAUSE)
    except KeyboardInterrupt:
        states = {"COMPLETED"}
        with contextlib.suppress(LaunchError):
            states, _ = _ask(number, runner)
        end = "has ended" if states <= _ENDED else f"goes on; to end it: scancel {number}"
        report(f"job {number} {end}")
        raise


def _ask(number: str, runner: Runner) -> tuple[set[str], str]:
    """Return the states of the job's tasks, and what it does in words."""
    argv = ("scontrol", "--oneliner", "show", "job", number)
    try:
        lines = runner.run(Command(argv=argv, why=f"ask Slurm about job {number}")).splitlines()
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
    words = next((words for begin, words in _REASONS.items() if reason.startswith(begin)), "")
    return f"{words} ({reason})" if words else reason


def _value(line: str, key: str) -> str:
    match = re.search(rf"(?:^|\s){key}=(\S*)", line)
    return match[1] if match else ""
