"""Rules on what is installed: torch's wheel against Python, GPUs, CUDA and glibc, and packages against torch."""

import re
from collections.abc import Iterator
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from envbuilder.compat.context import (
    CheckCode,
    CheckContext,
    PinChange,
    Problem,
    can_run,
    demands,
    is_ahead,
    parse_requirement,
    warning,
)
from envbuilder.compat.tables.cuda import Cuda, load_cuda_packages, load_nccl_faults, target
from envbuilder.compat.tables.table import cite, version_key
from envbuilder.compat.tables.torch import CPU
from envbuilder.core.spelling import either
from envbuilder.recipe.packages import build_of
from envbuilder.recipe.wheel_sources import index_of

# Wheels of a CUDA compiler that only work together, each in the compiler's own version.
COMPILER: Final = "nvidia-cuda-nvcc"
COMPILER_PARTS: Final = ("nvidia-nvvm", "nvidia-cuda-crt")
TOOLKIT_PACKAGE: Final = "cuda-toolkit"  # its extra `nvcc` brings the compiler
_COMPILER_EXTRAS: Final = frozenset({"nvcc", "all"})


def check_names(context: CheckContext) -> Iterator[Problem]:
    """Refuse names that mean another project on the package index, unless the recipe says where the package comes from.

    Warn of those that alone bring what does not fit GPUs or torch.
    """
    recipe, rows = context.recipe, load_cuda_packages().by_name
    compiled = {canonicalize_name(extension.name) for extension in recipe.extensions}
    for at, text in enumerate(recipe.packages):
        requirement = parse_requirement(text)
        row = rows.get(canonicalize_name(requirement.name)) if requirement else None
        if requirement is None or row is None or requirement.url or row.package in compiled:
            continue
        key, is_listed = f"packages[{at}]", index_of(row.package, recipe.indexes) is not None
        is_open = row.index == "cpu" or not _holds(requirement)
        if row.alone and is_open and recipe.cuda and not is_listed:
            yield warning(CheckCode.ALONE, key, row.alone, advice=row.says, source=cite(row.source))
        if not row.wrong or is_listed:
            continue
        if row.is_chosen and recipe.pytorch:
            continue  # `lock` takes a wheel of its project, or refuses the name
        advice = row.advice(recipe.pytorch or "TORCH", build_of(recipe.cuda))
        yield Problem(CheckCode.OTHER_PROJECT, key, row.wrong, advice=advice, source=cite(row.source))


def check_torch_processor(context: CheckContext) -> Iterator[Problem]:
    """The package index had CUDA builds for x86-64 alone at first: `pip install torch` gave Arm one for the CPU."""
    release, cuda = context.tables.torches.by_name.get(context.recipe.pytorch), context.recipe.cuda
    if release is None or (context.torch and not (cuda and context.torch.pypi == CPU)):
        return
    message = f"the package index has no wheel of torch {release.version} for {context.processor.title}"
    if context.torch:
        message += " with CUDA, only one for the CPU"
    if able := next((row for row in context.torches.rows if row.pypi != CPU or not cuda), None):
        message += f"; the first that it has is {able.version}" + (f"+{able.pypi}" if cuda else "")
    pins, source = ("pytorch",), cite(release.source, "wheels")
    yield Problem(CheckCode.TORCH_PROCESSOR, "pytorch", message, pins=pins, source=source)


def check_torch_python(context: CheckContext) -> Iterator[Problem]:
    torch, python = context.torch, context.recipe.python
    if torch and python not in torch.pythons:
        message = f"torch {torch.version} has no wheel for Python {python}; it has {', '.join(torch.pythons)}"
        pins, source = ("pytorch", "python", "base"), cite(torch.source, "index")
        yield Problem(CheckCode.TORCH_PYTHON, "pytorch", message, pins=pins, source=source)


