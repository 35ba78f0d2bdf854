"""The assemble engine: layers composed from locked artefacts, without a daemon and without root.

Each layer is one future. What does not wait for another runs beside it: the wheels are installed beside the
distribution's packages, and the Python layer is compressed while the extensions compile.
"""

import functools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import assert_never

from envbuilder.build import extensions
from envbuilder.build.assemble import cuda, python, runtime, start
from envbuilder.build.assemble import os as debian
from envbuilder.build.assemble.sandbox import Root
from envbuilder.build.engine import EngineName, layer_keys, missing_steps, tools
from envbuilder.core.cache import Store, publish, remove_tree
from envbuilder.core.console import Console
from envbuilder.core.errors import BuildError
from envbuilder.core.limits import Limits
from envbuilder.core.process import Command, Runner
from envbuilder.core.required_tools import BUILD_TOOLS, need_tools
from envbuilder.layers.layer import Layer, extract, load_layer, write_layer
from envbuilder.lock.model import Artefact
from envbuilder.plan.documents import write_documents
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Assemble:
    store: Store
    runner: Runner
    console: Console
    limits: Limits

    def start(self, plan: Plan, pool: Executor) -> "tuple[Future[Layer], ...]":
        """Begin every layer of the plan; `pool` needs a thread for each of them and its tree."""
        run = Run(engine=self, plan=plan, pool=pool)
        return tuple(run.layer(step) for step in plan.steps)

    @property
    def name(self) -> EngineName:
        return EngineName.ASSEMBLE

    def need_tools(self) -> None:
        need_tools(BUILD_TOOLS, self.runner)

    def missing(self, plan: Plan) -> tuple[Step, ...]:
        """The steps whose layers are not in the store; raises BuildError for a plan that this engine cannot follow."""
        if image := plan.os.image:
            raise BuildError(
                f"`{plan.name}` stands on the image `{image}`, which this engine cannot compose layers on",
                hint="`--engine docker` builds on images",
            )
        return missing_steps(plan, self.store, self.name)

    def artefacts(self, plan: Plan) -> tuple[Artefact, ...]:
        """What the layers that the store lacks are made of: fetched, and compared with its hash, before they are made."""
        missing = self.missing(plan)
        own = [artefact for step in missing for artefact in step.artefacts]
        shared = [
            one
            for step in missing
            if isinstance(step, PythonStep)
            for one in python.interpreter(step, plan.os.artefacts)
        ]
        return tuple(dict.fromkeys((*own, *shared)))

    def commands(self, plan: Plan) -> tuple[Command, ...]:
        """The commands of the layers that the store lacks, with `WORK` for the folder that each run makes anew."""
        trees = {type(step): self.store.tree(key) for step, key in layer_keys(plan, self.name).items()}
        root = make_root(plan, trees)
        work = Path("WORK")
        found: list[Command] = []
        for step in self.missing(plan):
            match step:
                case OsStep():
                    repository, skeleton, out = work / "repository", work / "skeleton.tar", work / "os.tar"
                    found += [
                        debian.index_command(repository),
                        debian.bootstrap_command(
                            step,
                            repository=repository,
                            skeleton=skeleton,
                            out=out,
                            root=self.limits.root,
                            epoch=plan.epoch,
                        ),
                    ]
                case PythonStep():
                    found += python.unpack_commands(step, plan.os.artefacts, store=self.store, work=work)
                    found += python.install_commands(step, work=work, epoch=plan.epoch)
                case ExtensionsStep():
                    found += self.shop(plan, step, lambda: root).commands(root=root, work=work)
                case StartStep():
                    found.append(start.compile_command(step, root=Root(os=root.os), tree=work / "tree"))
                case CudaStep() | RuntimeStep():  # files are laid out without a program
                    pass
                case _:
                    assert_never(step)
        return tuple(found)

    def find_extensions(self, plan: Plan) -> tuple[extensions.Found, ...]:
        """What the store has of the plan's extensions."""
        steps = (step for step in plan.steps if isinstance(step, ExtensionsStep))
        root = functools.partial(make_root, plan, {})
        return tuple(found for step in steps for found in self.shop(plan, step, root).find())

    def shop(self, plan: Plan, step: ExtensionsStep, root: Callable[[], Root]) -> extensions.Shop:
        """Where the plan's extensions are compiled; `root` is asked when something must be."""
        return extensions.Shop(
            plan=plan, step=step, store=self.store, runner=self.runner, console=self.console, jobs=self.jobs, root=root
        )  # fmt: skip

    @property
    def jobs(self) -> int:
        """Compilers at once: as many as cores and memory allow."""
        return max(1, min(self.limits.threads, self.limits.memory // extensions.NVCC_MEMORY))


class Run:
    """One run of the engine over one plan: a future for each layer, and for each tree that a later step builds in."""

    def __init__(self, *, engine: Assemble, plan: Plan, pool: Executor) -> None:
        self._engine, self._plan, self._pool = engine, plan, pool
        self._store, self._runner, self._console = engine.store, engine.runner, engine.console
        self._keys = layer_keys(plan, engine.name)
        self._threads = engine.limits.threads
        self._guard = threading.RLock()
        self._layers: dict[Step, Future[Layer]] = {}
        self._trees: dict[Step, Future[Path]] = {}

    def layer(self, step: Step) -> "Future[Layer]":
        with self._guard:
            if step not in self._layers:
                self._layers[step] = self._pool.submit(self._make_layer, step)
            return self._layers[step]

    def _tree(self, kind: type[OsStep | PythonStep | CudaStep]) -> "Future[Path] | None":
        """The future tree of the plan's step of that kind; None when the plan has none."""
        step = next((step for step in self._plan.steps if isinstance(step, kind)), None)
        if step is None:
            return None
        with self._guard:
            if step not in self._trees:
                self._trees[step] = self._pool.submit(self._make_tree, step)
            return self._trees[step]

    def root(self) -> Root:
        trees = {kind: self._tree(kind) for kind in (OsStep, PythonStep, CudaStep)}
        return make_root(self._plan, {kind: tree.result() for kind, tree in trees.items() if tree})

    def _make_layer(self, step: Step) -> Layer:
        key = self._keys[step]
        folder = self._store.layer(key)
        if found := load_layer(folder):
            return found
        with self._store.lock(f"layer-{key}"):
            if found := load_layer(folder):
                return found
            if folder.exists():  # damaged: `publish` would take it for finished
                remove_tree(folder)
            with self._store.workspace() as work:
                out = work / "layer"
                out.mkdir()
                self._write_layer(step, out=out, work=work)
                publish(out, folder)
        layer = load_layer(folder)
        assert layer is not None, f"{folder} was just written"
        return layer

    def _write_layer(self, step: Step, *, out: Path, work: Path) -> None:
        epoch, threads = self._plan.epoch, self._threads
        match step:
            case OsStep():
                with self._console.step(f"install {step.suite}: {len(step.artefacts)} packages"):
                    debian.build_os(
                        step, store=self._store, runner=self._runner, epoch=epoch, threads=threads,
                        root=self._engine.limits.root, work=work, folder=out,
                    )  # fmt: skip
            case PythonStep() | CudaStep():
                kind = type(step)
                tree = self._need(kind)
                with self._console.step(f"write the {step.name} layer"):
                    self._pack(step, tree, out)
            case ExtensionsStep():
                self._pack(step, self._compile(step, work / "tree"), out)
            case StartStep():
                tree = work / "tree"
                start.write_start_files(step, tree, root=Root(os=self._need(OsStep)), runner=self._runner)
                self._pack(step, tree, out)
            case RuntimeStep():
                runtime.write_runtime_files(step, work / "tree", self._documents())
                self._pack(step, work / "tree", out)
            case _:
                assert_never(step)

    def _pack(self, step: Step, tree: Path, out: Path) -> None:
        write_layer(
            name=step.name, tree=tree, folder=out, epoch=self._plan.epoch, threads=self._threads,
            omit=self._plan.shared_folders(step),
        )  # fmt: skip

    def _documents(self) -> dict[str, str]:
        """What can be said of the environment when all its other layers are there."""
        steps = [step for step in self._plan.steps if not isinstance(step, RuntimeStep)]
        layers = {type(step): self.layer(step).result() for step in steps}
        trees = {type(step): self._store.tree(self._keys[step]) for step in steps}
        return write_documents(self._plan, layers, trees, tools(), self._engine.name)

    def _need(self, kind: type[OsStep | PythonStep | CudaStep]) -> Path:
        tree = self._tree(kind)
        assert tree is not None, f"the plan has a {kind.__name__}"
        return tree.result()

    def _make_tree(self, step: OsStep | PythonStep | CudaStep) -> Path:
        key = self._keys[step]
        final = self._store.tree(key)
        with self._store.lock(f"tree-{key}"):
            if final.is_dir():
                return final
            layer = (
                self.layer(step).result() if isinstance(step, OsStep) else load_layer(self._store.layer(key))
            )
            with self._store.workspace() as work:
                if layer is not None:
                    with self._console.step(f"unpack the {layer.name} layer"):
                        extract(layer, work / "tree")
                else:
                    self._build_tree(step, work)
                publish(work / "tree", final)
        return final

    def _build_tree(self, step: OsStep | PythonStep | CudaStep, work: Path) -> None:
        match step:
            case OsStep():
                raise AssertionError("the os layer comes before its tree")
            case PythonStep():
                with self._console.step(f"install {len(step.artefacts)} Python packages"):
                    python.build_python(
                        step,
                        self._plan.os.artefacts,
                        store=self._store,
                        runner=self._runner,
                        epoch=self._plan.epoch,
                        work=work,
                    )
            case CudaStep():
                python_tree = self._need(PythonStep)
                site = PurePosixPath(self._plan.python.site_packages)
                installed = cuda.InstalledPython(site=site, folder=python_tree / site.relative_to("/"))
                parts = {artefact.name: self._store.artefact(artefact.sha256) for artefact in step.artefacts}
                with self._console.step(f"lay out CUDA {step.toolkit.cuda}"):
                    cuda.lay_out(
                        step.toolkit, parts=parts, python=installed, root=work / "tree", runner=self._runner
                    )
            case _:
                assert_never(step)

    def _compile(self, step: ExtensionsStep, tree: Path) -> Path:
        kept = self._engine.shop(self._plan, step, self.root).make()
        extensions.arrange(kept, architectures=step.architectures, tree=tree)
        return tree


def make_root(plan: Plan, trees: Mapping[type, Path]) -> Root:
    """The root that extensions are compiled in."""
    version = plan.cuda.toolkit.cuda if plan.cuda else ""
    return Root(os=trees[OsStep], python=trees[PythonStep], cuda=trees.get(CudaStep), cuda_version=version)
