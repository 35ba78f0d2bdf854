"""Plan → artefacts: runs the engine and writes the OCI layout and the SIF from the same layers.

The image's blobs are hard links to the layers and the SIF is a copy of their bytes, so both wait for the last layer and
cost little then.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from envbuilder import __version__
from envbuilder.command import Runner
from envbuilder.console import Console
from envbuilder.devcontainer import Desk, make_label
from envbuilder.engines.assemble import PACKING, Assemble, tools
from envbuilder.oci import ImageConfig, write_layout
from envbuilder.parts import PROVENANCE, SBOM
from envbuilder.plan import CudaStep, OsStep, Plan, PythonStep
from envbuilder.sif import DataType, Document, SifFacts, write_sif
from envbuilder.store import Sha256, remove_tree, save_text, sha256_file
from envbuilder.tree import Layer, check_disjoint, read_files

IMAGE_PREFIX: Final = "envbuilder"  # of the names in a Docker engine
FIRST: Final = (OsStep, PythonStep, CudaStep)  # what extensions are compiled in, and nearly all of the bytes
THREADS: Final = 16  # more than a plan has layers and trees: a future may wait for another


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Where the artefacts of a plan go."""

    folder: Path
    name: str

    @property
    def sif(self) -> Path:
        return self.folder / f"{self.name}.sif"

    @property
    def image(self) -> Path:
        """The OCI layout."""
        return self.folder / f"{self.name}.oci"

    @property
    def record(self) -> Path:
        """What was built, so that a build with nothing to do can say so without reading 6 GB."""
        return self.folder / f"{self.name}.json"

    @property
    def bundle(self) -> Path:
        """The signed statement of image and SIF, where they were signed."""
        return self.folder / f"{self.name}.sigstore.json"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What stands in the record: the inputs' key, the artefacts' digests, and the files as they were left."""

    key: str
    manifest: str
    sif: str
    sif_size: int
    sif_time: int  # st_mtime_ns
    content_size: int  # bytes of all files in the tree

    def of_sif(self, sif: Path) -> "Record":
        """The same build whose SIF has been signed since."""
        status = sif.stat()
        return replace(self, sif=sha256_file(sif), sif_size=status.st_size, sif_time=status.st_mtime_ns)

    def save(self, path: Path) -> None:
        save_text(path, json.dumps(asdict(self), indent=1, sort_keys=True) + "\n")


def record_key(plan: Plan) -> str:
    """The build key and the tools that decide bytes beside it."""
    return f"{plan.key} {' '.join((*tools(), PACKING))} envbuilder {__version__}"


def load_record(outputs: Outputs, plan: Plan) -> Record | None:
    """The record of an earlier build whose artefacts are still what this plan would give; else None."""
    record = load_any_record(outputs)
    return record if record and record.key == record_key(plan) else None


def load_any_record(outputs: Outputs) -> Record | None:
    """The record of the artefacts as they are, of whichever plan; None when they have changed since."""
    try:
        record = Record(**json.loads(outputs.record.read_text(encoding="utf-8")))
        status = outputs.sif.stat()
        manifest = outputs.image / "blobs/sha256" / record.manifest
        same = (status.st_size, status.st_mtime_ns) == (
            record.sif_size,
            record.sif_time,
        ) and manifest.is_file()
    except (OSError, ValueError, TypeError):
        return None
    return record if same else None


def refuse(path: Path) -> None:
    """Take its final name from an artefact that is not what was promised; what was refused before it goes."""
    refused = path.with_name(f"{path.name}.refused")
    if refused.is_dir():
        remove_tree(refused)
    path.rename(refused)


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    record: Record
    layers: tuple[Layer, ...]


def build(
    plan: Plan,
    outputs: Outputs,
    *,
    engine: Assemble,
    runner: Runner,
    console: Console,
    part_done: Callable[[tuple[Layer, ...]], None],
    image_done: Callable[[Sha256], None],
) -> Built:
    """Make every layer that the store lacks, then both artefacts; each appears under its name when it is whole.

    `part_done` is called with the layers that the extensions stand on, `image_done` with the manifest's digest when the
    image is whole; both while the rest is still being made.
    """
    outputs.folder.mkdir(parents=True, exist_ok=True)
    outputs.record.unlink(missing_ok=True)  # it speaks of artefacts that are about to be replaced
    with worker_threads(THREADS, runner) as pool:
        coming = engine.start(plan, pool)
        first = [layer for step, layer in zip(plan.steps, coming, strict=True) if isinstance(step, FIRST)]
        layers = all_of(coming, first, part_done=part_done)
    check_disjoint(layers)
    with console.step("write the OCI layout"):
        manifest = write_image(plan, layers, outputs.image)
    image_done(manifest)
    with console.step("write the SIF"):
        facts = _write_sif(plan, outputs, layers)
    record = Record(
        key=record_key(plan),
        manifest=manifest,
        sif=facts.sha256,
        sif_size=facts.size,
        sif_time=outputs.sif.stat().st_mtime_ns,
        content_size=sum(layer.content_size for layer in layers),
    )
    return Built(record=record, layers=layers)


def all_of(
    layers: Sequence["Future[Layer]"],
    first: Sequence["Future[Layer]"],
    *,
    part_done: Callable[[tuple[Layer, ...]], None],
) -> tuple[Layer, ...]:
    """Every layer; the first failure is raised at once."""
    waiting = set(first)
    for done in as_completed(layers):
        done.result()
        if waiting and waiting <= {layer for layer in layers if layer.done()}:
            waiting.clear()
            part_done(tuple(layer.result() for layer in first))
    return tuple(layer.result() for layer in layers)


@contextlib.contextmanager
def worker_threads(count: int, runner: Runner) -> Iterator[Executor]:
    """A pool whose work ends with the context; after a failure the programs that still run are ended first."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="build")
    try:
        yield pool
    except BaseException as error:
        runner.stop()
        # An interrupted person waits for nobody; after a failure, what still runs tidies up.
        pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    pool.shutdown()


