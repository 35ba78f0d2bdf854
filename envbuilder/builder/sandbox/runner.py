"""The runner `sandbox`: layers from locked artifacts, without a daemon and without root.

Each layer is a future. Independent layers are made at the same time: wheels are installed while the distribution's packages are, and the
Python layer is compressed while the extensions compile.
"""

import functools
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.builder.extensions.built_wheels import built_wheels, wheel_commands
from envbuilder.builder.extensions.compile import (
    ExtensionBuilder,
    extension_commands,
    join_extensions,
)
from envbuilder.builder.job import (
    BuildJob,
    KeptStep,
    kept_steps,
    lower_steps,
    prepare_run,
    progress,
    unpack_packages,
    write_runtime_layer,
)
from envbuilder.builder.sandbox import distribution
from envbuilder.builder.sandbox.foreign import emulation, make_tools, missing_tools
from envbuilder.builder.sandbox.root import SandboxRoot, program_command
from envbuilder.core.cache import link_or_copy
from envbuilder.core.errors import CommandError, ToolError
from envbuilder.core.process import Command
from envbuilder.core.processor import X86_64, own_processor, own_title
from envbuilder.core.system import install_command
from envbuilder.layers.layer import Layer, contents_of, extract, load_layer
from envbuilder.lock.model import Artifact
from envbuilder.plan.model import (
    CudaStep,
    ExtensionsStep,
    InterpreterStep,
    OsStep,
    ProgramStep,
    PythonStep,
    RuntimeStep,
    Step,
    inputs,
)
from envbuilder.plan.program import Program
from envbuilder.runners.enter_sandbox import trial
from envbuilder.runners.sandbox import take_over
from envbuilder.runners.toolbox import open_sandbox
from envbuilder.sources.fetch import Fetcher

WORK = Path("WORK")  # stands for the temporary folder of a run
_MINIMAL: Final = "root"  # below it
# The packages that a minimal Python and uv need, of any suite. With only these, the wheels are installed while the os layer is still
# in the making.
_MINIMAL_PYTHON: Final = (
    "libc6", "libgcc-s1", "libexpat1", "zlib1g", "libpython{}-minimal", "libpython{}-stdlib", "python{}-minimal",
    "python3-distutils",  # in suites with a Python before 3.10
)  # fmt: skip
# Its systemd-tmpfiles reads links by readlinkat(2) without a path, at which proot 5.1 aborts. That of 252 does not.
_SYSTEMD: Final = 257


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRunner:
    """Makes the layers of one plan on this machine."""

    job: BuildJob

    def need_tools(self, fetcher: Fetcher) -> None:
        missing = self.job.missing()
        if missing:
            _need_processor(self.job)
            by_proot = open_sandbox(self.job.store, fetcher, self.job.runner, self.job.console.step)
            if by_proot and self.job.plan.os in missing:
                _need_no_systemd(self.job.plan.os)
        if self.job.cross_tools:
            _need_emulation(self.job)

    def artifacts(self) -> tuple[Artifact, ...]:
        wanted: list[Artifact] = []
        for step in self.job.missing():
            wanted += inputs(step)
            if isinstance(step, PythonStep | CudaStep):
                wanted += minimal_python(self.job)
        return tuple(dict.fromkeys((*wanted, *missing_tools(self.job))))

    def commands(self) -> tuple[Command, ...]:
        return tuple(command for step in self.job.missing() for command in self._commands(step))

    def _commands(self, step: Step) -> Iterator[Command]:
        job = self.job

        def trees(steps: Iterable[Step]) -> dict[str, Path]:
            return {lower.name: job.store.tree(job.keys[lower]) for lower in steps}

        def root(program: Program) -> SandboxRoot:
            return make_root(job, trees(job.plan.named(program.root)))

        if isinstance(step, OsStep):
            yield from distribution.commands(step, job, WORK)
        elif isinstance(step, ExtensionsStep):
            yield from extension_commands(job, root=root, work=WORK)
            program = step.made_by(job.plan)
            yield program_command(program, root(program), WORK)
        elif not isinstance(step, RuntimeStep):  # which needs no program
            if isinstance(step, PythonStep):
                yield from wheel_commands(step, job, root=root, work=WORK)
            yield _program_command(step, job, trees(lower_steps(step, job.plan)), WORK)

    def start(self, pool: Executor) -> "tuple[Future[Layer], ...]":
        make_tools(self.job)
        run = Run(self.job, pool)
        return tuple(run.start(step) for step in self.job.plan.steps)


