"""The plan: the ordered steps of a build. It does not depend on the machine that builds.

The build key is the sha256 of the text `Plan.canonical()`. An image's label and its `plan.txt` hold key and text without the
last step, the runtime layer, which they are part of. Each step also has its own key, made from its lines and from those of the
steps that it reads. So two recipes share every layer with the same inputs.

A step has four facts. `name` is also the name of its layer. `lines()` holds everything that decides the layer's bytes. `reads` names the
lower steps that decide them too (None: all). `shares` are the deepest folders of its layer that the os layer has as well. Other layers
have a folder alike.
"""

import shlex
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import PurePosixPath
from typing import Any, ClassVar, Final

from envbuilder.compat.tables.toolkit import Toolkit
from envbuilder.core.cache import Sha256, sha256_text
from envbuilder.core.errors import BuildError
from envbuilder.core.plain import counted
from envbuilder.core.processor import NEWEST_MANYLINUX, X86_64, Processor, processor_of
from envbuilder.lock.model import (
    Artifact,
    LockedBase,
    LockedBuild,
    LockedExtension,
    LockedKernel,
    LockedWarm,
    Tools,
    blobs,
)
from envbuilder.plan.extension import PREFIX, PYTHON, Ground, extension_lines, join_program, root_of
from envbuilder.plan.program import BASE, OUTSIDE, PACKAGES, PROGRAMS, Program, spec_text
from envbuilder.recipe.channels import CONDA_PREFIX

