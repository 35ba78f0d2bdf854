"""The runtime layer: the files that container runtimes read, and documents."""

from collections.abc import Mapping
from pathlib import Path

from envbuilder.builder.engine import Job, tools
from envbuilder.builder.step_folder import run_outside
from envbuilder.layers.layer import Layer
from envbuilder.plan.contents import runtime_program
from envbuilder.plan.documents import write_documents
from envbuilder.plan.model import RuntimeStep, Step


def write_layer(
    step: RuntimeStep, job: Job, *, layers: Mapping[type[Step], Layer], work: Path, out: Path
) -> None:
    """Write the runtime layer. `layers` are all others. They are not unpacked if the store has their trees."""
    trees = {type(one): job.store.tree(key) for one, key in job.keys.items()}
    documents = write_documents(job.plan, layers, trees, tools())
    program = runtime_program(step, documents)
    job.pack(step, run_outside(program, work, job.store, job.runner), out)


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
