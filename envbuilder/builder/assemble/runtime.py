"""The runtime layer: the files that container runtimes read, and documents."""

from collections.abc import Mapping
from pathlib import Path

from envbuilder.builder.engine import Job, tools
from envbuilder.layers.layer import Layer
from envbuilder.plan.contents import runtime_files
from envbuilder.plan.documents import write_documents
from envbuilder.plan.model import RuntimeStep, Step


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