ENV_PREFIX: Final = PREFIX
STANDALONE_PREFIX: Final = "/opt/python"
OWN: Final = "/opt/envbuilder"
KERNELS: Final = f"{OWN}/kernels"  # of the hub
LIB: Final = f"{OWN}/lib"
# In whose files the programs of `warm` run.
WARM_ROOT: Final = ("os", "interpreter", "python", PACKAGES, "cuda", "extensions")
SITE_PACKAGES: Final = f"{ENV_PREFIX}/lib/python{{python}}/site-packages"
SEEN_BY_CONDA: Final = (
    "environment.pth"  # in the site-packages of conda's Python: by it, that sees those of the environment
)
# Container runtimes read these from the image's config and give GPUs and the driver's libraries. docs/evidence/gpus.md says which do.
GPUS: Final = "NVIDIA_VISIBLE_DEVICES"
DRIVER_PARTS: Final = "NVIDIA_DRIVER_CAPABILITIES"
# Labels of image and SIF: what they are of. `run/named.py` compares them before anything starts.
TITLE: Final = "org.opencontainers.image.title"
PLAN_LABEL: Final = "io.envbuilder.plan"
RECIPE_LABEL: Final = "io.envbuilder.recipe"
LOCK_LABEL: Final = "io.envbuilder.lock"
# A wheel of this many bytes is a layer of its own, and at most so many are: Docker mounts 127 layers.
HEAVY: Final = 64 << 20
MOST_HEAVY: Final = 24
STRIP: Final = "-Wl,--build-id=none,--strip-all"  # symbol tables hold nvcc's temporary file names
NO_COMMENT: Final = "no_comment.ld"  # of `envbuilder/steps`
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class OsStep:
    """The distribution's packages, or an image and the packages that it lacks.

    The pinned gcc is also installed as `gcc`, `cc` and so on.
    """

    name: ClassVar = "os"
    reads: ClassVar[tuple[str, ...] | None] = ()
    shares: ClassVar[tuple[str, ...]] = ()
    suite: str
    gcc: str
    artifacts: tuple[Artifact, ...]
    base: LockedBase | None = None  # the image; `suite` is empty then
    driver: str = ""  # the path of the gcc that an image has or gets

    @property
    def image(self) -> str:
        """Return the image as repository@sha256:…, "" for a suite."""
        return self.base.pinned if self.base else ""

    def made_by(self, plan: "Plan") -> Program:
        """Return the program that configures the packages in a root that a part of it has unpacked, or in the image."""
        spec = {
            "architecture": plan.processor.debian, "triplet": plan.processor.gnu, "gcc": self.gcc,
            "tools": str(PurePosixPath(self.driver).parent) if self.base else "",
        }  # fmt: skip
        unpacking = Program(
            name="unpack", files=("distribution.py",), interpreter=OUTSIDE, root=(), spec=spec_text(spec),
            inputs=tuple((f"debs/{deb.name}_{deb.version.replace(':', '%3a')}.deb", deb) for deb in self.artifacts),
            why="unpack the distribution's packages",
        )  # fmt: skip
        return Program(
            name=self.name, files=("configure_distribution.sh",), interpreter="/bin/sh", root=(), spec=spec_text({}),
            parts=(unpacking,), changes=BASE if self.base else f"{unpacking.name}/root",
            why="install the distribution's packages",
        )  # fmt: skip

    def lines(self) -> tuple[str, ...]:
        return (f"step os {f'on {self.image}' if self.base else self.suite}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpreterStep:
    """The standalone Python at /opt/python, of a recipe whose suite or image has another one."""

    name: ClassVar = "interpreter"
    reads: ClassVar[tuple[str, ...] | None] = ()  # its files depend on the archive alone
    shares: ClassVar[tuple[str, ...]] = ("/opt",)
    python: str  # 3.10
    archive: Artifact

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        return (self.archive,)

    @property
    def program(self) -> str:
        return f"{STANDALONE_PREFIX}/bin/python{self.python}"

    def made_by(self, plan: "Plan") -> Program:  # noqa: ARG002 - as other steps
        return Program(
            name=self.name, files=("interpreter.sh", "interpreter.py", "byte_code.py"), interpreter="/bin/sh", root=(OsStep.name,),
            spec=spec_text({}), inputs=(("python.tar.gz", self.archive),), why=f"install Python {self.archive.version}",
        )  # fmt: skip

    def lines(self) -> tuple[str, ...]:
        return (f"step interpreter {self.python}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonStep:
    """The Python environment at /opt/env."""

    name: ClassVar = "python"
    shares: ClassVar[tuple[str, ...]] = ("/opt",)
    python: str  # 3.11
    artifacts: tuple[Artifact, ...]  # what is installed: wheels, and sdists whose wheels are built
    # The path of a standalone or an image's Python; "" for the distribution's usual one.
    interpreter: str = ""
    builds: tuple[LockedBuild, ...] = ()

    @property
    def reads(self) -> tuple[str, ...] | None:
        """Return the lower steps that decide the layer.

        The os layer is read by builds alone: byte code and links depend on the minor version. So recipes with the same wheels share
        this layer.
        """
        return (OsStep.name, InterpreterStep.name) if self.sdists else ()

    @property
    def sdists(self) -> tuple[Artifact, ...]:
        return tuple(package for package in self.artifacts if package.kind == "sdist")

    def tools(self, sdist: Artifact) -> tuple[Artifact, ...]:
        """Return the wheels that the build of an sdist needs."""
        return next((build.wheels for build in self.builds if build.name == sdist.name), ())

    @property
    def inputs(self) -> tuple[Artifact, ...]:
        return (*self.artifacts, *(tool for sdist in self.sdists for tool in self.tools(sdist)))

    @property
    def site_packages(self) -> str:
        return SITE_PACKAGES.format(python=self.python)

    @property
    def program(self) -> str:
        """Return the path of the Python that the environment uses."""
        return self.interpreter or f"/usr/bin/python{self.python}"

    def made_by(self, plan: "Plan") -> Program:
        wheels = [package for package in self.artifacts if package.kind == "wheel"]
        pins = [f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}" for wheel in wheels]
        spec = {
            "requirements": pins,
            "platform": plan.processor.uv_platform(NEWEST_MANYLINUX) if plan.tools else "",
            "on_top": isinstance(self, WheelStep),
        }
        return Program(
            name=self.name, files=("wheels.py", "byte_code.py"), interpreter=self.program, root=(OsStep.name, InterpreterStep.name),
            spec=spec_text(spec), inputs=tuple((wheel.filename, wheel) for wheel in wheels),
            parts=tuple(self._wheel_of(sdist, plan) for sdist in self.sdists),
            why=f"install {counted(len(self.artifacts), 'Python package')}",
        )  # fmt: skip

    def _wheel_of(self, sdist: Artifact, plan: "Plan") -> Program:
        """Return the program that builds the wheel of a source distribution."""
        files: tuple[str, ...] = ("build_sdist.py", "extension.py", "gpu_code.py", "sitecustomize.py")
        flags = STRIP
        if plan.processor is not X86_64:
            files, flags = (*files, NO_COMMENT), f"{STRIP},-T,{PROGRAMS}/{NO_COMMENT}"
        tools = ((f"tools/{tool.filename}", tool) for tool in self.tools(sdist))
        return Program(
            name=f"wheel-{sdist.name.lower()}", files=files, interpreter=self.program, root=(OsStep.name, InterpreterStep.name),
            spec=spec_text({"sdist": sdist.filename, "ldflags": flags}), inputs=((sdist.filename, sdist), *tools),
            why=f"build `{sdist.name} {sdist.version}` from its source distribution",
        )  # fmt: skip

    def lines(self) -> tuple[str, ...]:
        by = f" by {self.interpreter}" if self.interpreter else ""
        return (f"step {self.name} {self.python}{by}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelStep(PythonStep):
    """A heavy wheel, NVIDIA's small ones, or the packages that torch does not need, in the folders of the Python environment.

    The layer depends on them and Python's minor version. Of two wheels with one path, the one of the upper layer has it.
    """

    name: str  # type: ignore[misc]  # there are several
    is_torchs: bool  # torch, or what it needs

    def lines(self) -> tuple[str, ...]:
        return (f"step {self.name} {self.python}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaStep:
    """The CUDA toolkit at /usr/local/cuda. Headers and libraries of the wheels are linked."""

    name: ClassVar = "cuda"
    shares: ClassVar[tuple[str, ...]] = ("/usr/local",)
    toolkit: Toolkit
    artifacts: tuple[Artifact, ...]
    # The steps with the wheels of torch and NVIDIA. Other packages are not there when the program runs, so they decide no link.
    reads: tuple[str, ...] = (PythonStep.name,)

    def made_by(self, plan: "Plan") -> Program:
        return Program(
            name=self.name, files=("toolkit.py",), interpreter=plan.python.program,
            root=(OsStep.name, InterpreterStep.name, *self.reads),
            spec=spec_text(self.rules() | {"site": plan.python.site_packages, "machine": plan.processor.elf}),
            inputs=tuple((part.filename, part) for part in self.artifacts), why=f"install CUDA {self.toolkit.cuda}",
        )  # fmt: skip

    def rules(self) -> dict[str, Any]:
        """Return the files to take from each package, and the links. Raises BuildError if the lock lacks a package."""
        toolkit, files = self.toolkit, {package.name: package.filename for package in self.artifacts}
        for part in toolkit.parts:
            if part.name not in files:
                raise BuildError(f"CUDA {toolkit.cuda} needs the package `{part.name}`, which the lock lacks")
        return {
            "cuda": toolkit.cuda,
            "parts": [
                {"name": part.name, "file": files[part.name], "take": [asdict(take) for take in part.take]}
                for part in toolkit.parts
            ],
            "header_wheels": toolkit.header_wheels,
            "links": toolkit.links,
            "files": toolkit.files,
        }

    def lines(self) -> tuple[str, ...]:
        return (f"step cuda {self.toolkit.cuda}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaStep:
    """Packages of conda channels at /opt/conda-env."""

    name: ClassVar = "conda"
    shares: ClassVar[tuple[str, ...]] = ("/opt",)
    artifacts: tuple[Artifact, ...]
    allow_scripts: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...] | None:
        """Return the lower steps that decide the layer: packages' scripts alone read them."""
        return (OsStep.name, InterpreterStep.name) if self.allow_scripts else ()

    def made_by(self, plan: "Plan") -> Program:
        """Return the program that fills the prefix, out of the tars that a part of it has unpacked."""
        names = [package.filename for package in self.artifacts]
        unpacking = Program(
            name="conda-tars", files=("conda_tars.py", "distribution.py"), interpreter=OUTSIDE, root=(), spec=spec_text({}),
            inputs=tuple(zip(names, self.artifacts, strict=True)), why="unpack the packages of conda",
        )  # fmt: skip
        spec = {"prefix": CONDA_PREFIX, "packages": names, "allow_scripts": sorted(set(self.allow_scripts))}
        return Program(
            name=self.name, files=("conda_prefix.py", "byte_code.py"), interpreter=plan.python.program,
            root=(OsStep.name, InterpreterStep.name), spec=spec_text(spec), parts=(unpacking,),
            why=f"install {len(names)} packages of conda",
        )  # fmt: skip

    def lines(self) -> tuple[str, ...]:
        return ("step conda",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionsStep:
    """The recipe's extensions, compiled for exactly `architectures`."""

    name: ClassVar = "extensions"
    shares: ClassVar[tuple[str, ...]] = ("/opt",)
    architectures: tuple[str, ...]  # compute capabilities, e.g. 8.0; empty without CUDA
    extensions: tuple[LockedExtension, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the names of the steps that decide what is compiled, not those of packages that none of the extensions sees."""
        return tuple(dict.fromkeys(name for extension in self.extensions for name in root_of(extension)))

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """Return the source distributions. Repositories are not among them, because git fetches those."""
        archives = (extension.archive for extension in self.extensions)
        return tuple(archive for archive in archives if archive is not None and archive.kind == "sdist")

    def made_by(self, plan: "Plan") -> Program:
        return join_program(plan.ground, self.name, self.extensions)

    def lines(self) -> tuple[str, ...]:
        head = f"step extensions for {' '.join(self.architectures) or 'cpu'}"
        return (head, *(line for extension in self.extensions for line in extension_lines(extension)))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelsStep:
    """Kernels of the Hugging Face hub, where `envbuilder_caches` names them to the package `kernels`."""

    name: ClassVar = "kernels"
    reads: ClassVar[tuple[str, ...] | None] = ()
    shares: ClassVar[tuple[str, ...]] = ("/opt",)
    kernels: tuple[LockedKernel, ...]

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        return tuple(file for kernel in self.kernels for file in kernel.files)

    def made_by(self, plan: "Plan") -> Program:
        places = tuple(
            (f"{KERNELS[1:]}/{kernel.name}/{file.path.partition(f'/resolve/{kernel.revision}/')[2]}", file)
            for kernel in self.kernels
            for file in kernel.files
        )
        return Program(
            name=self.name, files=("write_files.py",), interpreter=plan.python.program, root=plan.python_root,
            spec=spec_text({"links": {}, "folders": ()}), inputs=places, why="write the kernels of the hub",
        )  # fmt: skip

    def lines(self) -> tuple[str, ...]:
        return (
            "step kernels",
            *(f"  kernel {kernel.name} {kernel.revision} {kernel.variant}" for kernel in self.kernels),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStep:
    """The Triton kernels that the programs of `warm` launch, compiled for `architectures`, and what earlier jobs compiled.

    A program may read any package, so all that it can read is in the key.
    """

    name: ClassVar = "warm"
    reads: ClassVar[tuple[str, ...] | None] = WARM_ROOT
    shares: ClassVar[tuple[str, ...]] = ("/opt",)
    artifacts: ClassVar[tuple[Artifact, ...]] = ()
    architectures: tuple[str, ...]
    warm: LockedWarm
    env: tuple[tuple[str, str], ...]  # of the image: some variables decide what Triton compiles

    def made_by(self, plan: "Plan") -> Program:
        spec = {
            "run": self.warm.run, "gpus": self.architectures, "env": self.env, "epoch": plan.epoch, "caches": self.warm.caches,
        }  # fmt: skip
        return Program(
            name=self.name, files=("warm.py", "warm_customize.py", "sitecustomize.py"), interpreter=PYTHON, root=WARM_ROOT,
            spec=spec_text(spec), inputs=tuple((f"files/{file.path}", file) for file in self.warm.files),
            why="run the programs of `warm`" if self.warm.run else "take what jobs compiled",
        )  # fmt: skip

    def lines(self) -> tuple[str, ...]:
        return ("step warm" + (f" for {' '.join(self.architectures)}" if self.warm.run else ""),)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartStep:
    """The modules that each Python of the environment runs first, byte-compiled."""

    name: ClassVar = "start"
    reads: ClassVar[tuple[str, ...] | None] = ()  # as the Python layer
    shares: ClassVar[tuple[str, ...]] = ("/opt",)
    artifacts: ClassVar[tuple[Artifact, ...]] = ()
    python: str
    files: tuple[tuple[str, str], ...]  # path below / → text

    def made_by(self, plan: "Plan") -> Program:
        return Program(
            name=self.name, files=("write_files.py",), interpreter=plan.python.program, root=plan.python_root,
            spec=spec_text({"links": {}, "folders": ()}), texts=self.files, why="write the modules that each Python runs first",
        )  # fmt: skip

    def lines(self) -> tuple[str, ...]:
        return (f"step start {self.python}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeStep:
    """Plain files: those that a container runtime reads at start, and those that describe the image."""

    name: ClassVar = "runtime"
    reads: ClassVar[tuple[str, ...] | None] = None  # its SBOM lists the packages of all other layers
    shares: ClassVar[tuple[str, ...]] = ("/etc", "/opt", "/.singularity.d")
    artifacts: ClassVar[tuple[Artifact, ...]] = ()
    env: tuple[tuple[str, str], ...]
    labels: tuple[tuple[str, str], ...]  # of the image and of the SIF
    run: tuple[str, ...] = ()  # begins the command line of `docker run` and `apptainer run`
    files: tuple[tuple[str, str], ...]  # path below / → text

    def lines(self) -> tuple[str, ...]:
        return (
            "step runtime",
            *(f"  env {name}={value}" for name, value in self.env),
            *(f"  label {name}={value}" for name, value in self.labels),
            *([f"  run {shlex.join(self.run)}"] if self.run else []),
            *(f"  file {path} sha256:{sha256_text(text)}" for path, text in self.files),
        )


ProgramStep = (
    OsStep
    | InterpreterStep
    | PythonStep
    | CudaStep
    | CondaStep
    | ExtensionsStep
    | KernelsStep
    | WarmStep
    | StartStep
)
"""Steps whose layers are made by a program of `envbuilder/steps`, the same one by every runner."""
Step = ProgramStep | RuntimeStep


def inputs(step: Step) -> tuple[Artifact, ...]:
    """Return every file that the step's layer is made from, the blobs of a base image among them."""
    if isinstance(step, OsStep) and step.base:
        return (*step.artifacts, *blobs(step.base))
    return step.inputs if isinstance(step, PythonStep) else step.artifacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps of one build, in the order of its layers."""

    name: str
    platform: str
    epoch: int
    steps: tuple[Step, ...]
    tools: Tools | None = None  # with which another processor's machine builds; None for x86-64

    @property
    def processor(self) -> Processor:
        return processor_of(self.platform) or X86_64

    def canonical(self) -> str:
        head = ("envbuilder plan", f"platform {self.platform}", f"epoch {self.epoch}")
        return "\n".join([*head, *(line for step in self.steps for line in self._lines(step))]) + "\n"

    def _lines(self, step: Step) -> tuple[str, ...]:
        """Return the step's lines, and those of the program and the tools that decide its bytes."""
        program = step.made_by(self).lines() if isinstance(step, ProgramStep) else ()
        tools = (f"  tool{_artifact_line(tool)[1:]}" for tool in self.tools_of(step))
        return (*step.lines(), *program, *tools)

    def tools_of(self, step: Step) -> tuple[Artifact, ...]:
        """Return the tools that decide a step's bytes. Byte code, links and plain files are the same whatever wrote them."""
        if self.tools is None:
            return ()
        if isinstance(step, OsStep):
            return (self.tools.emulator,)
        is_compiled = isinstance(step, ExtensionsStep) or (isinstance(step, PythonStep) and step.sdists)
        return self.tools.artifacts if is_compiled else ()

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """Return every file that is fetched."""
        tools = self.tools.artifacts if self.tools else ()
        return tuple(dict.fromkeys((*(file for step in self.steps for file in inputs(step)), *tools)))

    @property
    def key(self) -> Sha256:
        """Return the build key."""
        return sha256_text(self.canonical())

    def step_key(self, step: Step, tools: str) -> Sha256:
        """Return the key of one layer: of its lines, those of the steps that it reads, the tools that write it, and what it leaves out."""
        below = self.steps[: self.steps.index(step)]
        reads = below if step.reads is None else [lower for lower in self.named(step.reads) if lower in below]
        lines = [line for decisive in (*reads, step) for line in self._lines(decisive)]
        without = sorted(self.shared_folders(step))
        return sha256_text(
            "\n".join([f"layer {self.platform} {self.epoch} {tools} without {without}", *lines])
        )

    def named(self, names: Collection[str]) -> tuple[Step, ...]:
        """Return the steps with these names. Each layer of wheels belongs to the Python step, or to `PACKAGES`."""

        def is_named(step: Step) -> bool:
            belongs_to = isinstance(step, WheelStep) and (PythonStep.name if step.is_torchs else PACKAGES)
            return step.name in names or belongs_to in names

        return tuple(filter(is_named, self.steps))

    def part_key(self, part: Program, tools: str) -> Sha256:
        """Return the key of what a part of a step's program makes. No step decides it but those that it runs on."""
        below = [line for step in self.named(part.root) for line in self._lines(step)]
        cross = [_artifact_line(tool) for tool in (self.tools.artifacts if self.tools else ())]
        head = f"part {self.platform} {part.interpreter} {self.python.python} {tools}"
        return sha256_text("\n".join([head, *below, *part.lines(), *cross]))

    def shared_folders(self, step: Step) -> tuple[str, ...]:
        """Return the folders of a step's layer that the os layer has too, as a tar spells them."""
        shared = map(PurePosixPath, step.shares)
        return tuple({str(folder)[1:] for path in shared for folder in (path, *path.parents)} - {""})

    @property
    def python_root(self) -> tuple[str, ...]:
        """Return the names of the steps with which the environment's Python runs."""
        return tuple(step.name for step in self.steps if isinstance(step, OsStep | InterpreterStep))

    @property
    def programs(self) -> tuple[Program, ...]:
        """Return the program of each step, in the order of the layers, without that of the runtime layer."""

        def present(program: Program) -> Program:
            root = tuple(step.name for step in self.named(program.root))
            return replace(program, root=root, parts=tuple(map(present, program.parts)))

        return tuple(present(step.made_by(self)) for step in self.steps if isinstance(step, ProgramStep))

    @property
    def extensions(self) -> tuple[LockedExtension, ...]:
        return next((step.extensions for step in self.steps if isinstance(step, ExtensionsStep)), ())

    @property
    def warm(self) -> LockedWarm | None:
        return next((step.warm for step in self.steps if isinstance(step, WarmStep)), None)

    @property
    def ground(self) -> Ground:
        """Return what its extensions are compiled in."""
        steps = (step for step in self.steps if isinstance(step, ExtensionsStep))
        python, cuda = self.python, self.cuda
        return Ground(
            platform=self.platform, epoch=self.epoch, gpus=next((step.architectures for step in steps), ()),
            python=python.python, program=python.program, standalone=self.interpreter.artifacts if self.interpreter else (),
            wheels=self.wheels, builds=tuple(file for step in self.environment for file in step.inputs), debs=self.os.artifacts,
            compiler=f"{self.os.gcc} on {self.os.image}" if self.os.image else self.os.gcc,
            toolkit=f"{cuda.toolkit.cuda} {sha256_text(repr(cuda.toolkit))}" if cuda else "none",
            parts=cuda.artifacts if cuda else (), tools=self.tools.artifacts if self.tools else None,
        )  # fmt: skip

    @property
    def os(self) -> OsStep:
        return next(step for step in self.steps if isinstance(step, OsStep))

    @property
    def interpreter(self) -> InterpreterStep | None:
        return next((step for step in self.steps if isinstance(step, InterpreterStep)), None)

    @property
    def python(self) -> PythonStep:
        return next(step for step in self.environment if step.name == PythonStep.name)

    @property
    def environment(self) -> tuple[PythonStep, ...]:
        """Return the steps of the Python environment."""
        return tuple(step for step in self.steps if isinstance(step, PythonStep))

    @property
    def wheels(self) -> tuple[Artifact, ...]:
        """Return all packages of the Python environment."""
        return tuple(package for step in self.environment for package in step.artifacts)

    @property
    def cuda(self) -> CudaStep | None:
        return next((step for step in self.steps if isinstance(step, CudaStep)), None)

    @property
    def runtime(self) -> RuntimeStep:
        return next(step for step in self.steps if isinstance(step, RuntimeStep))


def _artifact_line(artifact: Artifact) -> str:
    return f"  {artifact.kind} {artifact.name} {artifact.version} sha256:{artifact.sha256}"
