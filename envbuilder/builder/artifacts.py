"""Layers → artifacts: run the steps, and write the OCI layout and the SIF from the same layers.

The image's blobs are hard links to the layers. The SIF is a copy of their bytes: each layer's once those below it are there, while later
ones are made. So both take little time after the last layer. Meanwhile, the image is loaded into the Docker engine, and what is in
the SIF is unpacked again, as its verification asks.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Self

from envbuilder.artifacts.oci.layout import Layout, write_layout
from envbuilder.artifacts.oci.model import ImageConfig
from envbuilder.artifacts.outputs import Outputs, Record
from envbuilder.artifacts.sif import DataType, Document, SifFacts, SifWriter
from envbuilder.builder.context import worker_threads
from envbuilder.builder.hashed_blobs import HashedBlobs
from envbuilder.builder.job import BuildJob, StepRunner, record_key
from envbuilder.core.cache import Sha256, Store
from envbuilder.core.console import Console
from envbuilder.layers.layer import Layer, check_disjoint, read_files
from envbuilder.plan.contents import PROVENANCE, SBOM, entry_point
from envbuilder.plan.model import LOCK_LABEL, RECIPE_LABEL, Plan
from envbuilder.run.devcontainer import image_labels
from envbuilder.verify.pair import load_contents
from envbuilder.verify.stored import Known, unpack_large

if TYPE_CHECKING:
    from envbuilder.artifacts.docker_engine import DockerEngine

THREADS: Final = 80  # more than a plan's layers and their folders, because one may wait for another
_LOW: Final = 10  # the nice value of work that can wait: a tenth of a busy core


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifacts:
    """An image and a SIF under temporary names, with their layers."""

    layout: Layout
    layers: tuple[Layer, ...]
    known: Known  # of the layers that were unpacked again meanwhile

    def record(self, plan: Plan, sif: SifFacts) -> Record:
        """Return the record of their build."""
        labels = dict(plan.runtime.labels)
        return Record(
            key=record_key(plan),
            recipe=labels[RECIPE_LABEL].removeprefix("sha256:"),
            lock=labels[LOCK_LABEL].removeprefix("sha256:"),
            manifest=self.layout.manifest.digest,
            sif=sif.sha256,
            sif_size=sif.size,
            content_size=sum(layer.content_size for layer in self.layers),
        )


class Background:
    """A queue of work, one thread at a time. A failed build does not wait for it: Docker drops an interrupted load."""

    def __init__(self) -> None:
        self._last: Future[None] = Future()
        self._last.set_result(None)

    def begin(self, work: Callable[[], object]) -> None:
        """Do the work after all earlier work."""
        before, self._last = self._last, Future()

        def run(done: Future[None]) -> None:
            try:
                before.result()
                work()
                done.set_result(None)
            except BaseException as error:  # noqa: BLE001 - `finish` raises it
                done.set_exception(error)

        threading.Thread(target=run, args=(self._last,), daemon=True, name="load").start()

    def finish(self) -> None:
        """Wait for all work; raises the first error."""
        self._last.result()


class ImageLoader:
    """Load an image into the Docker engine during a build. Does nothing without an engine."""

    def __init__(self, docker: "DockerEngine | None", name: str, console: Console) -> None:
        self._docker, self._name, self._console = docker, name, console
        self._background = Background()
        self._staged = ""
        self._most = 0  # the number of first layers that were given

    def load_first(self, job: BuildJob, layers: tuple[Layer, ...]) -> None:
        """Load the image's first layers, while later ones are made, unless more were given when it begins."""
        self._most = len(layers)
        if docker := self._docker:

            def load() -> None:
                if self._most > len(layers):
                    return
                with job.store.workspace() as work:
                    layout = write_image(job.plan, layers, work / "image", name=self._name)
                    docker.load_first_layers(layout, name=self._name, console=self._console)

            self._background.begin(load)

    def load_image(self, layout: Layout) -> None:
        """Start to load the whole image under its staged name."""
        if docker := self._docker:

            def load() -> None:
                self._staged = docker.load_staged(layout, name=self._name, console=self._console)

            self._background.begin(load)

    def finish(self) -> str:
        """Wait until the image is loaded. Returns its staged name, "" without an engine."""
        self._background.finish()
        return self._staged