def check_torch_glibc(context: CheckContext) -> Iterator[Problem]:
    torch, row = context.torch, context.distribution
    if torch and row and version_key(row.glibc) < version_key(torch.glibc):
        needs = f"the wheel of torch {torch.version} needs glibc {torch.glibc} or newer"
        message = f"{needs}, and {row.name} has {row.glibc}"
        pins, source = ("base", "pytorch"), cite(torch.source, "index", "release-md")
        yield Problem(CheckCode.TORCH_GLIBC, "base", message, pins=pins, source=source)


def check_torch_cuda(context: CheckContext) -> Iterator[Problem]:
    """A toolkit of another major version than torch's build refuses or crashes; another minor one works."""
    torch, build, cuda = context.torch, context.build, context.recipe.cuda_minor
    if torch is None or build is None or build.cuda == cuda:
        return
    if not context.cuda and not is_ahead(cuda, context.tables.cudas.rows[-1].cuda):
        return  # that there is no such release is enough
    builds = either([build.cuda, *(other.cuda for other in torch.builds if other is not build)])
    message = f"torch {torch.version} is built against CUDA {builds}, not {cuda}"
    pins, source = ("cuda", "pytorch"), cite(torch.source, "wheels")
    if build.cuda.partition(".")[0] != cuda.partition(".")[0]:
        message += f"; the package index's build, for {build.cuda}, would be installed"
        yield Problem(CheckCode.TORCH_CUDA, "cuda", message, pins=pins, source=source)
    elif not context.cuda or context.has_toolkit(cuda):  # that it cannot be laid out is enough
        message += ": extensions compile and load, as the major version is the same"
        yield warning(CheckCode.TORCH_CUDA_MINOR, "cuda", message, pins=pins, source=source)


def check_kernels(context: CheckContext) -> Iterator[Problem]:
    """A GPU runs machine code of its own major version up to its minor one, and compiles older PTX for itself."""
    torch, build = context.torch, context.build
    if torch is None or build is None or not build.architectures:
        return
    for key, gpu in context.gpus:
        if can_run(gpu.capability, build.architectures, build.ptx):
            continue
        able = [
            f"{row.version}+{other.name}"
            for row in context.torches.rows
            for other in row.builds
            if can_run(gpu.capability, other.architectures, other.ptx)
        ]
        span = f"; the first that has is {able[0]}, the last {able[-1]}" if able else ""
        held = " ".join(map(target, build.architectures))
        message = (
            f"torch {torch.version}+{build.name} has no code for {gpu.name} ({gpu.target}), only {held}{span}"
        )
        source = cite(torch.source, "wheels" if build is torch.build else "builder")
        yield Problem(CheckCode.KERNELS, key, message, pins=("pytorch", "cuda"), source=source)


def check_nccl(context: CheckContext) -> Iterator[Problem]:
    """Judge an NCCL in the place of torch's. Whether it defines what torch needs is for `lock`, which reads both."""
    recipe, torch = context.recipe, context.torch
    version, key = recipe.nccl_version, "nccl.version"
    if version and torch and not torch.nccl:
        message = f"torch {torch.version} contains NCCL in its own libraries, so no other takes its place"
        advice = "leave `version` out of `nccl`"
        yield Problem(CheckCode.NCCL, key, message, advice=advice, source=cite(torch.source, "wheels"))
    capabilities = [gpu.capability for _, gpu in context.gpus]
    for row in load_nccl_faults().rows if version else ():
        if row.holds(version, context.processor.platform, capabilities):
            fixed = f"{row.fixed} is the first without it" if row.fixed else "no release without it is known"
            message = f"NCCL {version} has a known fault: {row.says}"
            yield warning(CheckCode.NCCL_FAULT, key, message, advice=fixed, source=cite(row.source))


