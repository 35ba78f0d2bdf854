"""Write scripts that run without envbuilder: a job that users can read, keep and submit, and the commands of a module.

A script has a head, the settings as quoted values, and fixed parts from `parts/`. The parts depend on the
settings alone, so they can be read, checked and run by themselves.
"""

import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from envbuilder import __version__
from envbuilder.core.plain import one_line
from envbuilder.plan.shell import left_out, untold
from envbuilder.run.container import IMAGE_FOLDERS, IMAGE_TREES, SHARED_BY_APPTAINER, START_FILES
from envbuilder.run.launch.job import (
    RANK_IN_LOGS_SINCE,
    TORCHRUN_SINCE,
    LaunchJob,
    Where,
    torch_has,
    words_for_launcher,
    words_for_rank,
)
from envbuilder.run.launch.site import SLURM_SHAPES, VARIABLE, Site, SlurmSite

PARTS: Final = Path(__file__).parent / "parts"
WRITTEN_BY: Final = f"Written by envbuilder {__version__}"
LOG: Final = "%x-%j.log"  # of a job of Slurm
LEAST_FREE_MB: Final = 1024  # room for the caches of compilers and kernels
RECORDER_SINCE: Final = (2, 2)  # of torch
# What turns on torch's recorder of collectives: the name since a release, and the name until then. A release that reads both warns
# of the older one. The parts give the values: entries, dump after a timeout, file and pipe.
_RECORDER: Final = (
    ((2, 9), "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ((2, 15), "TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"),
    ((2, 15), "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    (RECORDER_SINCE, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DEBUG_INFO_PIPE_FILE"),
)


def render(job: LaunchJob) -> str:
    environment, is_slurm = job.environment, job.where == "slurm"
    use = "`sbatch THIS-FILE` submits it" if is_slurm else "`bash THIS-FILE` runs it"
    ranks = f"{job.nodes * job.ranks} ranks on {job.nodes} nodes"
    comment = f"{environment.name} (torch {environment.torch}): {ranks}. {use}."
    options = _slurm_options(job) if is_slurm else ()
    head = job_head(comment, "it runs without envbuilder, and you may edit it.", options)
    head += [""] if is_slurm else []
    return compose(head, _settings(job), [PARTS / f"{name}.sh" for name in _parts(job)])


def job_head(comment: str, use: str, options: Sequence[str]) -> list[str]:
    """Return the comment of a job's script and its `#SBATCH` lines."""
    return [
        f"# {comment}",
        f"# {WRITTEN_BY}; {use}",
        "# shellcheck disable=SC2317,SC2329,SC2154,SC2034,SC2016 # the nodes use settings and functions by name",
        *(f"#SBATCH {quoted(option)}" for option in options),
    ]


def compose(head: Iterable[str], settings: Mapping[str, str], parts: Iterable[Path]) -> str:
    """Compose a script of its comments, the settings as they are quoted, and the parts that use them.

    Raises UsageError for a name or a folder in `head` with a line break: the rest would become a command or an
    option.
    """
    lines = [f"{name}={value}" for name, value in settings.items()]
    texts = [path.read_text(encoding="utf-8") for path in parts]
    intro = map(one_line, head)
    return "\n".join(["#!/usr/bin/env bash", *intro, "set -euo pipefail", "", *lines, "", *texts])


def render_enter(name: str, sif: Path, site: Site) -> str:
    """Return a script that runs commands in a SIF with the options of `exec`. It needs START_FILE beside it.

    Called as `NAME-exec`, it runs its arguments. The commands of a module are links to it: called as `python`, it runs the
    environment's `python`.
    """
    head = (
        f"# Runs a command in the environment {name}. {WRITTEN_BY}; it runs without envbuilder.",
        "# shellcheck disable=SC2016,SC1003 # settings are quoted as data",
    )
    settings = {
        "name": quoted(name),
        "sif": quoted(str(sif)),
        "apptainer": quoted(site.apptainer),
        "binds": quoted_paths(site.all_binds),
        "left_out": quoted_list(left_out()),
        "untold": quoted_list(untold()),
        "image_trees": quoted_list(IMAGE_TREES),
        "image_folders": quoted_list(IMAGE_FOLDERS),
        "shared_trees": quoted_list(SHARED_BY_APPTAINER),
        "start_files": quoted_list(START_FILES),
    }
    return compose(head, settings, (PARTS / "keep_out.sh", PARTS / "exec.sh"))


def _parts(job: LaunchJob) -> list[str]:
    if job.shape == "tasks":
        ranks = "tasks"
    elif not torch_has(job, TORCHRUN_SINCE):
        ranks = "old"
    else:
        ranks = "torchrun" if torch_has(job, RANK_IN_LOGS_SINCE) else "torchrun_1"
    reached = ["supervise", "pdsh"] if job.site.ssh.pdsh else ["supervise", "ssh", "nodes"]
    ways = {"slurm": ["slurm"], "ssh": reached, "local": ["supervise", "local", "nodes"]}
    return [
        "keep_out",
        "common",
        "preflight",
        "image" if job.environment.image_id else "sif",
        *(["copy"] if job.local_copy else []),
        "record",
        ranks,
        *ways[job.where],
    ]


def _settings(job: LaunchJob) -> dict[str, str]:
    """Return the settings of the nodes, then those of the machine where the script starts."""
    environment, site, ssh = job.environment, job.site, job.site.ssh
    program = words_for_rank(job.program) if job.shape == "tasks" else words_for_launcher(job.program)
    copy = f"{environment.name}-{environment.sha256}.sif" if job.local_copy else ""
    sif_facts = {
        "sif_bytes": str(environment.size),
        "sif_sha256": environment.sha256,
        # On another node, a file of another content may have this state.
        "sif_state": quoted(environment.state if job.where == "local" else ""),
        "machine": environment.machine,
        "copy": quoted(copy),
    }
    sifs, projects = (site.sifs, site.projects) if job.for_site else ("", "")
    shared = {
        "environment": _path(environment.location, sifs),
        # The facts by which a node recognizes it.
        **({"image_id": quoted(environment.image_id)} if environment.image_id else sif_facts),
        "program": quoted_texts(program),
        "nodes": str(job.nodes),
        "ranks_per_node": str(job.ranks),
        "gpus": str(job.gpus),
        "folder": _path(job.folder, projects),
        "script": _path(job.script or "", projects),
        "project": _path(job.project, projects),
        "logs": _path(job.logs / environment.name, projects),
        "binds": quoted_paths(site.all_binds),
        "variables": quoted_list(f"{name}={value}" for name, value in site.env),
        "modules": quoted_list(site.modules),
        "apptainer": quoted(site.apptainer),
        "left_out": quoted_list(left_out()),
        "untold": quoted_list(untold()),
        "node_scratch": quoted_path(site.node_scratch),
        "shared_scratch": quoted_path(site.scratch),
        "master_suffix": quoted(site.master_suffix),
        "driver_floor": quoted(environment.driver_floor),
        "least_free_mb": str(LEAST_FREE_MB),
        "grace": str(job.grace),
        "recorder": quoted_list(_recorder_names(job)),
    }
    of_start: dict[Where, dict[str, str]] = {
        "slurm": {"srun_options": quoted_list(_srun_options(job))},
        "ssh": {"ssh_options": quoted_list(ssh.options), "hosts": quoted_list(ssh.hosts[: job.nodes])},
        "local": {},
    }
    watch = (sys.executable, "-m", "envbuilder", "watch", "--silent", f"{job.watch:g}") if job.watch else ()
    return {
        **shared,
        **of_start[job.where],
        "watcher": quoted_list(watch),
        "settings": quoted_list((*shared, "job")),
    }


def _recorder_names(job: LaunchJob) -> list[str]:
    """Return the variables of torch's recorder: each the name that this torch reads, and that of other releases."""
    if not torch_has(job, RECORDER_SINCE):
        return []
    return [
        f"{name} {before}" if torch_has(job, since) else f"{before} {name}"
        for since, name, before in _RECORDER
    ]


def _path(path: Path | str, folder: str) -> str:
    """Quote a path of the job. The folder of another site, in which it may be, can hold variables; the rest holds none."""
    root = str(Path(folder)) if folder and Path(path).is_relative_to(folder) else ""
    return quoted_path(root, str(path).removeprefix(root))


def _srun_options(job: LaunchJob) -> tuple[str, ...]:
    if job.shape == "torchrun":
        return (f"--nodes={job.nodes}", f"--ntasks={job.nodes}", "--ntasks-per-node=1")
    # A rank that sees only its own GPU cannot use P2P with the others (NVIDIA/nccl#1066).
    peers = ("--gpu-bind=none",) if job.gpus else ()
    return (f"--nodes={job.nodes}", f"--ntasks-per-node={job.ranks}", *peers, "--label")


def _slurm_options(job: LaunchJob) -> list[str]:
    slurm = job.site.slurm
    tasks = job.ranks if job.shape == "tasks" else 1
    cpus = slurm.cpus_per_rank * job.ranks // tasks
    return [
        f"--job-name={job.environment.name}",
        *site_options(slurm),
        f"--nodes={job.nodes}",
        f"--ntasks-per-node={tasks}",
        *((f"--cpus-per-task={cpus}",) if cpus else ()),  # without it, the site's default applies
        *_gpu_options(job),
        f"--signal=B:TERM@{job.grace}",
        # Without the log's folder, Slurm ends the job before its first line. That of submission is there.
        f"--output={LOG}",
        "--open-mode=append",  # a requeued job continues the same log
        *slurm.options,
    ]


def site_options(slurm: SlurmSite) -> list[str]:
    """Return the options for partition, account and time."""
    return [f"--{key}={value}" for key in SLURM_SHAPES if (value := getattr(slurm, key))]


def _gpu_options(job: LaunchJob) -> tuple[str, ...]:
    """Request GPUs per node: GPUs per task are hidden from each other."""
    slurm = job.site.slurm
    if not job.gpus or slurm.gpu_flag == "none":
        return ()
    count = f"{slurm.gpu_type}:{job.gpus}" if slurm.gpu_type else str(job.gpus)
    return (f"--gres=gpu:{count}" if slurm.gpu_flag == "gres" else f"--gpus-per-node={count}",)


def quoted(value: str) -> str:
    """Quote a name, a path or a setting, whoever chose it. Raises UsageError for more than one line."""
    return shlex.quote(one_line(value))


def quoted_list(words: Iterable[str]) -> str:
    return f"({' '.join(map(quoted, words))})"


def quoted_texts(texts: Sequence[str]) -> str:
    """Quote texts that may have lines: the user's own command line, such as `python -c` with a program."""
    return f"({' '.join(map(shlex.quote, texts))})"


def quoted_paths(paths: Iterable[str]) -> str:
    return f"({' '.join(map(quoted_path, paths))})"


def quoted_path(path: str, rest: str = "") -> str:
    """Quote a path that may hold variables, and what follows it as it is. It is empty when a variable is not set."""
    names = re.findall(VARIABLE, path)
    if not names:
        return quoted(path + rest)
    path = one_line(path, forbidden='"`\\')
    opening, closing = "".join(f"${{{name}:+" for name in names), "}" * len(names)
    return f'"{opening}{path}{closing}"' + (
        f"{opening}{shlex.quote(rest)}{closing}" if one_line(rest) else ""
    )
