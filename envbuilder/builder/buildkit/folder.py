"""The folder that BuildKit reads: a Dockerfile of a plan, the programs, and SPEC and INPUTS of each as links to the cache.

Each stage mounts its own part of the folder, so BuildKit repeats only the stages that an edit changes.
"""

import tarfile
from collections.abc import Collection
from pathlib import Path
from typing import Final

import uv

from envbuilder import steps
from envbuilder.builder.engine import Job
from envbuilder.builder.step_folder import run_outside, write_step
from envbuilder.core.cache import Store, link_or_copy, remove_tree, save_text
from envbuilder.lock.model import LockedBase, blobs
from envbuilder.lock.vendor import layout_files
from envbuilder.plan.printer.dockerfile import ROOT, folder_dockerfile
from envbuilder.plan.printer.printed import with_parts
from envbuilder.plan.program import BASE, INPUTS, Program
from envbuilder.sources.names import BLOBS

DOCKERFILE: Final = "Dockerfile"


def write_folder(job: Job, folder: Path, wanted: Collection[str]) -> None:
    """Write everything that the layers of the wanted steps need. The store must have the plan's inputs."""
    programs = [part for program in job.plan.programs for part in with_parts(program)]
    save_text(folder / DOCKERFILE, folder_dockerfile(job.plan, wanted))
    for name in {name for program in programs for name in program.files}:
        save_text(folder / "steps" / name, steps.text(name))
    link_or_copy(Path(uv.find_uv_bin()), folder / "steps/uv")
    for program in programs:
        if not program.is_outside:
            _write_program(program, job, folder / program.name)
    if job.plan.os.base:
        write_base(job.plan.os.base, folder / BASE, job.store)


def _write_program(program: Program, job: Job, folder: Path) -> None:
    write_step(program, folder, job.store)
    inputs = folder / Path(INPUTS).name
    for part in program.parts:
        if part.is_outside:
            with job.store.workspace() as work:
                run_outside(part, work / part.name, job.store, job.runner).rename(inputs / part.name)
        else:
            (inputs / part.name).mkdir()  # where its OUT is mounted
    if program.changes not in ("", BASE):
        write_root(inputs / program.changes, folder / ROOT)


def write_root(tree: Path, out: Path) -> None:
    """Move a tree into a tar, as the files of root."""

    def of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(tree.iterdir()):
            tar.add(path, arcname=path.name, filter=of_root)
    remove_tree(tree)


def write_base(base: LockedBase, folder: Path, store: Store) -> None:
    """Write the base image as an OCI layout of links to its blobs in the store."""
    (folder / BLOBS).mkdir(parents=True)
    for blob in dict.fromkeys(blobs(base)):
        link_or_copy(store.artifact(blob.sha256), folder / BLOBS / blob.sha256)
    for name, content in layout_files(base).items():
        save_text(folder / name, content.decode())
