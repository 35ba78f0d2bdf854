"""Build many recipes as one Slurm array job: one task per recipe, with a shared cache and output folder."""

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from envbuilder.core.answer import Answer, Reply
from envbuilder.core.errors import LaunchError
from envbuilder.core.findings import Finding
from envbuilder.core.plain import columns
from envbuilder.core.process import Runner
from envbuilder.run.launch.script import (
    PARTS,
    compose,
    job_head,
    quoted,
    quoted_list,
    quoted_path,
    site_options,
)
from envbuilder.run.launch.site import Site
from envbuilder.run.launch.start import GeneratedScript, submit

NAME: Final = "build"  # of the job, its script and its logs


def build_words(output: Path, host: Path | None, *, offline: bool) -> tuple[str, ...]:
    """Return the command that builds one recipe on a node, without the recipe."""
    facts = ("--host", str(host.absolute())) if host else ()
    words = ("--output", str(output), *(("--offline",) if offline else ()), *facts)
    return (sys.executable, "-m", "envbuilder", "build", *words)


def make_array(
    recipes: Sequence[Path], build: Sequence[str], *, cache: Path, folder: Path, output: Path, site: Site, at_once: int = 0
) -> GeneratedScript:  # fmt: skip
    """Return the script that runs `build` in `folder` with each recipe. Every path must be the same on all nodes.

    `at_once` tasks run at the same time; 0 is no limit.
    """
    logs = output / "slurm"
    options = [
        f"--job-name={NAME}",
        f"--array=0-{len(recipes) - 1}" + (f"%{at_once}" if at_once else ""),
        *site_options(site.slurm),
        "--nodes=1",
        "--ntasks=1",
        *((f"--cpus-per-task={site.slurm.cpus_per_rank}",) if site.slurm.cpus_per_rank else ()),
        f"--output={logs}/%x-%A_%a.log",
        *site.slurm.options,
    ]
    settings = {
        "recipes": quoted_list(map(str, recipes)),
        "build": quoted_list(build),
        "cache": quoted(str(cache)),
        "folder": quoted(str(folder)),
        "logs": quoted(str(logs)),
        "variables": quoted_list(f"{name}={value}" for name, value in site.env),
        "modules": quoted_list(site.modules),
        "node_scratch": quoted_path(site.node_scratch),
        "shared_scratch": quoted_path(site.scratch),
    }
    head = job_head(
        f"builds {len(recipes)} recipes, one per task. `sbatch THIS-FILE` submits it.",
        "each node must see its Python, the recipes, the cache and the folder of artifacts.",
        options,
    )
    text = compose(head, settings, (PARTS / "common.sh", PARTS / "array.sh"))
    return GeneratedScript(name=NAME, text=text, folder=folder, logs=logs)


class ArrayBuild(Answer):
    """The result of one task of an array job."""

    name: str
    exit_code: int
    node: str  # "" for a task without a result: Slurm ended it or never started it
    log: Path

    def row(self) -> tuple[str, ...]:
        if not self.node:
            return (self.name, "ended by Slurm, or never started", "-", str(self.log))
        words = f"failed, exit code {self.exit_code}" if self.exit_code else "built"
        return (self.name, words, self.node, str(self.log))

    def finding(self) -> Finding:
        """Return the finding of a failed task."""
        lost = "the task wrote no result: Slurm ended it or never started it"
        what = f"the build failed on {self.node}" if self.node else lost
        return Finding(code=LaunchError.code, where=self.name, message=what, hint=f"the log is `{self.log}`")


def read_results(names: Sequence[str], logs: Path, number: str) -> tuple[ArrayBuild, ...]:
    """Read the results of a finished job, in the order of its recipes."""
    builds = []
    for task, name in enumerate(names):
        try:
            text = (logs / number / f"{name}.ended").read_text(encoding="utf-8")
            code, node, _ = text.split("\t")
            exit_code = int(code)
        except (OSError, ValueError):
            exit_code, node = LaunchError.exit_code, ""
        log = logs / f"{NAME}-{number}_{task}.log"
        builds.append(ArrayBuild(name=name, exit_code=exit_code, node=node, log=log))
    return tuple(builds)


class ArrayJob(Answer):
    """The array job that was submitted; `builds` with `--wait`."""

    job: str
    script: Path
    logs: Path
    builds: tuple[ArrayBuild, ...] = ()


def submit_array(
    script: GeneratedScript, names: Sequence[str], runner: Runner, *, wait: bool, report: Callable[[str], None], width: int
) -> Reply[ArrayJob]:  # fmt: skip
    """Submit an array job. With `wait`, report how each task ended."""
    started = submit(script, runner, wait=wait, report=report)
    job = ArrayJob(job=started.number, script=started.script, logs=script.logs)
    if not wait:
        ended = shlex.quote(str(script.logs / started.number))
        text = (
            f"job {started.number}: {len(names)} builds; script {started.script}\n"
            f"what has ended, with exit code, node and log: cat {ended}/*.ended"
        )
        return Reply(data=job, text=text)
    builds = read_results(names, script.logs, started.number)
    return Reply(
        data=job.model_copy(update={"builds": builds}),
        text=columns([build.row() for build in builds], width),
        findings=tuple(build.finding() for build in builds if build.exit_code),
        exit_code=max(build.exit_code for build in builds),
    )
