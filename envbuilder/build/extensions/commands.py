"""What is run in the sandbox for an extension: the compile of one call, the capture of a project's calls, the build of a project.

All three see the root read-only, no network and no GPU; the compile folder alone can be written.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

import uv

from envbuilder import runtime as image
from envbuilder.build.assemble.sandbox import Mount, Root, sandboxed
from envbuilder.build.extensions.call import KEPT, SOURCE, SPACE, Call
from envbuilder.core.process import Command
from envbuilder.lock.model import LockedExtension
from envbuilder.plan.model import ENV_PREFIX

STRIP: Final = "-Wl,--build-id=none,--strip-all"  # symbol tables hold nvcc's temporary file names
PYTHON: Final = f"{ENV_PREFIX}/bin/python"
SPEC: Final = "spec.json"
FACTS: Final = "facts.json"
CALLS: Final = "calls.json"
STEADY: Final = "/steady.sh"  # where the sandbox has the program through which compilers are run
_CUSTOM: Final = "/customize"  # where the sandbox has the pretended GPU


def compile_command(
    call: Call,
    extension: LockedExtension,
    *,
    architectures: tuple[str, ...],
    root: Root,
    space: Path,
    jobs: int,
) -> Command:
    return _command(
        "compile_extension.py",
        why=f"compile the extension `{call.name}`",
        root=root,
        space=space,
        env=(*environment(architectures, jobs), *extension.env),
        cwd=SOURCE,
    )


def capture_command(
    extension: LockedExtension, *, architectures: tuple[str, ...], root: Root, space: Path
) -> Command:
    return _command(
        "capture_calls.py",
        why=f"run the imports of the extension `{extension.name}`",
        root=root,
        space=space,
        env=(*environment(architectures, 1), *_pretended(architectures), *extension.env),
        cwd=project_folder(extension),
        mounts=(Mount(source=image.path("sitecustomize.py"), target=f"{_CUSTOM}/sitecustomize.py"),),
    )


def build_command(
    extension: LockedExtension,
    *,
    architectures: tuple[str, ...],
    root: Root,
    space: Path,
    jobs: int,
    epoch: int,
) -> Command:
    return _command(
        "build_project.py",
        why=f"build the extension `{extension.name}`",
        root=root,
        space=space,
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
    """What a project's own build sees, wherever it runs; what the recipe says of the extension comes last."""
    more = (("SOURCE_DATE_EPOCH", str(epoch)), ("LDFLAGS", STRIP), ("CMAKE_BUILD_PARALLEL_LEVEL", str(jobs)))
    return (*environment(architectures, jobs), *_pretended(architectures), *more, *extension.env)


def project_folder(extension: LockedExtension) -> str:
    return f"{SOURCE}/{extension.path}".rstrip("/")


def compile_specification(call: Call) -> str:
    """The arguments of torch's `load()` or `load_inline()`, with paths as the sandbox has them."""
    given = asdict(call)
    function = given.pop("function")
    given |= json.loads(given.pop("others"))
    given["extra_ldflags"] = (*call.extra_ldflags, STRIP)
    given["build_directory"] = f"{SPACE}/build"
    if function == "load":
        for key in ("cpp_sources", "cuda_sources", "functions", "with_pytorch_error_handling"):
            del given[key]
    else:
        given["functions"] = json.loads(call.functions)
        for key in ("sources", "is_standalone"):
            del given[key]
    value = {"function": function, "arguments": given, "facts": f"{SPACE}/{FACTS}"}
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def capture_specification(extension: LockedExtension) -> str:
    value = {"lines": extension.capture, "source": SOURCE, "kept": KEPT, "calls": f"{SPACE}/{CALLS}"}
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def build_specification(extension: LockedExtension) -> str:
    value = {
        "project": project_folder(extension),
        "work": SPACE,
        "prefix": ENV_PREFIX,
        "facts": f"{SPACE}/{FACTS}",
    }
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def _command(
    program: str,
    *,
    why: str,
    root: Root,
    space: Path,
    env: tuple[tuple[str, str], ...],
    cwd: str,
    mounts: tuple[Mount, ...] = (),
) -> Command:
    return sandboxed(
        root,
        ("/bin/sh", STEADY, PYTHON, f"/{program}", f"{SPACE}/{SPEC}"),
        why=why,
        mounts=(
            Mount(source=space, target=SPACE, writable=True),
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
