"""The job of a runner: a plan's layers in the store, each under its own key; the interface of a runner; and what both give to a program.

A program gets the folder of its step: SPEC, and INPUTS as links to files of the cache. `sandbox` runs it on this machine, `buildkit`
in a BuildKit.
"""

import functools
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import zstandard
from packaging.utils import parse_wheel_filename

from envbuilder import __version__, steps
from envbuilder.artifacts.sif import SifWriter
from envbuilder.builder.hashed_blobs import HashedBlobs
from envbuilder.builder.sandbox.layer_folders import LayerFolders
from envbuilder.builder.slots import Slots
from envbuilder.core.cache import (
    Sha256,
    Store,
    link_or_copy,
    remove_tree,
    save_text,
    sha256_file,
    sha256_text,
)
from envbuilder.core.console import Console
from envbuilder.core.console import Step as ShownStep
from envbuilder.core.process import Command, Runner
from envbuilder.core.processor import X86_64, own_processor
from envbuilder.core.system import Limits
from envbuilder.layers.layer import Kind, Layer, Streamed, damage_of, load_layer, read_manifest, write_layer
from envbuilder.layers.writer import BLOCK_SIZE, PARAMETERS
from envbuilder.lock.model import Artifact, Tools
from envbuilder.plan.contents import runtime_program
from envbuilder.plan.documents import write_documents
from envbuilder.plan.model import (
    CondaStep,
    CudaStep,
    ExtensionsStep,
    InterpreterStep,
    OsStep,
    Plan,
    ProgramStep,
    PythonStep,
    RuntimeStep,
    Step,
    WheelStep,
)
from envbuilder.plan.program import INPUTS, OUT, SPEC, Program
from envbuilder.sources.fetch import Fetcher, each

if TYPE_CHECKING:
    from envbuilder.registry.shared_store import SharedStore

# The steps in whose files programs run. Their layers have nearly all of the bytes.
RootStep = OsStep | InterpreterStep | PythonStep | CudaStep | ExtensionsStep


# The packing of layers, which decides their bytes.
PACKING: Final = ", ".join(
    (f"frames of {BLOCK_SIZE}", *(f"{name} {value}" for name, value in PARAMETERS.items()))
)
# The modules that write SBOM, provenance and what a container runtime reads.
_DOCUMENTS: Final = (
    "artifacts/statement.py", "plan/contents.py", "plan/documents.py", "plan/sbom.py",
)  # fmt: skip
_PACKAGE: Final = Path(__file__).parents[1]


def tools() -> tuple[str, ...]:
    """Return the tools whose versions decide the bytes of layers. They are part of each layer's key."""
    return (f"zstd {'.'.join(map(str, zstandard.ZSTD_VERSION))}", f"uv {metadata.version('uv')}")


def ours() -> str:
    """Return the part of envbuilder that decides the runtime layer: its version, and what writes the documents."""
    texts = ((_PACKAGE / name).read_text(encoding="utf-8") for name in _DOCUMENTS)
    return f"envbuilder {__version__}, documents {sha256_text(''.join(texts))}"


def layer_keys(plan: Plan) -> dict[Step, Sha256]:
    """Return the key of each step's layer and tree in the store, in the order of the plan. Every runner makes the same layers."""
    every = (*tools(), PACKING)
    return {
        step: plan.step_key(step, " ".join((*every, ours()) if isinstance(step, RuntimeStep) else every))
        for step in plan.steps
    }


def places(limits: Limits) -> int:
    """Return how many programs that make files, and packings of layers, run at once."""
    return max(2, limits.threads)


def record_key(plan: Plan) -> str:
    """Return the key of a build record: the build key, and the tools that write layers and documents."""
    return " ".join((plan.key, *tools(), PACKING, ours()))


def lower_steps(step: ProgramStep, plan: Plan) -> tuple[RootStep, ...]:
    """Return the steps whose files are the root of a step's program in the sandbox.

    To unpack wheels, a minimal Python stands in for the distribution's packages, so that both are installed at the same time.
    """
    names = set(step.made_by(plan).root)
    reads_wheels = isinstance(step, PythonStep) or all(package.kind == "wheel" for package in step.artifacts)
    # The Python among conda's packages runs, and that of another processor only in the emulated root.
    if isinstance(step, CondaStep):
        reads_wheels = not step.reads and plan.processor is X86_64
    if isinstance(step, PythonStep | CudaStep | CondaStep) and reads_wheels and not plan.os.base:
        names.remove(OsStep.name)
    return root_steps(plan.named(names))


def root_steps(steps: Iterable[Step]) -> tuple[RootStep, ...]:
    """Return those of the steps in whose files programs run."""
    return tuple(step for step in steps if isinstance(step, RootStep))


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStores:
    """The repositories in which machines share layers, and compiled extensions with built wheels."""

    layers: "SharedStore | None" = None
    extensions: "SharedStore | None" = None