class Run:
    """One run over one plan: a future for each layer, and for each kept tree."""

    def __init__(self, job: BuildJob, pool: Executor) -> None:
        self._job, self._pool = job, pool
        self._guard = threading.RLock()
        # Each program and each packing of a layer wants a core, and some memory. None waits for another while it has its place.
        self._places = threading.BoundedSemaphore(max(2, job.limits.threads))
        self._layers: dict[Step, Future[Layer]] = {}
        self._trees: dict[Step, Future[Path]] = {}

    def start(self, step: Step) -> "Future[Layer]":
        """Start the step's layer once. Returns its future."""
        with self._guard:
            if step not in self._layers:
                write = functools.partial(self._write_layer, step)
                self._layers[step] = self._pool.submit(self._job.make_layer, step, write)
            return self._layers[step]

    def root(self, program: Program) -> SandboxRoot:
        """Return the root of a program, after its trees are made."""
        return make_root(self._job, self._made(kept_steps(self._job.plan.named(program.root))))

    def _start_tree(self, step: KeptStep) -> "Future[Path]":
        with self._guard:
            if step not in self._trees:
                self._trees[step] = self._pool.submit(self._make_tree, step)
            return self._trees[step]

    def _write_layer(self, step: Step, out: Path, work: Path) -> None:
        """Write the step's layer into `out`, after the layers and trees that it reads. `work` is a temporary folder."""
        job, tree = self._job, work / "out"
        match step:
            case OsStep():
                distribution.write_layer(step, job, work, out)
            case InterpreterStep() | PythonStep() | CudaStep():
                tree = self._start_tree(step).result()
                with self._places, job.console.step(f"write the {step.name} layer") as shown:
                    layer = job.pack(step, tree, out, shown)
                with job.store.lock(f"tree-{tree.name}"):
                    job.store.note_contents(tree, contents_of(layer))
            case ExtensionsStep():
                built = ExtensionBuilder(job, self.root).build()
                join_extensions(step, built, job, self.root(step.made_by(job.plan)), work)
                job.pack(step, tree, out)
            case RuntimeStep():
                others = job.plan.steps[:-1]
                layers = {lower.name: self.start(lower).result() for lower in others}
                write_runtime_layer(step, job, layers, out, work)
            case _:  # any other needs its program alone
                self._run_program(step, work)
                job.pack(step, tree, out)

    def _make_tree(self, step: KeptStep) -> Path:
        store, key = self._job.store, self._job.keys[step]
        final = store.tree(key)
        with store.lock(f"tree-{key}"):
            # Without its layer, a tree is what the layer is made from, so every file of it is hashed.
            if store.holds(final, whole=load_layer(store.layer(key)) is None):
                return final
            with store.workspace() as work:
                self._write_tree(step, work)
                take_over(work / "out")
                layer = load_layer(store.layer(key))  # of which the tree was unpacked
                store.commit(work / "out", final, contents_of(layer) if layer else {})
        return final

    def _write_tree(self, step: KeptStep, work: Path) -> None:
        """Write the step's tree into `work/out`: from its layer if there is one, otherwise with the step's program."""
        job = self._job
        layer = load_layer(job.store.layer(job.keys[step]))
        if layer is None and not isinstance(step, OsStep):
            self._run_program(step, work)
        else:
            layer = layer or self.start(step).result()
            with job.console.step(f"unpack the {layer.name} layer"):
                extract(layer, work / "out")

    def _run_program(self, step: ProgramStep, work: Path) -> None:
        """Make the tree of a step's layer in `work/out`, with its program."""
        job, program, parts = self._job, step.made_by(self._job.plan), dict[str, Path]()
        if isinstance(step, PythonStep):
            wheels = built_wheels(step, job, self.root)
            for part, wheel in zip(program.parts, wheels, strict=True):
                parts[part.name] = work / part.name
                parts[part.name].mkdir()
                link_or_copy(wheel, parts[part.name] / wheel.name)
        prepare_run(program, work, job.store, parts)
        trees = self._made(lower_steps(step, job.plan))
        with self._places, job.console.step(program.why) as shown:
            if OsStep.name not in trees:
                unpack_minimal(job, work / _MINIMAL)
            job.runner.run(_program_command(step, job, trees, work), on_line=progress(shown))
            shown.show_note("")

    def _made(self, steps: Iterable[KeptStep]) -> dict[str, Path]:
        started = {step.name: self._start_tree(step) for step in steps}
        return {name: tree.result() for name, tree in started.items()}


