"""The assemble engine: layers composed from locked artifacts, without a daemon and without root.

Each layer is a future. What does not wait for another layer runs beside it: the wheels are installed beside the distribution's
packages, and the Python layer is compressed while the extensions compile.
"""

import functools
import threading
from collections.abc import Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from envbuilder.build.assemble.cuda import CudaMaker
from envbuilder.build.assemble.extensions import ExtensionsMaker
from envbuilder.build.assemble.os import OsMaker
from envbuilder.build.assemble.python import PythonMaker
from envbuilder.build.assemble.runtime import RuntimeMaker
from envbuilder.build.assemble.sandbox import Root
from envbuilder.build.assemble.start import StartMaker
from envbuilder.build.assemble.step import Job, KeptStep, StepMaker, TreeMaker
from envbuilder.build.engine import EngineName, layer_keys, missing_steps
from envbuilder.build.extensions import ExtensionStatus
from envbuilder.core.cache import Store, commit_path, remove_tree
from envbuilder.core.console import Console
from envbuilder.core.errors import BuildError
from envbuilder.core.limits import Limits
from envbuilder.core.process import Command, Runner
from envbuilder.core.required_tools import BUILD_TOOLS, need_tools
from envbuilder.layers.layer import Layer, extract, load_layer
from envbuilder.lock.model import Artifact
from envbuilder.plan.model import (
    CudaStep,
    ExtensionsStep,
    OsStep,
    Plan,
    PythonStep,
    RuntimeStep,
    StartStep,
    Step,
)


def tree_maker(step: KeptStep, job: Job) -> TreeMaker:
    """Return how a step is made whose tree is kept."""
    match step:
        case OsStep():
            return OsMaker(step=step, job=job)
        case PythonStep():
            return PythonMaker(step=step, job=job)
        case CudaStep():
            return CudaMaker(step=step, job=job)
        case _:
            assert_never(step)


def step_maker(step: Step, job: Job) -> StepMaker:
    """Return how a step is made: the one table of all kinds."""
    match step:
        case OsStep() | PythonStep() | CudaStep():
            return tree_maker(step, job)
        case ExtensionsStep():
            return ExtensionsMaker(step=step, job=job)
        case StartStep():
            return StartMaker(step=step, job=job)
        case RuntimeStep():
            return RuntimeMaker(step=step, job=job)
        case _:
            assert_never(step)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembleEngine:
    """The engine."""

    store: Store
    runner: Runner
    console: Console
    limits: Limits

    @property
    def name(self) -> EngineName:
        return EngineName.ASSEMBLE

    def need_tools(self) -> None:
        need_tools(BUILD_TOOLS, self.runner)

    def missing(self, plan: Plan) -> tuple[Step, ...]:
        """Return the steps whose layers are not in the store. Raises BuildError for a plan on an image."""
        if image := plan.os.image:
            raise BuildError(
                f"`{plan.name}` stands on the image `{image}`, which the engine `assemble` does not support",
                hint="`--engine docker` builds on images",
            )
        return missing_steps(plan, self.store, self.name)

    def artefacts(self, plan: Plan) -> tuple[Artifact, ...]:
        job = self.job(plan)
        return tuple(
            dict.fromkeys(one for step in self.missing(plan) for one in step_maker(step, job).inputs())
        )

    def commands(self, plan: Plan) -> tuple[Command, ...]:
        job = self.job(plan)
        root = make_root(plan, {type(step): tree for step, tree in self._trees(plan).items()})
        return tuple(
            command
            for step in self.missing(plan)
            for command in step_maker(step, job).commands(Path("WORK"), root)
        )

    def start(self, plan: Plan, pool: Executor) -> "tuple[Future[Layer], ...]":
        run = Run(self.job(plan), pool)
        return tuple(run.start(step) for step in plan.steps)

    def find_extensions(self, plan: Plan) -> tuple[ExtensionStatus, ...]:
        """Return what the store has of the plan's extensions."""
        job, root = self.job(plan), functools.partial(make_root, plan, {})
        steps = (step for step in plan.steps if isinstance(step, ExtensionsStep))
        return tuple(
            found for step in steps for found in ExtensionsMaker(step=step, job=job).builder(root).find()
        )

    def job(self, plan: Plan) -> Job:
        """Return what the steps of a plan are made with."""
        return Job(
            plan=plan, store=self.store, runner=self.runner, console=self.console, limits=self.limits, engine=self.name
        )  # fmt: skip

    def _trees(self, plan: Plan) -> dict[Step, Path]:
        return {step: self.store.tree(key) for step, key in layer_keys(plan, self.name).items()}


