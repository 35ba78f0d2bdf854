"""The runner `sandbox`: layers from locked artifacts, without a daemon and without root.

Each layer is a future. Independent layers are made at the same time: wheels are installed while the distribution's packages are, and the
Python layer is compressed while the extensions compile.
"""

import functools
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envbuilder.artifacts.sif import SifWriter
from envbuilder.builder.extensions.built_wheels import built_wheels, wheel_commands
from envbuilder.builder.extensions.compile import (
    ExtensionBuilder,
    extension_commands,
    join_extensions,
)
from envbuilder.builder.extensions.compiler_errors import warm_error
from envbuilder.builder.job import (
    BuildJob,
    RootStep,
    lower_steps,
    outside_command,
    places,
    prepare_run,
    progress,
    root_steps,
    run_outside,
    unpack_packages,
    write_runtime_layer,
)
from envbuilder.builder.sandbox import distribution
from envbuilder.builder.sandbox.foreign import emulation, make_tools, missing_tools
from envbuilder.builder.sandbox.large_files import empty_large_files
from envbuilder.builder.sandbox.layer_folders import LayerFolder
from envbuilder.builder.sandbox.root import SandboxRoot, program_command
from envbuilder.builder.slots import Places
from envbuilder.core.cache import link_or_copy, remove_tree
from envbuilder.core.errors import CommandError, ToolError
from envbuilder.core.process import Command
from envbuilder.core.processor import X86_64, own_processor, own_title
from envbuilder.core.system import install_command
from envbuilder.lock.model import Artifact
from envbuilder.plan.model import (
    CondaStep,
    CudaStep,
    ExtensionsStep,
    InterpreterStep,
    OsStep,
    ProgramStep,
    PythonStep,
    RuntimeStep,
    Step,
    WarmStep,
    inputs,
)
from envbuilder.plan.program import Program
from envbuilder.runners.enter_sandbox import trial
from envbuilder.runners.sandbox import take_over
from envbuilder.runners.toolbox import open_sandbox
from envbuilder.sources.fetch import Fetcher

if TYPE_CHECKING:
    from envbuilder.layers.layer import Layer

WORK = Path("WORK")  # stands for the temporary folder of a run
_MINIMAL: Final = "root"  # below it, or the one of a build
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
            if isinstance(step, PythonStep | CudaStep | CondaStep):
                wanted += minimal_python(self.job)
        return tuple(dict.fromkeys((*wanted, *missing_tools(self.job))))

    def commands(self) -> tuple[Command, ...]:
        return tuple(command for step in self.job.missing() for command in self._commands(step))

    def _commands(self, step: Step) -> Iterator[Command]:
        job = self.job

        def folders(steps: Iterable[Step]) -> dict[str, LayerFolder]:
            return {lower.name: LayerFolder(place=WORK / lower.name) for lower in steps}

        def root(program: Program) -> SandboxRoot:
            return make_root(job, folders(job.plan.named(program.root)))

        if isinstance(step, OsStep):
            yield from distribution.commands(step, job, WORK)
        elif isinstance(step, ExtensionsStep):
            yield from extension_commands(job, root=root, work=WORK)
            program = step.made_by(job.plan)
            yield program_command(program, root(program), WORK)
        elif not isinstance(step, RuntimeStep):  # which needs no program
            if isinstance(step, PythonStep):
                yield from wheel_commands(step, job, root=root, work=WORK)
            outside = (part for part in step.made_by(job.plan).parts if part.is_outside)
            yield from (outside_command(part, WORK / part.name) for part in outside)
            yield _program_command(step, job, folders(lower_steps(step, job.plan)), WORK)

    def start(self, pool: Executor, sif: SifWriter) -> "tuple[Future[Layer], ...]":
        make_tools(self.job)
        run = Run(self.job, pool, sif)
        return tuple(run.start(step) for step in self.job.plan.steps)