def _program_command(step: ProgramStep, job: BuildJob, trees: Mapping[str, Path], work: Path) -> Command:
    """Return the command that makes the tree of a step's layer in `work/out`. `trees` are those of `lower_steps`."""
    if OsStep.name in trees:
        root = make_root(job, trees)
    else:  # byte code is the same on each processor, so the minimal Python of a distribution is a native one
        by = emulation(job) if job.plan.interpreter else None
        root = SandboxRoot(
            os=work / _MINIMAL, interpreter=trees.get(InterpreterStep.name), environment=environment_of(job, trees), emulation=by
        )  # fmt: skip
    return program_command(step.made_by(job.plan), root, work)


def environment_of(job: BuildJob, trees: Mapping[str, Path]) -> tuple[Path, ...]:
    """Return those of the trees that are parts of the Python environment, bottom first."""
    return tuple(trees[step.name] for step in job.plan.environment if step.name in trees)


def minimal_python(job: BuildJob) -> tuple[Artifact, ...]:
    """Return the packages of the root that wheels are installed in: a minimal Python, or what a standalone one needs."""
    native = None if job.plan.interpreter else job.cross_tools
    names = [name.format(job.plan.python.python) for name in _MINIMAL_PYTHON]
    return tuple(deb for deb in (native.debs if native else job.plan.os.artifacts) if deb.name in names)


def unpack_minimal(job: BuildJob, root: Path) -> None:
    """Unpack those packages into a new folder."""
    unpack_packages(minimal_python(job), job.plan, root, job.store, job.runner)
    for name in ("etc", "var", "usr/local", "usr/local/bin"):  # the sandbox mounts them
        (root / name).mkdir(exist_ok=True)


def make_root(job: BuildJob, trees: Mapping[str, Path]) -> SandboxRoot:
    """Return the root with these trees, in which programs run and extensions compile."""
    version = job.plan.cuda.toolkit.cuda if job.plan.cuda else ""
    return SandboxRoot(
        os=trees[OsStep.name], interpreter=trees.get(InterpreterStep.name), environment=environment_of(job, trees),
        cuda=trees.get(CudaStep.name),
        cuda_version=version, emulation=emulation(job, os_tree=trees[OsStep.name], cuda_tree=trees.get(CudaStep.name)),
    )  # fmt: skip


def _need_no_systemd(step: OsStep) -> None:
    for deb in step.artifacts:
        if deb.name == "systemd" and int(re.split(r"\D", deb.version, maxsplit=1)[0] or 0) >= _SYSTEMD:
            raise ToolError(
                f"the package systemd {deb.version} cannot be configured here: this machine refuses namespaces, "
                f"and proot aborts in systemd-tmpfiles of systemd {_SYSTEMD} or newer",
                hint="allow namespaces (`envbuilder doctor --for build` says how), leave out what brings systemd under "
                "`apt`, or build with `--runner buildkit`",
            )


def _need_processor(job: BuildJob) -> None:
    """Raise ToolError on a machine that is neither of the plan's processor nor x86-64, for which the tools are."""
    wanted = job.plan.processor
    if own_processor() not in (wanted, X86_64):
        raise ToolError(
            f"`{job.plan.name}` is for {wanted.title}, and this machine is {own_title()}",
            hint=f"build on a machine that is {X86_64.title}, which builds for every processor",
        )


def _need_emulation(job: BuildJob) -> None:
    """Raise ToolError on a machine that runs no programs of the plan's processor."""
    processor = job.plan.processor
    try:
        job.runner.run(Command(argv=trial(processor.elf), why=f"register an emulator for {processor.title}"))
    except CommandError as error:
        raise ToolError(
            f"this machine runs no programs for {processor.title}, which `{job.plan.name}` is for\n{error.message}",
            hint="build on Linux 6.7 or newer; or let an administrator register qemu on the machine "
            f"({install_command('qemu-user-static')})",
        ) from error
