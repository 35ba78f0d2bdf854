"""The programs that make extensions: the compile of one call, the capture of a project's calls, the build of a project.

In the sandbox, all three see a read-only root, no network and no GPU. They can write only the build directory. BuildKit runs the first
and the last with the same arguments.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

import uv

from envbuilder import runtime as image
from envbuilder.builder.assemble.sandbox import Root, sandboxed
from envbuilder.builder.extensions import cache
from envbuilder.builder.extensions.install import VERSION, index_entry
from envbuilder.core.errors import UsageError
from envbuilder.core.process import Command
from envbuilder.core.processor import X86_64, Processor
from envbuilder.lock.model import Artifact, LockedExtension
from envbuilder.plan.model import ENV_PREFIX, Plan, PythonStep
from envbuilder.plan.render.kit import Compile
from envbuilder.recipe.extension import Form
from envbuilder.runners.sandbox import Mount

STRIP: Final = "-Wl,--build-id=none,--strip-all"  # symbol tables hold nvcc's temporary file names
NO_COMMENT: Final = "/no_comment.ld"  # in the sandbox
PYTHON: Final = f"{ENV_PREFIX}/bin/python"
SPEC: Final = "spec.json"  # at the root of the sandbox, read-only: a project could put a link in its place
FACTS: Final = "facts.json"
CALLS: Final = "calls.json"
STEADY: Final = "/steady.sh"  # in the sandbox: the program that runs compilers
TOOLS: Final = "tools"  # in the build directory: what the build of a source distribution needs
WHEEL_EPOCH: Final = (
    "315619200"  # 1980-01-02, which every zip file can hold; the same for all, so that recipes share wheels
)
WHEEL_JOBS: Final = (
    4  # compilers that such a build may start; the same everywhere, because it may write the number down
)
NATIVE_GCC: Final = "_ENVBUILDER_NATIVE_GCC"  # of `STEADY`, where programs of another processor are emulated
STEADY_PYTHON: Final = (("PYTHONDONTWRITEBYTECODE", "1"), ("PYTHONHASHSEED", "0"))
_CUSTOM: Final = "/customize"  # in the sandbox: the simulated GPU
_PROJECT_FILES: Final = (
    (f"{_CUSTOM}/sitecustomize.py", image.path("sitecustomize.py")),
    ("/uv", Path(uv.find_uv_bin())),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program of `envbuilder/runtime`, with its argument, variables, and the files of this machine that it reads."""

    file: str
    why: str
    specification: str  # JSON
    env: tuple[tuple[str, str], ...]
    folder: str  # where it runs
    files: tuple[tuple[str, Path], ...] = ()
    python: str = PYTHON

    def command(self, *, root: Root, build_dir: Path, argument: Path) -> Command:
        """Return the command that runs it in the sandbox. `argument` is the file with its specification, outside `build_dir`."""
        native = ((NATIVE_GCC, f"{X86_64.gnu}-gcc"),) if root.emulation else ()
        own = (
            (f"/{self.file}", image.path(self.file)),
            (STEADY, image.path("kit/steady.sh")),
            (NO_COMMENT, image.path(f"kit{NO_COMMENT}")),
            (f"/{SPEC}", argument),
        )
        command = sandboxed(
            root,
            ("/bin/sh", STEADY, self.python, f"/{self.file}", f"/{SPEC}"),
            why=self.why,
            mounts=(
                Mount(source=build_dir, target=cache.BUILD_DIRECTORY, writable=True),
                *(Mount(source=source, target=target) for target, source in (*own, *self.files)),
            ),
            env=(*self.env, *native),
            cwd=self.folder,
        )
        return replace(command, chatty=True)