class Run:
    """One run of the engine over one plan: a future for each layer, and for each tree that is kept."""

    def __init__(self, job: Job, pool: Executor) -> None:
        self._job, self._pool = job, pool
        self._keys = layer_keys(job.plan, job.engine)
        self._guard = threading.RLock()
        self._layers: dict[Step, Future[Layer]] = {}
        self._trees: dict[Step, Future[Path]] = {}

    def start(self, step: Step) -> "Future[Layer]":
        """Start the step's layer unless it is started."""
        with self._guard:
            if step not in self._layers:
                self._layers[step] = self._pool.submit(self._make_layer, step)
            return self._layers[step]

    # What a step sees of the others.

    def layers(self) -> dict[type[Step], Layer]:
        others = [step for step in self._job.plan.steps if not isinstance(step, RuntimeStep)]
        return {type(step): self.start(step).result() for step in others}

    def layer(self, kind: type[Step]) -> Layer:
        return self.start(next(step for step in self._job.plan.steps if isinstance(step, kind))).result()

    def tree(self, kind: type[KeptStep]) -> Path:
        return self._start_trees(kind)[0].result()

    def kept_trees(self) -> dict[type[Step], Path]:
        return {type(step): self._job.store.tree(key) for step, key in self._keys.items()}

    def root(self) -> Root:
        kinds = (OsStep, PythonStep, CudaStep)
        pending = {kind: trees for kind in kinds if (trees := self._start_trees(kind))}
        return make_root(self._job.plan, {kind: trees[0].result() for kind, trees in pending.items()})

    def _start_trees(self, kind: type[KeptStep]) -> "list[Future[Path]]":
        """Start the tree of the plan's step of that kind unless it is started. The list is empty when the plan has none."""
        with self._guard:
            steps = [step for step in self._job.plan.steps if isinstance(step, kind)]
            for step in steps:
                if step not in self._trees:
                    self._trees[step] = self._pool.submit(self._make_tree, step)
            return [self._trees[step] for step in steps]

    def _make_layer(self, step: Step) -> Layer:
        store, key = self._job.store, self._keys[step]
        folder = store.layer(key)
        if found := load_layer(folder):
            return found
        with store.lock(f"layer-{key}"):
            if found := load_layer(folder):
                return found
            if folder.exists():  # damaged: `commit_path` would take it for finished
                remove_tree(folder)
            with store.workspace() as work:
                out = work / "layer"
                out.mkdir()
                step_maker(step, self._job).write_layer(out, work, self)
                commit_path(out, folder)
        layer = load_layer(folder)
        assert layer is not None, f"{folder} was just written"
        return layer

    def _make_tree(self, step: KeptStep) -> Path:
        store, key = self._job.store, self._keys[step]
        final = store.tree(key)
        with store.lock(f"tree-{key}"):
            if final.is_dir():
                return final
            layer = load_layer(store.layer(key))
            with store.workspace() as work:
                if layer is not None:
                    with self._job.console.step(f"unpack the {layer.name} layer"):
                        extract(layer, work / "tree")
                else:
                    tree_maker(step, self._job).write_tree(work, self)
                commit_path(work / "tree", final)
        return final


def make_root(plan: Plan, trees: Mapping[type[Step], Path]) -> Root:
    """Return the root that extensions are compiled in."""
    version = plan.cuda.toolkit.cuda if plan.cuda else ""
    return Root(os=trees[OsStep], python=trees[PythonStep], cuda=trees.get(CudaStep), cuda_version=version)