def check_bounds(context: CheckContext) -> Iterator[Problem]:
    """The resolver keeps torch's bounds. Only the recipe's own requirements can contradict them."""
    torch = context.torch
    if torch is None:
        return
    for name, bound, does, code, source in (
        ("numpy", torch.numpy, "works with", CheckCode.NUMPY, "pytorch-107302"),
        (
            "setuptools",
            torch.setuptools,
            "compiles extensions with",
            CheckCode.SETUPTOOLS,
            "setuptools-trial",
        ),
        *(
            (name, f"=={version}", "fits", CheckCode.COMPANION, "wheels")
            for name, version in torch.companions
        ),
    ):
        asked = demands(context, name)
        wanted = SpecifierSet(",".join(str(requirement.specifier) for _, requirement in asked))
        if not bound or not asked or not (wanted & SpecifierSet(bound)).is_unsatisfiable():
            continue
        alone = (
            key
            for key, requirement in asked
            if (requirement.specifier & SpecifierSet(bound)).is_unsatisfiable()
        )
        key = next(alone, asked[-1][0])
        message = f"torch {torch.version} {does} {name}{bound}, and the recipe asks for {name}{wanted}"
        moves = (tuple(PinChange(key, f"{name}{bound}") for key, _ in asked),)
        yield Problem(code, key, message, pins=("pytorch",), moves=moves, source=cite(torch.source, source))


def check_compiler_parts(context: CheckContext) -> Iterator[Problem]:
    """If nothing bounds the parts of a compiler from the package index, the newest come and fail with it.

    `ptxas` refuses the newer `nvvm`'s code ("Unsupported .version"); only some releases of `cuda-toolkit` hold them.
    """
    held = [demands(context, part) for part in COMPILER_PARTS]
    if all(any(_holds(requirement) for _, requirement in asked) for asked in held):
        return
    cudas, torch = context.tables.cudas, context.torch
    pinned = torch.cuda_toolkit if torch and context.build is torch.build else ""
    for key, requirement in demands(context, TOOLKIT_PACKAGE):
        release = _exact(requirement) or pinned
        cuda = next((row for row in cudas.rows if release in row.unpinned), None)
        if requirement.extras & _COMPILER_EXTRAS and cuda:
            asker = f"`{requirement}`, of which torch and the recipe make {release},"
            yield _loose_compiler(context, key, asker, cuda, pins=("pytorch",))
    for key, requirement in demands(context, COMPILER):
        release = _exact(requirement)
        cuda = cudas.by_name.get(".".join(release.split(".")[:2]))
        if cuda and cuda is not cudas.rows[-1]:
            version = release if release.count(".") > 1 else ""
            yield _loose_compiler(context, key, f"`{requirement}`", cuda, version)


def _loose_compiler(
    context: CheckContext, key: str, asker: str, cuda: Cuda, version: str = "", *, pins: tuple[str, ...] = ()
) -> Problem:
    """Return the problem of a compiler that is asked for without its parts, which must have its own `version`."""
    parts, end = " and ".join(COMPILER_PARTS), len(context.recipe.packages)
    missing = [part for part in COMPILER_PARTS if not demands(context, part)]
    requirements = [f"{part}=={version or cuda.compiler or f'{cuda.cuda}.*'}" for part in missing]
    move = tuple(
        PinChange(f"packages[{end + at}]", requirement) for at, requirement in enumerate(requirements)
    )
    return Problem(
        CheckCode.COMPILER_PARTS,
        key,
        f"{asker} leaves {parts} to the resolver, which takes those of CUDA {context.tables.cudas.rows[-1].cuda}: "
        "every compile fails (`Unsupported .version`)",
        pins=pins,
        moves=(move,) if move else (),
        advice=f"hold {parts} at the compiler's own version",
        source=cite(cuda.source, "toolkit_metadata"),
    )


def _exact(requirement: Requirement) -> str:
    """13.0.2 of `==13.0.2`, "" of any other bound."""
    found = re.fullmatch(r"={2,3}\s*(\d+(\.\d+)*)(\.\*)?", str(requirement.specifier))
    return found[1] if found else ""


def _holds(requirement: Requirement) -> bool:
    return any(one.operator in {"==", "===", "<", "<=", "~="} for one in requirement.specifier)