NO_STORES: Final = SharedStores()


@dataclass(frozen=True, kw_only=True)  # without slots, which leave no room for a cached property
class BuildJob:
    """A plan, and the context of its build."""

    plan: Plan
    store: Store
    runner: Runner
    console: Console
    limits: Limits
    shared: SharedStores = NO_STORES
    # The recipe's file on this machine. Its build directories are its own: code of one recipe could leave an object for another.
    origin: str = ""

    @property
    def cross_tools(self) -> Tools | None:
        """Return the tools that build for another processor, None on a machine of the plan's own: its programs give the same bytes."""
        return None if own_processor() is self.plan.processor else self.plan.tools

    @functools.cached_property
    def keys(self) -> dict[Step, Sha256]:
        return layer_keys(self.plan)

    @functools.cached_property
    def slots(self) -> Slots:
        return Slots(self.limits)

    @functools.cached_property
    def blobs(self) -> HashedBlobs:
        return HashedBlobs(self.store)

    @functools.cached_property
    def folders(self) -> LayerFolders:
        """The files of layers for programs, until it is closed."""
        return LayerFolders(self.store, self.runner, self.console)

    def missing(self) -> tuple[Step, ...]:
        """Return the steps whose layers are not in the store. Damaged ones are named."""
        absent = [step for step, key in self.keys.items() if load_layer(self.store.layer(key)) is None]
        for folder in (self.store.layer(self.keys[step]) for step in absent):
            if why := damage_of(folder):
                self.store.report(folder, why)
        return tuple(absent)

    def layers(self) -> tuple[Layer, ...]:
        """Return the layers that the store has."""
        layers = (load_layer(self.store.layer(key)) for key in self.keys.values())
        return tuple(layer for layer in layers if layer)

    def make_layer(self, step: Step, write: Callable[[Path, Path], object]) -> Layer:
        """Return the step's layer. `write` makes a missing one in its first folder. Its second folder is temporary."""
        key = self.keys[step]
        folder = self.store.layer(key)
        if layer := load_layer(folder):
            return layer
        with self.store.lock(f"layer-{key}"):
            if layer := load_layer(folder):
                return layer
            with self.store.renewed(folder, {}) as out:  # a layer names the digests of its own files
                write(out, out.parent)
        layer = load_layer(folder)
        assert layer is not None, f"{folder} was just written"
        if isinstance(step, WheelStep):
            for wheel in filter(_is_used_up, step.artifacts):
                self.store.artifact(wheel.sha256).unlink(missing_ok=True)
        return layer

    def fetch_layers(self) -> None:
        """Take missing layers from the store that machines share."""

        def work(step: Step, _: threading.Event) -> None:
            key = self.keys[step]
            with self.store.lock(f"layer-{key}"):
                if shared and load_layer(self.store.layer(key)) is None:
                    shared.fetch(key, self.store.layer(key), f"the {step.name} layer", packed=False)

        if shared := self.shared.layers:
            each(self.missing(), work)

    def fetch_extension(self, folder: Path, name: str) -> bool:
        """Take a compiled extension or a built wheel from the store that machines share. Hold its lock."""
        shared = self.shared.extensions
        return shared is not None and shared.fetch(Sha256(folder.name), folder, f"`{name}`", packed=True)

    def pack(
        self, step: Step, tree: Path, out: Path, shown: ShownStep | None = None, contents: Mapping[str, Streamed] | None = None
    ) -> Layer:  # fmt: skip
        """Write the step's layer from a tree, and contents of files that it has empty, into the folder `out`."""
        return write_layer(
            name=step.name, tree=tree, folder=out, epoch=self.plan.epoch, threads=self.limits.threads,
            omit=self.shared_folders(step), step=shown, contents=contents,
        )  # fmt: skip

    def shared_folders(self, step: Step) -> tuple[str, ...]:
        """Return the folders of a step's layer that the os layer has, and not as other layers have folders."""
        shared = set(self.plan.shared_folders(step))
        system = (
            load_layer(self.store.layer(self.keys[self.plan.os])) if isinstance(step, RuntimeStep) else None
        )
        if system:  # an image may lack /etc/profile.d
            shared |= {entry.path for entry in read_manifest(system) if entry.kind is Kind.DIRECTORY}
        return tuple(shared)

    def discard_damaged(self) -> tuple[str, ...]:
        """Remove layers whose bytes have changed. Returns their names."""
        names: list[str] = []
        for key in self.keys.values():
            with self.store.lock(f"layer-{key}"):
                layer = load_layer(self.store.layer(key))
                if layer is None or sha256_file(layer.blob) == layer.digest:
                    continue
                names.append(layer.name)
                self.store.report(layer.folder, f"`{layer.blob.name}` differs")
                remove_tree(layer.folder)
        return tuple(names)