class Run:
    """One run over one plan: a future for each layer, and for each folder with a layer's files."""

    def __init__(self, job: BuildJob, pool: Executor, sif: SifWriter) -> None:
        self._job, self._pool, self._sif = job, pool, sif
        self._guard = threading.RLock()
        # Each program that makes files and each packing of a layer wants a core, memory and disk. None waits for another while it
        # has its place.
        self._places = Places(places(job.limits))
        self._layers: dict[Step, Future[Layer]] = {}
        self._folders: dict[Step, Future[LayerFolder]] = {}

    def start(self, step: Step) -> "Future[Layer]":
        """Start the step's layer once. Returns its future."""
        with self._guard:
            if step not in self._layers:
                write = functools.partial(self._write_layer, step)
                self._layers[step] = self._pool.submit(self._job.make_layer, step, write)
            return self._layers[step]

    def root(self, program: Program) -> SandboxRoot:
        """Return the root of a program, after its layers are made."""
        return make_root(self._job, self._made(root_steps(self._job.plan.named(program.root))))

    def _write_layer(self, step: Step, out: Path, work: Path) -> None:
        """Write the step's layer into `out`, after the layers that it reads. `work` is a temporary folder."""
        job = self._job
        match step:
            case OsStep():
                distribution.write_layer(step, job, work, out)
            case ExtensionsStep():
                built = ExtensionBuilder(job, self.root).build()
                join_extensions(step, built, job, self.root(step.made_by(job.plan)), work)
                job.pack(step, work / "out", out)
            case RuntimeStep():
                started = {lower.name: self.start(lower) for lower in job.plan.steps[:-1]}
                write_runtime_layer(step, job, lambda name: started[name].result(), out, work)
            case WarmStep():
                try:
                    self._write_by_program(step, out, work)
                except CommandError as failure:
                    raise warm_error(failure.message) from failure
            case _:
                self._write_by_program(step, out, work)

    def _write_by_program(self, step: ProgramStep, out: Path, work: Path) -> None:
        """Write the layer of a step that needs its program alone."""
        job, program, parts = self._job, step.made_by(self._job.plan), dict[str, Path]()
        if isinstance(step, PythonStep):
            wheels = built_wheels(step, job, self.root)
            for part, wheel in zip(program.parts, wheels, strict=True):
                parts[part.name] = work / part.name
                parts[part.name].mkdir()
                link_or_copy(wheel, parts[part.name] / wheel.name)
        folders = self._made(lower_steps(step, job.plan))
        # Compilers wait for the toolkit, which itself waits for the distribution's packages.
        with self._places.take(is_urgent=isinstance(step, CudaStep)):
            for part in filter(lambda part: part.is_outside, program.parts):
                with job.console.step(part.why) as shown:
                    tree = run_outside(part, work / part.name, job.store, job.runner, progress(shown))
                parts[part.name] = tree
            prepare_run(program, work, job.store, parts)
            large = (
                empty_large_files(program, work, step.site_packages) if isinstance(step, PythonStep) else {}
            )
            with job.console.step(program.why) as shown:
                minimal = None
                if OsStep.name not in folders:
                    minimal = job.folders.other(_MINIMAL, functools.partial(unpack_minimal, job))
                command = _program_command(step, job, folders, work, minimal)
                job.runner.run(command, on_line=progress(shown))
                shown.show_note("")
            take_over(work / "out")
            with job.console.step(f"write the {step.name} layer") as shown:
                job.pack(step, work / "out", out, shown, large)
            remove_tree(work / "out")  # before another program begins

    def _made(self, steps: Iterable[RootStep]) -> dict[str, LayerFolder]:
        started = {step.name: self._start_folder(step) for step in steps}
        return {name: folder.result() for name, folder in started.items()}

    def _start_folder(self, step: RootStep) -> "Future[LayerFolder]":
        with self._guard:
            if step not in self._folders:
                layer = self.start(step)  # first, so that it has a thread before who waits for it
                self._folders[step] = self._pool.submit(
                    lambda: self._job.folders.of(layer.result(), self._sif)
                )
            return self._folders[step]


def _program_command(
    step: ProgramStep, job: BuildJob, folders: Mapping[str, LayerFolder], work: Path, minimal: LayerFolder | None = None
) -> Command:  # fmt: skip
    """Return the command that makes the files of a step's layer in `work/out`. `folders` are those of `lower_steps`.

    `minimal` has the files of `unpack_minimal`, where the command is run without those of the distribution's packages.
    """
    if OsStep.name in folders:
        root = make_root(job, folders)
    else:  # byte code is the same on each processor, so the minimal Python of a distribution is a native one
        by = emulation(job) if job.plan.interpreter else None
        root = SandboxRoot(
            os=minimal or LayerFolder(place=work / _MINIMAL), interpreter=folders.get(InterpreterStep.name),
            environment=environment_of(job, folders), emulation=by,
        )  # fmt: skip
    command = program_command(step.made_by(job.plan), root, work)
    return replace(command, chatty=True) if isinstance(step, WarmStep) else command


def environment_of(job: BuildJob, folders: Mapping[str, LayerFolder]) -> tuple[LayerFolder, ...]:
    """Return those of the folders that are parts of the Python environment, bottom first."""
    return tuple(folders[step.name] for step in job.plan.environment if step.name in folders)


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


def make_root(job: BuildJob, folders: Mapping[str, LayerFolder]) -> SandboxRoot:
    """Return the root with the files of these layers, in which programs run and extensions compile."""
    system, cuda = folders[OsStep.name], folders.get(CudaStep.name)
    return SandboxRoot(
        os=system, interpreter=folders.get(InterpreterStep.name), environment=environment_of(job, folders),
        cuda=cuda, cuda_version=job.plan.cuda.toolkit.cuda if job.plan.cuda else "",
        extensions=folders.get(ExtensionsStep.name),
        emulation=emulation(job, system=system, cuda=cuda),
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
