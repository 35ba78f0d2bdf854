"""Recipes, locks and plans without I/O, for tests that need any plan."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from envbuilder.builder.job import BuildJob
from envbuilder.builder.render import make_printed
from envbuilder.compat.tables.cuda import capabilities, load_gpus
from envbuilder.compat.tables.toolkit import Part, Take, Toolkit
from envbuilder.core.cache import Sha256, Store, sha256_text
from envbuilder.core.console import Console
from envbuilder.core.process import Runner
from envbuilder.core.system import Limits
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.lock.model import Artifact, Inputs, Lock, LockedBuild, LockedExtension, SourceFile
from envbuilder.plan.make import make, toolkit_for
from envbuilder.plan.model import (
    CondaStep,
    CudaStep,
    ExtensionsStep,
    InterpreterStep,
    KernelsStep,
    OsStep,
    Plan,
    PythonStep,
    RuntimeStep,
    StartStep,
    WarmStep,
    WheelStep,
)
from envbuilder.plan.printer.printed import BUILD_DOCUMENTS, Printed
from envbuilder.recipe.load import load
from envbuilder.recipe.model import Extension, Recipe
from tests.support.runner import FakeRunner

# Paths in which the image of a rendered Dockerfile differs from envbuilder's, with the reason. Times of folders differ as well.
DIFFERS = {
    **dict.fromkeys(BUILD_DOCUMENTS, "says how envbuilder made its image"),
    "opt/envbuilder/provenance.json": "the same",
    "opt/envbuilder/sbom.spdx.json": "the same",
}
RECIPES = Path(__file__).parents[2] / "recipes"
OS, INTERPRETER, PYTHON, PACKAGES, CUDA, EXTENSIONS = (
    "os",
    "interpreter",
    "python",
    "packages",
    "cuda",
    "extensions",
)
START, RUNTIME, CONDA, WARM, KERNELS = "start", "runtime", "conda", "warm", "kernels"


KINDS = {
    OsStep: OS, InterpreterStep: INTERPRETER, PythonStep: PYTHON, CudaStep: CUDA, ExtensionsStep: EXTENSIONS,
    StartStep: START, RuntimeStep: RUNTIME, WheelStep: PACKAGES, CondaStep: CONDA, WarmStep: WARM, KernelsStep: KERNELS,
}  # fmt: skip


def make_job(folder: Path, plan: Plan | None = None, runner: Runner | None = None) -> BuildJob:
    """Return the job of a plan, with a cache in the folder. Without a runner its programs do not run."""
    return BuildJob(
        plan=plan or make_plan(), store=Store(folder / "cache"), runner=runner or FakeRunner(),
        console=Console(color=False, quiet=runner is not None), limits=Limits(threads=2, memory=64 << 30, root=True),
    )  # fmt: skip


def digest(text: str) -> Sha256:
    return sha256_text(text)


def deb(name: str, version: str) -> Artifact:
    path = f"pool/main/{name[0]}/{name}_{version}_amd64.deb"
    return Artifact(
        kind="deb", name=name, version=version, sha256=digest(path), size=10, source="debian", path=path
    )


def wheel(name: str, version: str) -> Artifact:
    path = f"{name}/{name}-{version}-py3-none-any.whl"
    return Artifact(
        kind="wheel", name=name, version=version, sha256=digest(path), size=20, source="pypi", path=path
    )


def sdist(name: str, version: str) -> Artifact:
    path = f"{name}/{name}-{version}.tar.gz"
    return replace(wheel(name, version), kind="sdist", sha256=digest(path), path=path)


INTERPRETER_ARCHIVE = Artifact(
    kind="archive", name="cpython", version="3.11.9+20260101", sha256=digest("python"), size=40,
    source="python-build-standalone", path="20260101/cpython-3.11.9+20260101-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz",
)  # fmt: skip


EXTENSION = LockedExtension(
    name="fused",
    sources=("csrc/fused.cpp", "csrc/fused.cu"),
    include=("csrc/include",),
    cflags=("-O3", "-DNAME=two words"),
    cuda_cflags=("--use_fast_math",),
    files=tuple(
        SourceFile(path=path, sha256=digest(path), size=30)
        for path in ("csrc/fused.cpp", "csrc/fused.cu", "csrc/include/fused.h")
    ),
)


SOURCES = {
    "csrc/fused.cpp": "int f();\n",
    "csrc/fused.cu": "// gpu\n",
    "csrc/include/fused.h": "#pragma once\n",
}


def locked_files(files: Mapping[str, str]) -> tuple[SourceFile, ...]:
    return tuple(
        SourceFile(path=path, sha256=digest(files[path]), size=len(files[path])) for path in sorted(files)
    )


def make_extension(files: Mapping[str, str] = SOURCES, **change: Any) -> LockedExtension:
    """Return EXTENSION with files of this content."""
    return replace(EXTENSION, files=locked_files(files), **change)


RECIPE = Recipe(
    name="x", path=Path("x.yaml"), summary="", gpus=("A100",), base="debian/bookworm", python="3.11", cuda="12.4",
    gcc="12", libxcrypt="4.4", pytorch="2.6.0", packages=("numpy",), apt=("git",),
    extensions=(
        Extension(name="fused", sources=EXTENSION.sources, include=EXTENSION.include, cflags=EXTENSION.cflags),
    ),
    env=(("OMP_NUM_THREADS", "8"),), tests=("python -c 'import fused'",), places=(("$", "x.yaml:1:1"),),
)  # fmt: skip


LOCK = Lock(
    recipe=RECIPE.digest, epoch=1_700_000_000, platform="linux/amd64",
    inputs=Inputs(debs=digest("debs"), toolkit=digest("toolkit"), wheels=digest("wheels")),
    debs=(deb("gcc-12", "12.2.0-14"), deb("libc6", "2.36-9")),
    toolkit=(deb("nvidia-cuda-toolkit", "12.4.1"),),
    wheels=(wheel("numpy", "2.2.0"), wheel("torch", "2.6.0")), extensions=(EXTENSION,),
)  # fmt: skip


TOOLKIT = Toolkit(
    cuda="12.4",
    constraints=("nvidia-cublas==12.4.5",),
    parts=(
        Part(
            deb="nvidia-cuda-toolkit",
            suite="bookworm",
            component="non-free",
            take=(Take(source="usr/bin/*", target="bin"),),
        ),
    ),
    header_wheels=("cublas",),
    links=(("lib64/libcublas.so", "{site}/nvidia/cublas/lib"),),
    files=(("version.txt", "12.4\n"),),
)


ARCHITECTURES = ("8.0",)


START_FILES = (
    ("opt/env/lib/python3.11/site-packages/envbuilder.pth", "import envbuilder_start\n"),
    ("opt/envbuilder/lib/tool.py", "x = 1\n"),
)


def make_plan(
    recipe: Recipe = RECIPE,
    lock: Lock = LOCK,
    *,
    toolkit: Toolkit | None = TOOLKIT,
    architectures: tuple[str, ...] = ARCHITECTURES,
    start: tuple[tuple[str, str], ...] = START_FILES,
) -> Plan:
    return make(
        recipe, lock, toolkit=toolkit, architectures=architectures, lock_text=lock_text(lock), start=start
    )


def keys(plan: Plan, tools: str = "tools 1") -> dict[str, str]:
    return {KINDS[type(step)]: plan.step_key(step, tools) for step in plan.steps}


def make_small_printed(
    name: str,
    *,
    interpreter: Artifact | None = None,
    more: tuple[Artifact, ...] = (),
    builds: tuple[LockedBuild, ...] = (),
) -> Printed:
    """Make what is printed of a recipe, with fixed values for what changes for other reasons: keys and versions.

    `interpreter` is a standalone Python, which its lock does not have, and `more` are more packages.
    """
    recipe = load(RECIPES / f"{name}.yaml")
    site = f"opt/env/lib/python{recipe.python}/site-packages"
    lock = load_lock(RECIPES / f"{name}.lock")
    plan = make(
        recipe,
        replace(lock, interpreter=interpreter, wheels=(*lock.wheels, *more), builds=builds),
        toolkit=toolkit_for(recipe, lock),
        architectures=capabilities(recipe.gpus, load_gpus().rows),
        lock_text="{}\n",
        start=((f"{site}/first.py", ""), (f"{site}/first.pth", "import first\n")),
        more=(("opt/envbuilder/start", '#!/bin/sh\nexec "$@"\n'),),
    )
    plan = replace(plan, steps=(*plan.steps[:-1], replace(plan.runtime, labels=(("a.label", "its value"),))))
    return replace(make_printed(recipe, plan, pytorch_index="https://index.example/pytorch/"), uv="1.2.3")


def said_to_runtimes() -> dict[str, set[tuple[str, str]]]:
    """Return what the table in docs/evidence/gpus.md says: runtime → the variables that image or SIF has for it, or none."""
    text = (RECIPES.parent / "docs/evidence/gpus.md").read_text(encoding="utf-8")
    _, _, rest = text.partition("\n| runtime | reads | the image or SIF says |")
    rows = [line.strip("| ").split(" | ") for line in rest.partition("\n\n")[0].splitlines()[2:]]
    variables = {runtime: set(re.findall(r"`(\w+)=([^`]+)`", cell)) for runtime, _, cell, *_ in rows}
    assert all(variables[runtime] or cell == "nothing" for runtime, _, cell, *_ in rows)
    return variables