class StepRunner(Protocol):
    """Makes the layers of a job's plan."""

    @property
    def job(self) -> BuildJob: ...

    def need_tools(self, fetcher: Fetcher) -> None:
        """Make the programs ready that the runner starts. Raises ToolError if one is missing, too old or unusable, FetchError."""
        ...

    def artifacts(self) -> tuple[Artifact, ...]:
        """Return the inputs of the layers that the store lacks. Raises BuildError for a plan that the runner cannot build."""
        ...

    def start(self, pool: Executor, sif: SifWriter) -> "tuple[Future[Layer], ...]":
        """Start every layer of the plan. `pool` needs a thread for each layer and each folder of one. Programs may read from `sif`."""
        ...

    def commands(self) -> tuple[Command, ...]:
        """Return the commands of the layers that the store lacks. `WORK` stands for the temporary folder of a run."""
        ...


def _is_used_up(wheel: Artifact) -> bool:
    """Whether a wheel goes once its layer is there: a large one for one Python, out of which no other layer is made."""
    if wheel.kind != "wheel" or wheel.size < _KEPT_TWICE:
        return False
    return all(tag.abi.startswith(tag.interpreter) for tag in parse_wheel_filename(wheel.filename)[3])


# Bytes of a wheel from which space is worth more than another download, after an update of the program that installs wheels.
_KEPT_TWICE: Final = 250 * 10**6
_PROGRESS: Final = re.compile(r"(\d{1,9})/(\d{1,9}) (.{1,80})")


def write_step(program: Program, folder: Path, store: Store, parts: Mapping[str, Path] | None = None) -> None:
    """Write SPEC and INPUTS of a program. `parts`: the name of each part that has run → its OUT.

    The store must have the inputs.
    """
    inputs = folder / Path(INPUTS).name
    inputs.mkdir(parents=True)
    save_text(folder / Path(SPEC).name, program.spec)
    for path, text in program.texts:
        save_text(inputs / path, text)
    for path, artifact in program.inputs:
        target = inputs / path
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(store.artifact(artifact.sha256), target)
    for name, out in (parts or {}).items():
        out.rename(inputs / name)


def prepare_run(program: Program, work: Path, store: Store, parts: Mapping[str, Path] | None = None) -> Path:
    """Write the folder of a program's step into `work`, and make its OUT beside it. Returns OUT."""
    write_step(program, work / Path(SPEC).parent.name, store, parts)
    out = work / Path(OUT).name
    out.mkdir()
    return out


def outside_command(program: Program, work: Path) -> Command:
    """Return the command that runs a program of the interpreter `OUTSIDE` in `work`, which `prepare_run` fills."""
    step = work / Path(SPEC).parent.name
    words = (
        steps.FOLDER / program.files[0], step / Path(SPEC).name, step / Path(INPUTS).name, work / Path(OUT).name
    )  # fmt: skip
    argv = (sys.executable, "-I", *map(str, words))
    return Command(argv=argv, env=tuple(steps.ENVIRONMENT.items()), why=program.why, bare=True, merged=True)


def run_outside(
    program: Program, work: Path, store: Store, runner: Runner, on_line: Callable[[str], None] | None = None
) -> Path:
    """Run a program of the interpreter `OUTSIDE` in the new folder `work`. Returns its OUT."""
    out = prepare_run(program, work, store)
    runner.run(outside_command(program, work), on_line=on_line)
    return out


def unpack_packages(debs: Sequence[Artifact], plan: Plan, root: Path, store: Store, runner: Runner) -> None:
    """Unpack packages into the new folder `root`, and configure none."""
    (program,) = OsStep(suite="", gcc=plan.os.gcc, artifacts=tuple(debs)).made_by(plan).parts
    work = root.with_name(f"{root.name}-packages")
    (run_outside(program, work, store, runner) / "root").rename(root)
    remove_tree(work)


def progress(shown: ShownStep) -> Callable[[str], None]:
    """Return a reader of a program's lines that shows its progress."""
    last = 0

    def read(line: str) -> None:
        nonlocal last
        if matched := _PROGRESS.fullmatch(line):
            done, total = int(matched[1]), int(matched[2])
            if shown.total != total:
                shown.expect(total, items=True)
                last = 0
            shown.advance(done - last)
            last = done
            shown.show_note(matched[3])

    return read


def write_runtime_layer(
    step: RuntimeStep, job: BuildJob, made: Callable[[str], Layer], out: Path, work: Path
) -> None:
    """Write the runtime layer. `made` waits for the layer of another step."""
    documents = write_documents(job.plan, made, tools())
    program = runtime_program(step, documents)
    job.pack(step, run_outside(program, work, job.store, job.runner), out)
