"""Submit a script to Slurm, or replace this process by it."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from envbuilder.core.answer import Answer, Reply
from envbuilder.core.cache import save_text
from envbuilder.core.errors import CommandError, LaunchError, ToolError, UsageError, blaming_path
from envbuilder.core.plain import pasted
from envbuilder.core.private import is_trusted
from envbuilder.core.process import Command, Runner, exec_process
from envbuilder.diagnose import Incident, LogError, Role, diagnose
from envbuilder.run.launch.job import Job, LaunchOptions, local_paths, program_file
from envbuilder.run.launch.script import LOG, render
from envbuilder.run.launch.slurm import after_interrupt, wait_for_end

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The text of a script, and its folders."""

    name: str
    text: str
    folder: Path  # the script's working folder
    logs: Path
    copied: Job | None = None  # the job, if its nodes get copies of the SIF
    for_site: bool = False  # its folders are those of other machines
    log: str = ""  # what `sbatch --output` takes, if it is not in the text


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
        log = f"log {self.log}"
        if self.code and "%" not in str(self.log) and not (self.log.is_file() and self.log.stat().st_size):
            log = f"it wrote nothing to {self.log}; can its node write there? See `scontrol show job {self.number}`"
        return f"job {self.number} {state}: {log}, script {self.script}"


def script_of(job: Job) -> Script:
    outputs = [
        option.partition("=")[2] for option in job.site.slurm.options if option.startswith("--output=")
    ]
    return Script(
        name=job.environment.name, text=render(job), folder=job.folder, logs=job.logs,
        copied=job if job.local_copy else None, for_site=job.for_site,
        log=outputs[-1] if outputs else f"{job.logs}/{LOG}",
    )  # fmt: skip


def save_script(path: Path, script: Script) -> Path:
    """Write an executable script."""
    hint = "launch from a folder that you may write to, and that every node has"
    with blaming_path(f"cannot write the script `{path}`", hint=hint):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not script.for_site:
            # Slurm does not make it, and fails silently without it. A process with umask 002 would let the group write.
            script.logs.mkdir(mode=0o755, parents=True, exist_ok=True)
            _need_own_logs(script.logs)
        save_text(path, script.text, mode=EXECUTABLE)
    return path.absolute()


class WrittenScript(Answer):
    """The answer of `--write` and `--dry-run`: the script's path where it was written, and its text."""

    script: str
    text: str


def write_job(job: Job, path: Path | None, report: Callable[[str], None]) -> Reply[WrittenScript]:
    """Write the script of a job and return the command that starts it; without a path, return the script."""
    script = script_of(job)
    if path is None:
        data = WrittenScript(script="", text=script.text)
        return Reply(data=data, text=script.text.removesuffix("\n"), is_document=True)
    if earlier := keep_other(path, script):
        report(f"the earlier `{path}` is kept as `{earlier}`")
    written = save_script(path, script)
    if (paths := local_paths(job)) and job.where != "local":
        repair = "give those of the site" if job.for_site else "`--for SITE` writes those of a site"
        report(f"note: `{path}` has paths of this machine: {', '.join(paths)}; elsewhere, {repair}")
    if job.for_site:
        report(f"it starts in {job.folder}, from {job.environment.location}")
    text = pasted("sbatch" if job.where == "slurm" else "bash", path)
    return Reply(data=WrittenScript(script=str(written), text=script.text), text=text)


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
    option = (f"--output={script.log}",) if script.log else ()
    command = Command(
        argv=("sbatch", "--parsable", *option, str(path)),
        why="submit the job to Slurm",
        cwd=script.folder,
    )
    try:
        number = runner.run(command).strip().partition(";")[0]
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
    code = LaunchError.exit_code if wait and not _wait(number, runner, report) else 0
    return Started(number=number, script=path, log=log, code=code, has_ended=wait)


def _wait(number: str, runner: Runner, report: Callable[[str], None]) -> bool:
    try:
        return wait_for_end(number, runner, report)
    except KeyboardInterrupt:
        report(after_interrupt(number, runner))
        raise


def failures(started: Started) -> tuple[Incident, ...]:
    """Return the known failures in the log of a job, in which each line names its rank, without what followed from them."""
    try:
        diagnosis = diagnose((str(started.log),), sys.stdin.buffer)
    except LogError:  # the job wrote none
        return ()
    return tuple(incident for incident in diagnosis.incidents if incident.role is not Role.CONSEQUENCE)


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
        if starts and not word.startswith("/"):
            raise UsageError(missing, hint="`ls` shows the files there; `-m MODULE` starts a module")
        return "" if word.startswith("/") else missing
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
    has_cr = re.match(rb"#!.*\r\n", text) if word == first else _is_crlf(text)
    if has_cr:
        yield (
            f"`{word}` has Windows line endings (CRLF) and would not start",
            f"`sed -i 's/\\r$//' {pasted(word)}`",
        )
    if word == first and not os.access(path, os.X_OK):
        yield f"`{word}` may not be executed", f"`{pasted('chmod', '+x', word)}`"
    if word == first and not text.startswith((_ELF, b"#!")):
        reason = f"`{word}` has no first line that names its interpreter, such as `#!/usr/bin/env bash`"
        yield reason, f"add that line, or launch `{pasted('--', 'bash', word)}`"


def _is_crlf(text: bytes) -> bool:
    return b"\0" not in text and 0 < text.count(b"\n") == text.count(b"\r\n")


def exec_script(job: Job) -> NoReturn:
    """Replace this process by the script: signals, output and exit code are then its own."""
    script = save_script(job.logs / f"{job.environment.name}-{os.getpid()}.sh", script_of(job))
    exec_process(("bash", str(script)))