def compile_program(
    plan: Plan, extension: LockedExtension, call: cache.Call, *, jobs: int, kit: str = ""
) -> Program:
    """Compile one call of torch's `load()` or `load_inline()`. `kit` is the folder of the linker's script."""
    given = asdict(call)
    function = given.pop("function")
    given |= json.loads(given.pop("others"))
    given["extra_ldflags"] = (*call.extra_ldflags, link_flags(plan.processor, kit))
    given["build_directory"] = f"{cache.BUILD_DIRECTORY}/build"
    if function == "load":
        foreign: tuple[str, ...] = ("cpp_sources", "cuda_sources", "functions", "with_pytorch_error_handling")
    else:
        given["functions"] = json.loads(call.functions)
        foreign = ("sources", "is_standalone")
    arguments = {name: value for name, value in given.items() if name not in foreign}
    return Program(
        file="compile_extension.py",
        why=f"compile the extension `{call.name}`",
        specification=_json(function=function, arguments=arguments, facts=f"{cache.BUILD_DIRECTORY}/{FACTS}"),
        env=(
            *_environment(plan, jobs),
            *(_chosen_gpus(plan, extension) if extension.form is Form.CAPTURE else ()),
            *extension.env,
        ),
        folder=cache.SOURCE,
    )


def capture_program(plan: Plan, extension: LockedExtension) -> Program:
    """Run the imports of a project and record the calls that would compile."""
    return Program(
        file="capture_calls.py",
        why=f"run the imports of the extension `{extension.name}`",
        specification=_json(
            lines=extension.capture,
            source=cache.SOURCE,
            kept=cache.KEPT,
            calls=f"{cache.BUILD_DIRECTORY}/{CALLS}",
        ),
        env=(*_environment(plan, 1), *_simulated_gpu(plan), *extension.env),
        folder=project_folder(extension),
        files=((f"{_CUSTOM}/sitecustomize.py", image.path("sitecustomize.py")),),
    )


def build_program(plan: Plan, extension: LockedExtension, *, jobs: int) -> Program:
    """Build a project with its own setup.py or pyproject.toml."""
    folder = project_folder(extension)
    own = (
        ("SOURCE_DATE_EPOCH", str(plan.epoch)),
        ("LDFLAGS", link_flags(plan.processor)),
        ("CMAKE_BUILD_PARALLEL_LEVEL", str(jobs)),
    )
    return Program(
        file="build_project.py",
        why=f"build the extension `{extension.name}`",
        specification=_json(
            project=folder,
            work=cache.BUILD_DIRECTORY,
            prefix=ENV_PREFIX,
            facts=f"{cache.BUILD_DIRECTORY}/{FACTS}",
        ),
        env=(
            *_environment(plan, jobs),
            *_simulated_gpu(plan),
            *_chosen_gpus(plan, extension),
            *own,
            *extension.env,
        ),
        folder=folder,
        files=_PROJECT_FILES,
    )


def link_flags(processor: Processor, folder: str = "") -> str:
    """Return the linker's flags without which the same sources give other bytes elsewhere. `folder` has the linker's script."""
    return STRIP if processor is X86_64 else f"{STRIP},-T,{folder}{NO_COMMENT}"


def wheel_env(folder: str = _CUSTOM, processor: Processor = X86_64) -> tuple[tuple[str, str], ...]:
    """Return the variables of a source distribution's build. `folder` has the program that sorts listings."""
    return (
        ("CC", "gcc"),
        ("CXX", "g++"),
        ("MAX_JOBS", str(WHEEL_JOBS)),
        ("SOURCE_DATE_EPOCH", WHEEL_EPOCH),
        ("LDFLAGS", link_flags(processor, folder.removesuffix(_CUSTOM))),
        ("PYTHONPATH", folder),
        *STEADY_PYTHON,
    )


def wheel_program(step: PythonStep, sdist: Artifact, processor: Processor = X86_64) -> Program:
    """Build the wheel of a source distribution in the build directory, with the packages in its folder `TOOLS` alone."""
    return Program(
        file="build_project.py",
        why=f"build `{sdist.name} {sdist.version}` from its source distribution",
        specification=_json(
            project=f"{cache.BUILD_DIRECTORY}/{sdist.filename}",
            work=cache.BUILD_DIRECTORY,
            tools=f"{cache.BUILD_DIRECTORY}/{TOOLS}",
        ),
        env=wheel_env(processor=processor),
        folder=cache.BUILD_DIRECTORY,
        files=_PROJECT_FILES,
        python=step.program,
    )


