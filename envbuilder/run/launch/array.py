"""Build many recipes as one Slurm array job: one task per recipe, with a shared cache and output folder."""

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from envbuilder.core.answer import Answer, Reply
from envbuilder.core.errors import LaunchError
from envbuilder.core.findings import Finding
from envbuilder.core.plain import columns, pasted
from envbuilder.core.process import Runner
from envbuilder.run.launch.script import compose, directives, quoted, quoted_list, quoted_path, site_options
from envbuilder.run.launch.site import OPTION, Site, find_slurm_site, need_shape
from envbuilder.run.launch.start import Script, save_script, submit

NAME: Final = "build"  # of the job, its script and its logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """One array job; every path must be the same on all nodes."""

    recipes: tuple[Path, ...]
    build: tuple[str, ...]  # the command line without the recipe
    cache: Path
    folder: Path  # where the builds start
    logs: Path
    site: Site
    at_once: int = 0  # tasks that run at the same time; 0: no limit


def make_array(
    recipes: tuple[Path, ...],
    *,
    cache: Path,
    output: Path,
    offline: bool,
    host: Path | None,
    profile: str,
    options: Sequence[str],
    at_once: int,
) -> Array:
    """Raises UsageError for a site profile that is invalid or without Slurm, or an invalid option of `sbatch`."""
    need_shape("--sbatch", options, OPTION)
    site = find_slurm_site(profile, hint="without `--on slurm` this machine builds them")
    words = [sys.executable, "-m", "envbuilder", "build", "--output", str(output.absolute())]
    words += ["--offline"] if offline else []
    words += ["--host", str(host.absolute())] if host else []
    return Array(
        recipes=recipes,
        build=tuple(words),
        cache=cache.absolute(),
        folder=Path.cwd(),
        logs=output.absolute() / "slurm",
        site=replace(site, slurm=replace(site.slurm, options=(*site.slurm.options, *options))),
        at_once=at_once,
    )


def make_script(array: Array) -> Script:
    site, count = array.site, len(array.recipes)
    options = [
        f"--job-name={NAME}",
        f"--array=0-{count - 1}" + (f"%{array.at_once}" if array.at_once else ""),
        *site_options(site.slurm),
        "--nodes=1",
        "--ntasks=1",
        *((f"--cpus-per-task={site.slurm.cpus_per_rank}",) if site.slurm.cpus_per_rank else ()),
        f"--output={array.logs}/%x-%A_%a.log",
        *site.slurm.options,
    ]
    settings = {
        "recipes": quoted_list([str(path) for path in array.recipes]),
        "build": quoted_list(array.build),
        "cache": quoted(str(array.cache)),
        "folder": quoted(str(array.folder)),
        "logs": quoted(str(array.logs)),
        "variables": quoted_list(tuple(f"{name}={value}" for name, value in site.env)),
        "modules": quoted_list(site.modules),
        "node_scratch": quoted_path(site.node_scratch),
        "shared_scratch": quoted_path(site.scratch),
    }
    text = compose(
        (
            f"builds {count} recipes, one per task. `sbatch THIS-FILE` submits it.",
            "each node must see its Python, the recipes, the cache and the folder of artifacts.",
        ),
        directives(options),
        [f"{name}={value}" for name, value in settings.items()],
        ("common", "array"),
    )
    return Script(name=NAME, text=text, folder=array.folder, logs=array.logs)


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
        what = (
            f"the build failed on {self.node}"
            if self.node
            else "the task wrote no result: Slurm ended it or never started it"
        )
        hint = f"the log is `{self.log}`"
        return Finding(code=LaunchError.code, where=self.name, message=what, hint=hint)


def read_results(array: Array, number: str) -> tuple[ArrayBuild, ...]:
    """Read the results of a finished job, in the order of the recipes."""
    found = []
    for task, path in enumerate(array.recipes):
        log = array.logs / f"{NAME}-{number}_{task}.log"
        try:
            text = (array.logs / number / f"{path.stem}.ended").read_text(encoding="utf-8")
            code, node, _ = text.split("\t")
            exit_code = int(code)
        except (OSError, ValueError):
            exit_code, node = LaunchError.exit_code, ""
        found.append(ArrayBuild(name=path.stem, exit_code=exit_code, node=node, log=log))
    return tuple(found)


class ArrayScript(Answer):
    """The script of an array job: its path where it was written, and its text."""

    script: str
    text: str


class ArrayJob(Answer):
    """The array job that was submitted; `builds` with `--wait`."""

    job: str
    script: Path
    logs: Path
    builds: tuple[ArrayBuild, ...] = ()


def write_script(array: Array, path: Path | None) -> Reply[ArrayScript]:
    """Write the script of an array job, or return it."""
    script = make_script(array)
    written = save_script(path, script) if path else None
    data = ArrayScript(script=str(written or ""), text=script.text)
    text = pasted("sbatch", written) if written else script.text.removesuffix("\n")
    return Reply(data=data, text=text, is_document=written is None)


def submit_array(
    array: Array, runner: Runner, *, wait: bool, report: Callable[[str], None], width: int
) -> Reply[ArrayJob]:
    """Submit an array job. With `wait`, report how each task ended."""
    started = submit(make_script(array), runner, wait=wait, report=report)
    job = ArrayJob(job=started.number, script=started.script, logs=array.logs)
    if not wait:
        ended = shlex.quote(str(array.logs / started.number))
        text = (
            f"job {started.number}: {len(array.recipes)} builds; script {started.script}\n"
            f"what has ended, with exit code, node and log: cat {ended}/*.ended"
        )
        return Reply(data=job, text=text)
    builds = read_results(array, started.number)
    return Reply(
        data=job.model_copy(update={"builds": builds}),
        text=columns([build.row() for build in builds], width),
        findings=tuple(build.finding() for build in builds if build.exit_code),
        exit_code=max(build.exit_code for build in builds),
    )
