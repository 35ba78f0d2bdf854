"""The program that builds the wheel of a source distribution.

In the sandbox, it sees a read-only root, no network and no GPU. It can write only the build directory. BuildKit runs it with the same
arguments.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import uv

from envbuilder import runtime as image
from envbuilder import steps
from envbuilder.builder.assemble.sandbox import Root, sandboxed
from envbuilder.core.process import Command
from envbuilder.core.processor import X86_64, Processor
from envbuilder.lock.model import Artifact
from envbuilder.plan.extension import BUILD_DIRECTORY
from envbuilder.plan.model import ENV_PREFIX, PythonStep
from envbuilder.runners.sandbox import Mount

STRIP: Final = "-Wl,--build-id=none,--strip-all"  # symbol tables hold nvcc's temporary file names
NO_COMMENT: Final = "/no_comment.ld"  # in the sandbox
PYTHON: Final = f"{ENV_PREFIX}/bin/python"
SPEC: Final = "spec.json"  # at the root of the sandbox, read-only: a project could put a link in its place
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
    (f"{_CUSTOM}/sitecustomize.py", steps.FOLDER / "sitecustomize.py"),
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
            ("/steady.c", steps.FOLDER / "steady.c"),
            (NO_COMMENT, steps.FOLDER / "no_comment.ld"),
            (f"/{SPEC}", argument),
        )
        command = sandboxed(
            root,
            ("/bin/sh", STEADY, self.python, f"/{self.file}", f"/{SPEC}"),
            why=self.why,
            mounts=(
                Mount(source=build_dir, target=BUILD_DIRECTORY, writable=True),
                *(Mount(source=source, target=target) for target, source in (*own, *self.files)),
            ),
            env=(*self.env, *native),
            cwd=self.folder,
        )
        return replace(command, chatty=True)


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
            project=f"{BUILD_DIRECTORY}/{sdist.filename}",
            work=BUILD_DIRECTORY,
            tools=f"{BUILD_DIRECTORY}/{TOOLS}",
        ),
        env=wheel_env(processor=processor),
        folder=BUILD_DIRECTORY,
        files=_PROJECT_FILES,
        python=step.program,
    )


def _json(**values: object) -> str:
    return json.dumps(values, indent=1, sort_keys=True) + "\n"