def project_folder(extension: LockedExtension) -> str:
    return str(PurePosixPath(cache.SOURCE, extension.path))


def _environment(plan: Plan, jobs: int) -> tuple[tuple[str, str], ...]:
    return (
        ("CC", "gcc"),
        ("CXX", "g++"),
        ("CUDA_HOME", "/usr/local/cuda"),
        ("MAX_JOBS", str(jobs)),
        # Temporary names without the process id make objects reproducible.
        ("NVCC_APPEND_FLAGS", "--objdir-as-tempdir"),
        ("TORCH_CUDA_ARCH_LIST", ";".join(cache.gpus_of(plan))),
        ("TORCH_EXTENSIONS_DIR", "/tmp/extensions"),  # noqa: S108 - the sandbox's own
        *STEADY_PYTHON,
    )


def _simulated_gpu(plan: Plan) -> tuple[tuple[str, str], ...]:
    gpus = cache.gpus_of(plan)
    capability = (("_ENVBUILDER_CAPABILITY", gpus[0]),) if gpus else ()
    return (("PYTHONPATH", _CUSTOM), *capability)


def _chosen_gpus(plan: Plan, extension: LockedExtension) -> tuple[tuple[str, str], ...]:
    """Return the variable that replaces a project's own architectures, unless the recipe names some in `env`."""
    gpus = cache.gpus_of(plan)
    is_own = any(name == "TORCH_CUDA_ARCH_LIST" for name, _ in extension.env)
    return (("_ENVBUILDER_GPUS", ";".join(gpus)),) if gpus and not is_own else ()


# ---- the same in a container, as JSON files


def container_compiles(plan: Plan, *, jobs: int) -> tuple[Compile, ...]:
    """Return the compiles of the plan's extensions for a container. Raises UsageError like `need_calls`."""
    need_calls(plan)
    return tuple(_container_compile(plan, extension, jobs) for extension in plan.extensions)


def need_calls(plan: Plan) -> None:
    """Raise UsageError for an extension whose calls are known only after a capture."""
    other = next((one for one in plan.extensions if one.form is Form.CAPTURE), None)
    if other is not None:
        raise UsageError(
            f"the extension `{other.name}` has `capture`, which the docker engine does not support",
            hint="`--engine assemble` supports it; or name the `sources` that the imports compile",
        )


def need_sources(plan: Plan) -> None:
    """Raise UsageError for an extension without `sources`, which no rendered text can build."""
    other = next((one for one in plan.extensions if one.form is not Form.LOAD), None)
    if other is not None:
        raise UsageError(
            f"the extension `{other.name}` cannot be written as text: a project's own build, or what its imports "
            "compile, is known only when it runs",
            hint="`sources` in a recipe can be written; `envbuilder build` makes the others",
        )


def _container_compile(plan: Plan, extension: LockedExtension, jobs: int) -> Compile:
    call = cache.recipe_call(extension) if extension.form is Form.LOAD else None
    more: dict[str, object]
    if call is None:
        program, key = build_program(plan, extension, jobs=jobs), cache.project_key(plan, extension)
        more = {"project": program.folder}
    else:
        program = compile_program(plan, extension, call, jobs=jobs, kit="/kit")
        key = cache.call_key(plan, extension, call, cache.recipe_calls(extension))
        sources = [cache.relative(source, call.base) for source in call.sources]
        more = {"has_cuda": call.has_cuda, "base": call.base, "sources": sources}
    gpus = list(cache.gpus_of(plan))
    head = {"version": VERSION, "architectures": gpus}
    entry = index_entry(extension.name, key, call)
    return Compile(
        name=extension.name,
        files=extension.files,
        specification=program.specification,
        entry=_json(entry=entry, head=head, architectures=gpus, **more),
        env=program.env,
        project="" if call else program.folder,
    )


def _json(**values: object) -> str:
    return json.dumps(values, indent=1, sort_keys=True) + "\n"
