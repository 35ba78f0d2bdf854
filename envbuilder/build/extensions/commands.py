"""The programs that run for an extension: the compile of one call, the capture of a project's calls, the build of a project.

In the sandbox all three see a read-only root, no network and no GPU. Only the build directory can be written.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

import uv

from envbuilder import runtime as image
from envbuilder.build.assemble.sandbox import Mount, Root, sandboxed
from envbuilder.build.extensions.cache import (
    BUILD_DIRECTORY,
    KEPT,
    PACKAGE,
    SOURCE,
    Call,
    make_key,
    project_key,
    recipe_call,
    relative,
    surroundings,
)
from envbuilder.build.extensions.install import VERSION, call_entry, install_path
from envbuilder.core.errors import UsageError
from envbuilder.core.process import Command
from envbuilder.lock.model import LockedExtension
from envbuilder.plan.model import ENV_PREFIX, ExtensionsStep, Plan
from envbuilder.plan.render import Compile
from envbuilder.recipe.extension import Form

STRIP: Final = "-Wl,--build-id=none,--strip-all"  # symbol tables hold nvcc's temporary file names
PYTHON: Final = f"{ENV_PREFIX}/bin/python"
SPEC: Final = "spec.json"
FACTS: Final = "facts.json"
CALLS: Final = "calls.json"
STEADY: Final = "/steady.sh"  # the sandbox's path of the program that runs compilers
_CUSTOM: Final = "/customize"  # the sandbox's path of the simulated GPU


def compile_command(
    call: Call,
    extension: LockedExtension,
    *,
    architectures: tuple[str, ...],
    root: Root,
    build_dir: Path,
    jobs: int,
) -> Command:
    return _command(
        "compile_extension.py",
        why=f"compile the extension `{call.name}`",
        root=root,
        build_dir=build_dir,
        env=(*environment(architectures, jobs), *extension.env),
        cwd=SOURCE,
    )


def capture_command(
    extension: LockedExtension, *, architectures: tuple[str, ...], root: Root, build_dir: Path
) -> Command:
    return _command(
        "capture_calls.py",
        why=f"run the imports of the extension `{extension.name}`",
        root=root,
        build_dir=build_dir,
        env=(*environment(architectures, 1), *_pretended(architectures), *extension.env),
        cwd=project_folder(extension),
        mounts=(Mount(source=image.path("sitecustomize.py"), target=f"{_CUSTOM}/sitecustomize.py"),),
    )


def build_command(
    extension: LockedExtension,
    *,
    architectures: tuple[str, ...],
    root: Root,
    build_dir: Path,
    jobs: int,
    epoch: int,
) -> Command:
    return _command(
        "build_project.py",
        why=f"build the extension `{extension.name}`",
        root=root,
        build_dir=build_dir,
        env=build_environment(extension, architectures=architectures, jobs=jobs, epoch=epoch),
        cwd=project_folder(extension),
        mounts=(
            Mount(source=image.path("sitecustomize.py"), target=f"{_CUSTOM}/sitecustomize.py"),
            Mount(source=Path(uv.find_uv_bin()), target="/uv"),
        ),
    )


def build_environment(
    extension: LockedExtension, *, architectures: tuple[str, ...], jobs: int, epoch: int
) -> tuple[tuple[str, str], ...]:
    """Return the variables of a project's own build, wherever it runs. Those of the recipe come last."""
    more = (("SOURCE_DATE_EPOCH", str(epoch)), ("LDFLAGS", STRIP), ("CMAKE_BUILD_PARALLEL_LEVEL", str(jobs)))
    return (*environment(architectures, jobs), *_pretended(architectures), *more, *extension.env)


def project_folder(extension: LockedExtension) -> str:
    return f"{SOURCE}/{extension.path}".rstrip("/")


def compile_specification(call: Call) -> str:
    """Return the arguments of torch's `load()` or `load_inline()` as JSON, with the sandbox's paths."""
    given = asdict(call)
    function = given.pop("function")
    given |= json.loads(given.pop("others"))
    given["extra_ldflags"] = (*call.extra_ldflags, STRIP)
    given["build_directory"] = f"{BUILD_DIRECTORY}/build"
    if function == "load":
        for key in ("cpp_sources", "cuda_sources", "functions", "with_pytorch_error_handling"):
            del given[key]
    else:
        given["functions"] = json.loads(call.functions)
        for key in ("sources", "is_standalone"):
            del given[key]
    value = {"function": function, "arguments": given, "facts": f"{BUILD_DIRECTORY}/{FACTS}"}
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def capture_specification(extension: LockedExtension) -> str:
    value = {
        "lines": extension.capture,
        "source": SOURCE,
        "kept": KEPT,
        "calls": f"{BUILD_DIRECTORY}/{CALLS}",
    }
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def build_specification(extension: LockedExtension) -> str:
    value = {
        "project": project_folder(extension),
        "work": BUILD_DIRECTORY,
        "prefix": ENV_PREFIX,
        "facts": f"{BUILD_DIRECTORY}/{FACTS}",
    }
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def _command(
    program: str,
    *,
    why: str,
    root: Root,
    build_dir: Path,
    env: tuple[tuple[str, str], ...],
    cwd: str,
    mounts: tuple[Mount, ...] = (),
) -> Command:
    return sandboxed(
        root,
        ("/bin/sh", STEADY, PYTHON, f"/{program}", f"{BUILD_DIRECTORY}/{SPEC}"),
        why=why,
        mounts=(
            Mount(source=build_dir, target=BUILD_DIRECTORY, writable=True),
            Mount(source=image.path(program), target=f"/{program}"),
            Mount(source=image.path("kit/steady.sh"), target=STEADY),
            *mounts,
        ),
        env=env,
        cwd=cwd,
    )


