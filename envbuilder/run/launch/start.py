"""Submit a script to Slurm, or replace this process by it."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from envbuilder.artifacts.outputs import Outputs, find_outputs, read_record
from envbuilder.artifacts.squashfs.reader import SquashfsTree
from envbuilder.core.cache import save_text, sha256_file
from envbuilder.core.errors import CommandError, LaunchError, ToolError, UsageError, blaming_path
from envbuilder.core.findings import Finding
from envbuilder.core.process import Command, Runner, exec_process
from envbuilder.run.container import Surroundings, project_folder, run_in_image
from envbuilder.run.exec import need_engine, need_image, need_processor, need_sif
from envbuilder.run.launch.copier import save_copier
from envbuilder.run.launch.job import Environment, Job, LaunchOptions, make_job
from envbuilder.run.launch.script import render
from envbuilder.run.launch.site import find_site
from envbuilder.run.launch.slurm import after_interrupt, wait_for_end
from envbuilder.verify.compare import opened_sif

PINS: Final = "/opt/envbuilder/recipe.yaml"  # in every image
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

    def text(self) -> str:
        state = "its ranks failed" if self.code else "submitted"
        return f"job {self.number}: {state}; log {self.log}, script {self.script}"


def prepare(options: LaunchOptions, settings: Mapping[str, str]) -> Job:
    """Read the SIF or the image and the site profile; raises UsageError for a job that cannot run."""
    if options.image:
        environment = _probe_image(options.name, find_outputs(options.name, options.output), settings)
    else:
        outputs = need_sif(options.name, options.output, settings)
        if options.where == "local":
            need_processor(outputs.sif)
        environment = _probe_sif(outputs)
    return make_job(options, environment, find_site(options.profile), project_folder(options.folder))


def _probe_image(name: str, outputs: Outputs, settings: Mapping[str, str]) -> Environment:
    image, docker = outputs.image_name, need_engine(outputs, settings)
    identity = need_image(docker, name, outputs, settings)
    read = run_in_image(docker, image, ("cat", PINS), Surroundings(folder=Path("/")))
    torch, cuda = _parse_pins(read.output, image)
    return Environment(name=outputs.name, location=image, image_id=identity, torch=torch, cuda=cuda)


def _probe_sif(outputs: Outputs) -> Environment:
    sif, torch, cuda = probe_pins(outputs)
    record = read_record(outputs)
    # Reading the whole file takes seconds, so an unchanged one is not read.
    sha256 = record.sif if record and record.knows_sif(outputs.sif) else sha256_file(outputs.sif)
    size = sif.stat().st_size
    return Environment(name=outputs.name, location=str(sif), size=size, sha256=sha256, torch=torch, cuda=cuda)


def probe_pins(outputs: Outputs) -> tuple[Path, str, str]:
    """Return the SIF's path and its versions of torch and CUDA; raises UsageError for a foreign SIF."""
    sif = outputs.sif.resolve()
    try:
        with opened_sif(sif) as system, SquashfsTree(system, ()).open(PINS.lstrip("/")) as stream:
            text = stream.read().decode()
    except (KeyError, ValueError):  # the file is missing, or has other content
        text = ""
    return sif, *_parse_pins(text, str(sif))


def _parse_pins(text: str, location: str) -> tuple[str, str]:
    """Parse the recipe in an environment: its versions of torch and CUDA. Raises UsageError for a foreign one."""
    try:
        pins = json.loads(text)
        return str(pins["pytorch"]), str(pins["cuda"])
    except (TypeError, KeyError, ValueError) as error:
        raise UsageError(
            f"`{location}` was not made by envbuilder: it has no readable {PINS}",
            hint="`envbuilder build NAME` makes one from a recipe",
        ) from error


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
        script.logs.mkdir(
            parents=True, exist_ok=True
        )  # Slurm does not make it, and fails silently without it
        if script.copied:
            save_copier(script.copied)
        save_text(path, script.text)
        path.chmod(EXECUTABLE)
    return path.absolute()


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
        hint = f"submit it on a machine of the cluster: `sbatch {path}`"
        raise ToolError(error.message, hint=hint) from error
    except CommandError as error:
        hint = next((hint for word, hint in HINTS.items() if word in error.message.lower()), error.hint)
        raise LaunchError(error.message, hint=hint) from error
    except KeyboardInterrupt:
        report("the job may have been submitted: `squeue --me` shows it")
        raise
    path = path.rename(path.with_name(f"{name}-{number}.sh"))
    report(f"job {number} is submitted")
    code = LaunchError.exit_code if wait and not _wait(number, runner, report) else 0
    return Started(number=number, script=path, log=script.logs / f"{name}-{number}.log", code=code)


def _wait(number: str, runner: Runner, report: Callable[[str], None]) -> bool:
    try:
        return wait_for_end(number, runner, report)
    except KeyboardInterrupt:
        report(after_interrupt(number, runner))
        raise


def failures(started: Started) -> tuple[Finding, ...]:
    """Return the known failures in the log of a job, in which each line names its rank."""
    from envbuilder.node.diagnose import diagnose, findings  # noqa: PLC0415 - its catalogue is large

    return findings(diagnose((str(started.log),), sys.stdin.buffer)) if started.log.exists() else ()


def exec_script(job: Job) -> NoReturn:
    """Replace this process by the script: signals, output and exit code are then its own."""
    script = save_script(job.logs / f"{job.environment.name}-{os.getpid()}.sh", script_of(job))
    exec_process(("bash", str(script)))
