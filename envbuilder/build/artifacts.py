"""Layers → artifacts: run the engine, then write the OCI layout and the SIF from the same layers.

The image's blobs are hard links to the layers and the SIF is a copy of their bytes. Both wait for the last layer and take little
time then.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from envbuilder.artifacts.oci.layout import Layout, write_layout
from envbuilder.artifacts.oci.model import ImageConfig
from envbuilder.artifacts.outputs import Outputs, Record
from envbuilder.artifacts.sif import DataType, Document, SifFacts, write_sif
from envbuilder.build.engine import Engine, record_key
from envbuilder.core.console import Console
from envbuilder.core.process import Runner
from envbuilder.layers.layer import Layer, check_disjoint, read_files
from envbuilder.plan.model import CudaStep, OsStep, Plan, PythonStep
from envbuilder.plan.provenance import PROVENANCE
from envbuilder.plan.sbom import SBOM
from envbuilder.run.devcontainer import Desk, make_label

FIRST: Final = (
    OsStep,
    PythonStep,
    CudaStep,
)  # extensions stand on these layers, and they are nearly all of the bytes
THREADS: Final = 16  # more than a plan has layers and trees: a future may wait for another


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifacts:
    """An image and a SIF under temporary names: their record, and the layers that they are made of."""

    record: Record
    layout: Layout
    layers: tuple[Layer, ...]


def build_artifacts(
    plan: Plan,
    outputs: Outputs,
    *,
    engine: Engine,
    runner: Runner,
    console: Console,
    part_done: Callable[[tuple[Layer, ...]], None],
    image_done: Callable[[Layout], None],
) -> Artifacts:
    """Make every layer that the store lacks, then both artifacts in the folder of `outputs`, which exists.

    `part_done` gets the layers that the extensions stand on. `image_done` gets the layout once the image is written.
    Both are called while the rest is still being made.
    """
    with worker_threads(THREADS, runner) as pool:
        pending = engine.start(plan, pool)
        first = [layer for step, layer in zip(plan.steps, pending, strict=True) if isinstance(step, FIRST)]
        layers = wait_for_layers(pending, first, part_done=part_done)
    check_disjoint(layers)
    with console.step("write the OCI layout"):
        layout = write_image(plan, layers, outputs.image, name=outputs.image_name)
    image_done(layout)
    with console.step("write the SIF"):
        facts = _write_sif(plan, outputs, layers)
    record = Record(
        key=record_key(plan, engine.name),
        manifest=layout.manifest.digest,
        sif=facts.sha256,
        sif_size=facts.size,
        sif_time=outputs.sif.stat().st_mtime_ns,
        content_size=sum(layer.content_size for layer in layers),
    )
    return Artifacts(record=record, layout=layout, layers=layers)


def wait_for_layers(
    layers: Sequence["Future[Layer]"],
    first: Sequence["Future[Layer]"],
    *,
    part_done: Callable[[tuple[Layer, ...]], None],
) -> tuple[Layer, ...]:
    """Return every layer. Calls `part_done` as soon as the `first` ones are there, and raises the first failure at once."""
    waiting = set(first)
    for done in as_completed(layers):
        done.result()
        if waiting and waiting <= {layer for layer in layers if layer.done()}:
            waiting.clear()
            part_done(tuple(layer.result() for layer in first))
    return tuple(layer.result() for layer in layers)


@contextlib.contextmanager
def worker_threads(count: int, runner: Runner) -> Iterator[Executor]:
    """Yield a pool whose work ends with the block. After a failure, the programs that still run are stopped first."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="build")
    try:
        yield pool
    except BaseException as error:
        # After Ctrl-C nothing is waited for; after a failure, running work cleans up.
        interrupted = not isinstance(error, Exception)
        runner.stop(for_good=interrupted)
        pool.shutdown(wait=not interrupted, cancel_futures=True)
        raise
    pool.shutdown()


def write_image(plan: Plan, layers: Sequence[Layer], folder: Path, *, name: str) -> Layout:
    """Write the OCI layout of these layers of the plan, as the image `name`."""
    return write_layout(
        layers=layers,
        config=image_config(plan),
        epoch=plan.epoch,
        platform=plan.platform,
        folder=folder,
        name=name,
    )


def image_config(plan: Plan) -> ImageConfig:
    """Return the settings of the plan's image: variables, labels, and the commands that a container starts."""
    return ImageConfig(
        env=plan.runtime.env,
        cmd=("/bin/bash",),
        entrypoint=("/opt/envbuilder/start",),
        labels=(*plan.runtime.labels, make_label(desk_of(plan))),
    )


def desk_of(plan: Plan) -> Desk:
    """Return what an editor must know of the plan's environment."""
    has_cuda = "CUDA_HOME" in dict(plan.runtime.env)
    return Desk(python=plan.python.python, has_cuda=has_cuda, has_user=not plan.os.base)


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
    """Return the SBOM and the provenance that lie in the runtime layer."""
    texts = read_files(runtime, {SBOM, PROVENANCE})
    kinds = ((SBOM, DataType.SBOM), (PROVENANCE, DataType.JSON))
    return tuple(
        Document(data_type=kind, name=PurePosixPath(path).name, content=texts[path]) for path, kind in kinds
    )
