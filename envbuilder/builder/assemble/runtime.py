"""The start and the runtime layer: the modules that each Python runs first, and the files of runtimes and documents."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from envbuilder.builder.assemble.python import STEADY
from envbuilder.builder.assemble.sandbox import Root, sandboxed
from envbuilder.builder.engine import Job, tools
from envbuilder.core.process import Command
from envbuilder.layers.layer import Layer
from envbuilder.plan.contents import runtime_files
from envbuilder.plan.documents import write_documents
from envbuilder.plan.model import ENV_PREFIX, OWN, RuntimeStep, StartStep, Step
from envbuilder.runners.sandbox import Mount

FOLDERS: Final = (ENV_PREFIX, OWN)  # of the start layer


def write_start_files(step: StartStep, tree: Path) -> None:
    """Write the start layer's files below `tree`, without their byte code."""
    for path, text in step.files:
        write_text(tree / path, text, mode=0o755 if text.startswith("#!") else 0o644)


def compile_command(program: str, *, root: Root, tree: Path) -> Command:
    """Byte-compile the start layer at its final path, with this Python. Byte code is unchecked, because the image is read-only."""
    return sandboxed(
        root,
        (program, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", *FOLDERS),
        why="byte-compile the modules that each Python runs first",
        mounts=[Mount(source=tree / folder[1:], target=folder, writable=True) for folder in FOLDERS],
        env=STEADY,
    )  # fmt: skip


def write_layer(
    step: RuntimeStep, job: Job, *, layers: Mapping[type[Step], Layer], work: Path, out: Path
) -> None:
    """Write the runtime layer. `layers` are all others. They are not unpacked if the store has their trees."""
    trees = {type(one): job.store.tree(key) for one, key in job.keys.items()}
    documents = write_documents(job.plan, layers, trees, tools(), job.engine)
    write_runtime_files(step, work / "tree", documents)
    job.pack(step, work / "tree", out)


def write_runtime_files(step: RuntimeStep, tree: Path, documents: Mapping[str, str] | None = None) -> None:
    """Write the layer's files below `tree`. `documents` are SBOM and provenance."""
    plain = {path: (text, 0o644) for path, text in (documents or {}).items()}
    for path, (text, mode) in (runtime_files(step) | plain).items():
        write_text(tree / path, text, mode=mode)
    (tree / ".singularity.d/libs").mkdir()
    (tree / "singularity").symlink_to(".singularity.d/runscript")
    (tree / "environment").symlink_to(".singularity.d/env/90-environment.sh")


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
