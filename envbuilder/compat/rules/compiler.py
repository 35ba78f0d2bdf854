"""Rules on what compiles: nvcc with gcc, glibc and the GPUs' architectures, and C++ standards."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from envbuilder.compat.context import CheckContext
from envbuilder.compat.problem import Change, CheckCode, Move, Problem, cite
from envbuilder.compat.tables.cuda import architecture_key
from envbuilder.compat.tables.torch import version_key
from envbuilder.core.findings import Severity

_STANDARD: Final = re.compile(r"--?std=(?:c|gnu)\+\+(\d\w)")
# The drafts' names for what became a standard, and the one before 2000.
_OLD_NAMES: Final = {"98": 3, "0x": 11, "1y": 14, "1z": 17, "2a": 20, "2b": 23, "2c": 26}


def check_nvcc_gcc(context: CheckContext) -> Iterator[Problem]:
    cuda, gcc = context.cuda, context.recipe.gcc
    if cuda is None:
        return
    source = cite(context.tables.cudas, cuda.source, "host_config", "debian-bullseye", "debian-trixie")
    able = f"nvcc {cuda.cuda} takes gcc {cuda.gcc_min} to {cuda.gcc_max}"
    if int(gcc) > int(cuda.gcc_max):
        yield Problem(
            code=CheckCode.NVCC_GCC_NEW,
            key="gcc",
            message=f"{able}, not {gcc} (`unsupported GNU version`)",
            pins=("gcc", "cuda", "base"),
            source=source,
        )
    elif int(gcc) < int(cuda.gcc_min):
        yield Problem(
            code=CheckCode.NVCC_GCC_OLD,
            key="gcc",
            message=f"{able}, not {gcc}",
            pins=("gcc", "cuda", "base"),
            source=cite(context.tables.cudas, cuda.source, "spack", "nixpkgs"),
        )


def check_broken_gcc(context: CheckContext) -> Iterator[Problem]:
    for broken in context.cuda.broken_gccs if context.cuda else ():
        if context.cuda and broken.holds(context.gcc):
            yield Problem(
                code=CheckCode.NVCC_GCC_BROKEN,
                key="gcc",
                message=f"nvcc {context.cuda.cuda} accepts gcc {context.gcc} and fails with it: {broken.why}",
                pins=("gcc", "cuda", "base"),
                source=cite(context.tables.cudas, context.cuda.source, "gcc-100102", "nccl-650"),
                severity=Severity.ERROR if broken.certain else Severity.WARNING,
            )


def check_nvcc_glibc(context: CheckContext) -> Iterator[Problem]:
    cuda, row = context.cuda, context.distribution
    if cuda and row and cuda.glibc_below and version_key(row.glibc) >= version_key(cuda.glibc_below):
        yield Problem(
            code=CheckCode.NVCC_GLIBC,
            key="base",
            message=f"the headers of CUDA {cuda.cuda} clash with glibc {cuda.glibc_below} and newer "
            f"(`exception specification is incompatible`), and {row.name} has {row.glibc}",
            pins=("cuda", "base"),
            source=cite(context.tables.cudas, cuda.source, "math_functions", "debian-trixie", "shipped"),
        )


def check_architectures(context: CheckContext) -> Iterator[Problem]:
    cuda = context.cuda
    for key, gpu in context.gpus if cuda else ():
        if cuda is None or cuda.can_target(gpu.capability):
            continue
        plain = [name for name in cuda.architectures if name[-1].isdigit()]
        is_old = architecture_key(gpu.capability) < architecture_key(plain[0])
        able = context.tables.compiling[gpu.capability]
        span = f": CUDA {able[0]} to {able[-1]} can" if able else ""
        yield Problem(
            code=CheckCode.ARCHITECTURE,
            key=key,
            message=f"nvcc {cuda.cuda} {'no longer compiles' if is_old else 'does not compile'} for {gpu.name} "
            f"({gpu.target}), only for {_target(plain[0])} to {_target(plain[-1])}{span}",
            pins=("cuda",),
            source=cite(context.tables.cudas, cuda.source, "ptxas", "debian-bullseye"),
        )


def check_architecture_names(context: CheckContext) -> Iterator[Problem]:
    torch = context.torch
    if torch is None or not _has_cuda_sources(context):
        return
    for key, gpu in context.gpus:
        if gpu.capability in torch.arch_names:
            continue
        able = context.tables.naming[gpu.capability]
        since = f"; torch {able[0]} was the first that does" if able else ""
        yield Problem(
            code=CheckCode.ARCHITECTURE_NAME,
            key=key,
            message=f"torch {torch.version} does not compile extensions for {gpu.name}: its TORCH_CUDA_ARCH_LIST "
            f"does not know {gpu.capability}{since}",
            pins=("pytorch",),
            source=cite(context.tables.torches, torch.source, "wheels"),
        )


def check_torch_gcc(context: CheckContext) -> Iterator[Problem]:
    torch = context.torch
    if torch and torch.gcc_min and int(context.recipe.gcc) < int(torch.gcc_min):
        yield Problem(
            code=CheckCode.TORCH_GCC,
            key="gcc",
            message=f"the headers of torch {torch.version} need gcc {torch.gcc_min} or newer, not {context.recipe.gcc}",
            pins=("gcc", "base", "pytorch"),
            source=cite(context.tables.torches, torch.source, "wheels"),
        )


def check_torch_gcc_bounds(context: CheckContext) -> Iterator[Problem]:
    bound = context.torch.gcc_bound(context.recipe.cuda) if context.torch else None
    if bound and context.torch and not bound.allows(context.gcc):
        yield Problem(
            code=CheckCode.TORCH_GCC_BOUND,
            key="gcc",
            message=f"torch {context.torch.version} refuses gcc {context.gcc} in a setup.py with CUDA {bound.cuda} (it takes "
            f"{bound.allowed}); extensions of this recipe and `load()` are not asked",
            pins=("gcc",),
            advice="TORCH_DONT_CHECK_COMPILER_ABI=1 makes a setup.py skip this check",
            source=cite(context.tables.torches, context.torch.source, "wheels"),
            severity=Severity.WARNING,
        )


def check_standards(context: CheckContext) -> Iterator[Problem]:
    """What torch compiles extensions with by default, against nvcc and gcc: also for those that users compile later."""
    torch = context.torch
    if torch is None:
        return
    if context.cuda and torch.std > context.cuda.std_max:
        yield Problem(
            code=CheckCode.STANDARD_NVCC,
            key="cuda",
            message=f"torch {torch.version} compiles extensions as C++{torch.std}, and nvcc {context.cuda.cuda} knows "
            f"C++{context.cuda.std_max} at most",
            pins=("cuda", "pytorch"),
            source=cite(context.tables.cudas, context.cuda.source, "nvcc", "older-nvcc"),
        )
    since = gcc_for(context, torch.std)
    if since and version_key(context.gcc) < version_key(since):
        yield Problem(
            code=CheckCode.STANDARD_GCC,
            key="gcc",
            message=f"torch {torch.version} compiles extensions as C++{torch.std}, which gcc knows from {since} on, "
            f"not {context.gcc}",
            pins=("gcc", "base", "pytorch"),
            source=cite(context.tables.standards, ()),
        )


def check_extension_standards(context: CheckContext) -> Iterator[Problem]:
    """What the recipe's own flags ask for."""
    torch = context.torch
    for index, extension in enumerate(context.recipe.extensions):
        for name, flags in (("cflags", extension.cflags), ("cuda_cflags", extension.cuda_cflags)):
            number, asked = asked_standard(flags)
            if not asked:
                continue
            key = f"extensions[{index}].{name}[{number}]"
            is_nvcc = name == "cuda_cflags"
            if torch and asked < torch.std_min:
                yield Problem(
                    code=CheckCode.STANDARD_TORCH,
                    key=key,
                    message=f"the headers of torch {torch.version} need C++{torch.std_min} or newer, not C++{asked}",
                    moves=_flag(key, torch.std_min),
                    pins=("pytorch",),
                    advice="or leave the flag out: torch adds the right one",
                    source=cite(context.tables.torches, torch.source, "wheels"),
                )
            if is_nvcc and context.cuda and asked > context.cuda.std_max:
                yield Problem(
                    code=CheckCode.STANDARD_NVCC,
                    key=key,
                    message=f"nvcc {context.cuda.cuda} knows C++{context.cuda.std_max} at most, not C++{asked}",
                    moves=_flag(key, context.cuda.std_max),
                    pins=("cuda",),
                    source=cite(context.tables.cudas, context.cuda.source, "nvcc", "older-nvcc"),
                )
            since = gcc_for(context, asked)
            if since and version_key(context.gcc) < version_key(since):
                yield Problem(
                    code=CheckCode.STANDARD_GCC,
                    key=key,
                    message=f"gcc knows C++{asked} from {since} on, not {context.gcc}",
                    moves=_flag(key, torch.std) if torch else (),
                    pins=("gcc", "base"),
                    source=cite(context.tables.standards, ()),
                )


def asked_standard(flags: tuple[str, ...]) -> tuple[int, int]:
    """Which flag sets the C++ standard, and to what: the last one wins, as in the compilers; 0 for none."""
    for number in range(len(flags) - 1, -1, -1):
        found = _STANDARD.fullmatch(flags[number])
        if found:
            name = found[1]
            return number, _OLD_NAMES.get(name) or (int(name) if name.isdecimal() else 0)
    return 0, 0


def _flag(key: str, standard: int) -> tuple[Move, ...]:
    return ((Change(key=key, value=f"-std=c++{standard}"),),)


def gcc_for(context: CheckContext, standard: int) -> str:
    """The first gcc that knows this standard; "" where the tables do not say."""
    return next((row.gcc for row in context.tables.standards.rows if row.standard == standard), "")


def _has_cuda_sources(context: CheckContext) -> bool:
    return any(
        PurePosixPath(source).suffix == ".cu"
        for extension in context.recipe.extensions
        for source in extension.sources
    )


def _target(capability: str) -> str:
    return f"sm_{capability.replace('.', '')}"
