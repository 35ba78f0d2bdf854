"""Plan → artefacts: runs the engine and writes the OCI layout and the SIF from the same layers.

The SIF's writer starts with the first layer and waits for the later ones, so that the largest part of its work is done
while the extensions compile.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from envbuilder import __version__
from envbuilder.command import Runner
from envbuilder.console import Console
from envbuilder.engines.assemble import Assemble, tools
from envbuilder.oci import ImageConfig, write_layout
from envbuilder.parts import PROVENANCE, SBOM
from envbuilder.plan import Plan
from envbuilder.sif import DataType, Document, SifFacts, write_sif
from envbuilder.store import Sha256, save_text, sha256_file
from envbuilder.tree import Layer, check_disjoint, read_files

IMAGE_PREFIX: Final = "envbuilder"  # of the names in a Docker engine
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
    return f"{plan.key} {' '.join(tools())} envbuilder {__version__}"


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
    threads: int,
    image_done: Callable[[Sha256], None],
) -> Built:
    """Make every layer that the store lacks, then both artefacts; each appears under its name when it is whole.

    `image_done` is called with the manifest's digest when the image is whole, while the SIF is still being written.
    """
    outputs.folder.mkdir(parents=True, exist_ok=True)
    outputs.record.unlink(missing_ok=True)  # it speaks of artefacts that are about to be replaced
    with worker_threads(THREADS, runner) as pool:
        futures = engine.start(plan, pool)
        sif = pool.submit(_write_sif, plan, outputs, futures, runner=runner, console=console, threads=threads)
        layers = tuple(future.result() for future in futures)
        check_disjoint(layers)
        with console.step("write the OCI layout"):
            manifest = write_layout(
                layers=layers,
                config=image_config(plan),
                epoch=plan.epoch,
                platform=plan.platform,
                folder=outputs.image,
                name=f"{IMAGE_PREFIX}/{plan.name}:latest",
            )
        image_done(manifest)
        facts = sif.result()
    record = Record(
        key=record_key(plan),
        manifest=manifest,
        sif=facts.sha256,
        sif_size=facts.size,
        sif_time=outputs.sif.stat().st_mtime_ns,
        content_size=sum(layer.content_size for layer in layers),
    )
    return Built(record=record, layers=layers)


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


def _write_sif(
    plan: Plan,
    outputs: Outputs,
    futures: tuple["Future[Layer]", ...],
    *,
    runner: Runner,
    console: Console,
    threads: int,
) -> SifFacts:
    with console.step("write the SIF") as step:
        return write_sif(
            layers=_as_they_come(futures, step.tell),
            out=outputs.sif,
            epoch=plan.epoch,
            definition=f"# Made by envbuilder from the recipe `{plan.name}`; see /opt/envbuilder/plan.txt inside.\n",
            labels=dict(plan.runtime.labels),
            documents=_documents,
            runner=runner,
            threads=threads,
        )


def _documents(runtime: Layer) -> tuple[Document, ...]:
    """The parts list and the provenance, as they stand in the runtime layer."""
    texts = read_files(runtime, {SBOM, PROVENANCE})
    kinds = ((SBOM, DataType.SBOM), (PROVENANCE, DataType.JSON))
    return tuple(
        Document(data_type=kind, name=PurePosixPath(path).name, content=texts[path]) for path, kind in kinds
    )


def _as_they_come(futures: tuple["Future[Layer]", ...], tell: Callable[[str], None]) -> Iterator[Layer]:
    for future in futures:
        layer = future.result()
        tell(f"{layer.name} layer")
        yield layer


def image_config(plan: Plan) -> ImageConfig:
    return ImageConfig(env=plan.runtime.env, cmd=("/bin/bash",), labels=plan.runtime.labels)