def _write_sif(plan: Plan, outputs: Outputs, layers: Sequence[Layer]) -> SifFacts:
    return write_sif(
        layers=layers,
        out=outputs.sif,
        epoch=plan.epoch,
        definition=f"# Made by envbuilder from the recipe `{plan.name}`; see /opt/envbuilder/plan.txt inside.\n",
        labels=dict(plan.runtime.labels),
        documents=_documents(layers[-1]),
    )


def _documents(runtime: Layer) -> tuple[Document, ...]:
    """The parts list and the provenance, as they stand in the runtime layer."""
    texts = read_files(runtime, {SBOM, PROVENANCE})
    kinds = ((SBOM, DataType.SBOM), (PROVENANCE, DataType.JSON))
    return tuple(
        Document(data_type=kind, name=PurePosixPath(path).name, content=texts[path]) for path, kind in kinds
    )


def image_name(plan: Plan) -> str:
    return f"{IMAGE_PREFIX}/{plan.name}:latest"


def write_image(plan: Plan, layers: Sequence[Layer], folder: Path) -> Sha256:
    """Write the OCI layout of these layers of the plan and return its manifest's digest."""
    return write_layout(
        layers=layers,
        config=image_config(plan),
        epoch=plan.epoch,
        platform=plan.platform,
        folder=folder,
        name=image_name(plan),
    )


def image_config(plan: Plan) -> ImageConfig:
    return ImageConfig(
        env=plan.runtime.env,
        cmd=("/bin/bash",),
        entrypoint=("/opt/envbuilder/start",),
        labels=(*plan.runtime.labels, make_label(desk_of(plan))),
    )


def desk_of(plan: Plan) -> Desk:
    python = next(step.python for step in plan.steps if isinstance(step, PythonStep))
    image = next((step.image for step in plan.steps if isinstance(step, OsStep)), "")
    return Desk(python=python, has_cuda="CUDA_HOME" in dict(plan.runtime.env), has_user=not image)
