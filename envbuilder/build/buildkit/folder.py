"""The folder that `Dockerfile.base` builds from: inputs as links to the store, programs, and what the plan decides as files.

Each stage reads a part of its own, so BuildKit makes anew what an edit touches and nothing else.
"""

from pathlib import Path
from typing import Final

from envbuilder import runtime
from envbuilder.build.assemble.engine import step_maker
from envbuilder.build.assemble.step import Job, link_files, write_text
from envbuilder.core.cache import Store
from envbuilder.core.sources import BLOBS
from envbuilder.lock.base_image.layout import layout_files
from envbuilder.lock.base_image.locked import LockedBase
from envbuilder.lock.model import blobs
from envbuilder.plan.render import render_base

DOCKERFILE: Final = "Dockerfile.base"
BASE: Final = "base"  # the image that a recipe stands on, as an OCI layout
# Programs beside those of the kit, and their folders in it. Each Python of a project's build finds the last one where it is mounted.
_PROGRAMS: Final = {"compile_extension.py": "", "build_project.py": "", "sitecustomize.py": "customize"}


def write_folder(job: Job, folder: Path) -> None:
    """Write everything into `folder`. The store must have the plan's inputs."""
    write_text(folder / DOCKERFILE, render_base())
    for name, text in runtime.files("kit"):
        write_text(folder / "kit" / name, text)
    for name, below in _PROGRAMS.items():
        write_text(folder / "kit" / below / name, runtime.path(name).read_text(encoding="utf-8"))
    for step in job.plan.steps:
        step_maker(step, job).write_inputs(folder)
    if job.plan.os.base:
        write_base(job.plan.os.base, folder / BASE, job.store)


def write_base(base: LockedBase, folder: Path, store: Store) -> None:
    """Write the image as an OCI layout of links to its blobs in the store."""
    link_files(folder / BLOBS, ((blob.sha256, blob.sha256) for blob in blobs(base)), store)
    for name, content in layout_files(base).items():
        write_text(folder / name, content.decode())