def environment(architectures: tuple[str, ...], jobs: int) -> tuple[tuple[str, str], ...]:
    return (
        ("CC", "gcc"),
        ("CXX", "g++"),
        ("CUDA_HOME", "/usr/local/cuda"),
        ("MAX_JOBS", str(jobs)),
        (
            "NVCC_APPEND_FLAGS",
            "--objdir-as-tempdir",
        ),  # temporary names without the process id: same object each time
        ("TORCH_CUDA_ARCH_LIST", ";".join(architectures)),
        ("TORCH_EXTENSIONS_DIR", "/tmp/extensions"),  # noqa: S108 - the sandbox's own
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("PYTHONHASHSEED", "0"),
    )


def _pretended(architectures: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    capability = (("_ENVBUILDER_CAPABILITY", architectures[0]),) if architectures else ()
    return (("PYTHONPATH", _CUSTOM), *capability)


# ---- the same outside the sandbox, as JSON files


def container_compiles(plan: Plan, *, jobs: int) -> tuple[Compile, ...]:
    """Return what a container needs to compile each extension of the plan. Raises UsageError where `need_calls` does."""
    need_calls(plan)
    steps = (step for step in plan.steps if isinstance(step, ExtensionsStep))
    return tuple(
        _project(plan, step, extension, jobs)
        if extension.form is Form.PROJECT
        else _call(plan, step, extension, jobs)
        for step in steps
        for extension in step.extensions
    )


def need_calls(plan: Plan) -> None:
    """Raise UsageError for an extension whose calls are known only after its project's imports ran."""
    other = next((one for one in plan.extensions if one.form is Form.CAPTURE), None)
    if other is not None:
        raise UsageError(
            f"the extension `{other.name}` has `capture`, and the docker engine runs no imports to see what they compile",
            hint="name the `sources` that they compile"
            if plan.os.base
            else "`--engine assemble` runs them; or name the `sources` that they compile",
        )


def need_sources(plan: Plan) -> None:
    """Raise UsageError for an extension that no text can hold: a project is more than the recipe's own files."""
    other = next((one for one in plan.extensions if one.form is not Form.LOAD), None)
    if other is not None:
        raise UsageError(
            f"the extension `{other.name}` cannot be written as text: a project's own build, or what its imports "
            "compile, is known only when it runs",
            hint="`sources` in a recipe can be written; `envbuilder build` makes the others",
        )


def _call(plan: Plan, step: ExtensionsStep, extension: LockedExtension, jobs: int) -> Compile:
    call = recipe_call(extension)
    files = json.dumps([(f"src/{file.path}", file.sha256) for file in extension.files])
    key = make_key(surroundings(plan, extension), call=call.to_json(), files=files)
    entry = {
        "name": call.name,
        "function": call.function,
        "key": key.digest,
        **call_entry(call, install_path(call.name, key)),
    }
    more = {
        "has_cuda": call.has_cuda,
        "base": call.base,
        "sources": [relative(source, call.base) for source in call.sources],
    }
    return Compile(
        name=extension.name,
        files=extension.files,
        specification=compile_specification(call),
        entry=_entry(step, entry, **more),
        env=(*environment(step.architectures, jobs), *extension.env),
    )


def _project(plan: Plan, step: ExtensionsStep, extension: LockedExtension, jobs: int) -> Compile:
    entry = {"name": extension.name, "function": PACKAGE, "key": project_key(plan, extension).digest}
    folder = project_folder(extension)
    return Compile(
        name=extension.name,
        files=extension.files,
        specification=build_specification(extension),
        entry=_entry(step, entry, project=folder),
        env=build_environment(extension, architectures=step.architectures, jobs=jobs, epoch=plan.epoch),
        project=folder,
    )


def _entry(step: ExtensionsStep, entry: Mapping[str, object], **more: object) -> str:
    """Return the argument of `install_extension.py`."""
    gpus = list(step.architectures)
    value = {
        "entry": entry,
        "head": {"version": VERSION, "architectures": gpus},
        "architectures": gpus,
        **more,
    }
    return json.dumps(value, indent=1, sort_keys=True) + "\n"