class Rereading:
    """Unpacks layers again, one after another, while nothing else wants the core. After the block, `verify` takes what is `known`.

    Only the content of large files: what is done in Python itself would hold up the other threads.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._background, self._stop = store, Background(), threading.Event()
        self.known: dict[Sha256, frozenset[str]] = {}  # as `Known`: what of a layer is left to unpack

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._background.finish()

    def add(self, layer: Layer) -> None:
        self._background.begin(lambda: self._unpack(layer))

    def _unpack(self, layer: Layer) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW)
        if not (self._stop.is_set() or load_contents(self._store, (layer,))):
            with contextlib.suppress(OSError, ValueError):  # of a damaged layer, which `verify` names
                self.known[layer.digest] = unpack_large(layer, self._stop)


def build_artifacts(runner: StepRunner, outputs: Outputs, loader: ImageLoader) -> Artifacts:
    """Make every layer that the store lacks, then both artifacts in the existing folder of `outputs`."""
    job = runner.job
    with (
        Rereading(job.store) as reread,
        worker_threads(THREADS, job.runner) as pool,
        _begin_sif(outputs.sif, job.plan) as sif,
    ):
        pending = runner.start(pool, sif)
        filled = pool.submit(fill, sif, pending, job.blobs, reread.add)
        layers = wait_for_layers(pending, filled, first_done=lambda layers: loader.load_first(job, layers))
        job.folders.close()
        check_disjoint(layers, among=[step.name for step in job.plan.environment])
        with job.console.step("write the OCI layout"):
            layout = write_image(job.plan, layers, outputs.image, name=outputs.image_name)
        loader.load_image(layout)
        with job.console.step("write the SIF"):
            _finish_sif(sif, job.plan, layers)
    return Artifacts(layout=layout, layers=layers, known=reread.known)


def fill(
    sif: SifWriter, pending: Sequence["Future[Layer]"], blobs: HashedBlobs, added: Callable[[Layer], None]
) -> None:
    """Put the layers into the SIF as they are made. Raises BuildError for a damaged blob, SpaceError, what a layer's maker raises."""
    try:
        for made in pending:
            layer = made.result()
            blobs.need_right(layer)
            sif.add(layer)
            added(layer)
    except BaseException:
        sif.close()  # programs wait for its layers
        raise


def wait_for_layers(
    layers: Sequence["Future[Layer]"],
    filled: "Future[None]",
    *,
    first_done: Callable[[tuple[Layer, ...]], None],
) -> tuple[Layer, ...]:
    """Return every layer. Calls `first_done` with the first ones, whenever more are done. Raises the first failure at once.

    `filled` is other work, whose failure counts too.
    """
    count = 0
    every: tuple[Future[Any], ...] = (*layers, filled)
    for done in as_completed(every):
        done.result()
        first = tuple(layer.result() for layer in takewhile(Future.done, layers))
        if count < len(first) < len(layers):
            count = len(first)
            first_done(first)
    return tuple(layer.result() for layer in layers)


def write_image(plan: Plan, layers: Sequence[Layer], folder: Path, *, name: str) -> Layout:
    """Write the OCI layout of these layers of the plan, as the image `name`."""
    first, default = entry_point(plan.runtime)
    config = ImageConfig(env=plan.runtime.env, cmd=default, entrypoint=first, labels=image_labels(plan))
    return write_layout(
        layers=layers, config=config, epoch=plan.epoch, platform=plan.platform, folder=folder, name=name
    )


def _begin_sif(path: Path, plan: Plan) -> SifWriter:
    definition = f"# Made by envbuilder from the recipe `{plan.name}`; see /opt/envbuilder/plan.txt inside.\n"
    return SifWriter(path, definition=definition, labels=dict(plan.runtime.labels))


def _finish_sif(sif: SifWriter, plan: Plan, layers: Sequence[Layer]) -> None:
    texts = read_files(layers[-1], {SBOM, PROVENANCE})
    kinds = ((SBOM, DataType.SBOM), (PROVENANCE, DataType.JSON))
    sif.finish(
        epoch=plan.epoch,
        processor=plan.processor,
        documents=tuple(
            Document(data_type=kind, name=PurePosixPath(path).name, content=texts[path])
            for path, kind in kinds
        ),
    )
