"""Rules on what compiles: nvcc with gcc, glibc and the GPUs' architectures, and C++ standards."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from packaging.specifiers import SpecifierSet

from envbuilder.compat.context import CheckCode, CheckContext, Move, PinChange, Problem, warning
from envbuilder.compat.tables.cuda import architecture_key, target
from envbuilder.compat.tables.table import cite, version_key

_STANDARD: Final = re.compile(r"--?std=(?:c|gnu)\+\+(\d\w)")
# The names of drafts. C++98 is compared as C++03.
_OLD_NAMES: Final = {"98": 3, "0x": 11, "1y": 14, "1z": 17, "2a": 20, "2b": 23, "2c": 26}


def check_nvcc_gcc(context: CheckContext) -> Iterator[Problem]:
    cuda, gcc, pins = context.cuda, context.recipe.gcc, ("gcc", "cuda", "base")
    if cuda is None:
        return
    message = f"nvcc {cuda.cuda} takes gcc {cuda.gcc_min} to {cuda.gcc_max}, not {gcc}"
    if int(gcc) > int(cuda.gcc_max):
        message += " (`unsupported GNU version`)"
        source = cite(cuda.source, "host_config", "debian-bullseye", "debian-trixie")
        yield Problem(CheckCode.NVCC_GCC_NEW, "gcc", message, pins=pins, source=source)
    elif int(gcc) < int(cuda.gcc_min):
        source = cite(cuda.source, "spack", "nixpkgs")
        yield Problem(CheckCode.NVCC_GCC_OLD, "gcc", message, pins=pins, source=source)


def check_broken_gcc(context: CheckContext) -> Iterator[Problem]:
    cuda = context.cuda
    for broken in cuda.broken_gccs if cuda else ():
        if cuda and broken.holds(context.gcc):
            message = f"nvcc {cuda.cuda} accepts gcc {context.gcc} and fails with it: {broken.why}"
            pins, source = ("gcc", "cuda", "base"), cite(cuda.source, "gcc-100102", "nccl-650")
            make = Problem if broken.certain else warning
            yield make(CheckCode.NVCC_GCC_BROKEN, "gcc", message, pins=pins, source=source)


def check_nvcc_glibc(context: CheckContext) -> Iterator[Problem]:
    cuda, row = context.cuda, context.distribution
    if cuda and row and cuda.glibc_below and version_key(row.glibc) >= version_key(cuda.glibc_below):
        message = (
            f"the headers of CUDA {cuda.cuda} clash with glibc {cuda.glibc_below} and newer "
            f"(`exception specification is incompatible`), and {row.name} has {row.glibc}"
        )
        source = cite(cuda.source, "math_functions", "debian-trixie", "shipped")
        yield Problem(CheckCode.NVCC_GLIBC, "base", message, pins=("cuda", "base"), source=source)


def check_architectures(context: CheckContext) -> Iterator[Problem]:
    cuda = context.cuda
    for key, gpu in context.gpus:
        if cuda is None or cuda.can_target(gpu.capability):
            continue
        plain = [name for name in cuda.architectures if name[-1].isdigit()]
        is_old = architecture_key(gpu.capability) < architecture_key(plain[0])
        able = [row.cuda for row in context.tables.cudas.rows if row.can_target(gpu.capability)]
        span = f": CUDA {able[0]} to {able[-1]} can" if able else ""
        message = (
            f"nvcc {cuda.cuda} {'no longer compiles' if is_old else 'does not compile'} for {gpu.name} "
            f"({gpu.target}), only for {target(plain[0])} to {target(plain[-1])}{span}"
        )
        source = cite(cuda.source, "ptxas", "debian-bullseye")
        yield Problem(CheckCode.ARCHITECTURE, key, message, pins=("cuda",), source=source)


def check_architecture_names(context: CheckContext) -> Iterator[Problem]:
    torch, sources = (
        context.torch,
        [source for extension in context.recipe.extensions for source in extension.sources],
    )
    if torch is None or not any(PurePosixPath(source).suffix == ".cu" for source in sources):
        return
    for key, gpu in context.gpus:
        if gpu.capability in torch.arch_names:
            continue
        able = [row.version for row in context.torches.rows if gpu.capability in row.arch_names]
        since = f"; torch {able[0]} was the first that does" if able else ""
        why = f"its TORCH_CUDA_ARCH_LIST does not know {gpu.capability}{since}"
        message = f"torch {torch.version} does not compile extensions for {gpu.name}: {why}"
        source = cite(torch.source, "wheels")
        yield Problem(CheckCode.ARCHITECTURE_NAME, key, message, pins=("pytorch",), source=source)


def check_torch_gcc(context: CheckContext) -> Iterator[Problem]:
    torch, gcc = context.torch, context.recipe.gcc
    if torch and torch.gcc_min and int(gcc) < int(torch.gcc_min):
        message = f"the headers of torch {torch.version} need gcc {torch.gcc_min} or newer, not {gcc}"
        pins, source = ("gcc", "base", "pytorch"), cite(torch.source, "wheels")
        yield Problem(CheckCode.TORCH_GCC, "gcc", message, pins=pins, source=source)


def check_torch_gcc_bounds(context: CheckContext) -> Iterator[Problem]:
    torch, cuda = context.torch, context.recipe.cuda_minor
    bound = dict(torch.gcc_bounds).get(cuda) if torch else None
    if torch and bound and context.gcc not in SpecifierSet(bound):
        message = (
            f"torch {torch.version} refuses gcc {context.gcc} in a setup.py with CUDA {cuda} (it takes "
            f"{bound}); extensions of this recipe and `load()` are not asked"
        )
        advice = "TORCH_DONT_CHECK_COMPILER_ABI=1 makes a setup.py skip this check"
        source = cite(torch.source, "wheels")
        yield warning(CheckCode.TORCH_GCC_BOUND, "gcc", message, pins=("gcc",), advice=advice, source=source)


def check_standards(context: CheckContext) -> Iterator[Problem]:
    """The default standard of torch must suit nvcc and gcc, also for extensions that users compile later."""
    torch, cuda = context.torch, context.cuda
    if torch is None:
        return
    asks = f"torch {torch.version} compiles extensions as C++{torch.std}"
    if cuda and torch.std > cuda.std_max:
        message = f"{asks}, and nvcc {cuda.cuda} knows C++{cuda.std_max} at most"
        source = cite(cuda.source, "nvcc", "older-nvcc")
        yield Problem(CheckCode.STANDARD_NVCC, "cuda", message, pins=("cuda", "pytorch"), source=source)
    if since := _newer_gcc(context, torch.std):
        message = f"{asks}, which gcc knows from {since} on, not {context.gcc}"
        pins, source = ("gcc", "base", "pytorch"), cite(context.tables.standards.sources)
        yield Problem(CheckCode.STANDARD_GCC, "gcc", message, pins=pins, source=source)


def check_extension_standards(context: CheckContext) -> Iterator[Problem]:
    """The standards that the recipe's own flags set."""
    for index, extension in enumerate(context.recipe.extensions):
        for name, flags in (("cflags", extension.cflags), ("cuda_cflags", extension.cuda_cflags)):
            number, asked = asked_standard(flags)
            if asked:
                key = f"extensions[{index}].{name}[{number}]"
                yield from _check_flag(context, key, asked, is_nvcc=name == "cuda_cflags")


def _check_flag(context: CheckContext, key: str, asked: int, *, is_nvcc: bool) -> Iterator[Problem]:
    torch, cuda = context.torch, context.cuda
    if torch and asked < torch.std_min:
        message = f"the headers of torch {torch.version} need C++{torch.std_min} or newer, not C++{asked}"
        moves, source = _flag(key, torch.std_min), cite(torch.source, "wheels")
        advice = "or leave the flag out: torch adds the right one"
        yield Problem(
            CheckCode.STANDARD_TORCH,
            key,
            message,
            moves=moves,
            pins=("pytorch",),
            advice=advice,
            source=source,
        )
    if is_nvcc and cuda and asked > cuda.std_max:
        message = f"nvcc {cuda.cuda} knows C++{cuda.std_max} at most, not C++{asked}"
        moves, source = _flag(key, cuda.std_max), cite(cuda.source, "nvcc", "older-nvcc")
        yield Problem(CheckCode.STANDARD_NVCC, key, message, moves=moves, pins=("cuda",), source=source)
    if since := _newer_gcc(context, asked):
        message = f"gcc knows C++{asked} from {since} on, not {context.gcc}"
        moves, source = _flag(key, torch.std) if torch else (), cite(context.tables.standards.sources)
        yield Problem(CheckCode.STANDARD_GCC, key, message, moves=moves, pins=("gcc", "base"), source=source)


def asked_standard(flags: tuple[str, ...]) -> tuple[int, int]:
    """Return the index of the flag that sets the C++ standard, and the standard; 0 for none.

    The last flag wins, as in the compilers.
    """
    for number in range(len(flags) - 1, -1, -1):
        if match := _STANDARD.fullmatch(flags[number]):
            name = match[1]
            return number, _OLD_NAMES.get(name) or (int(name) if name.isdecimal() else 0)
    return 0, 0


def _flag(key: str, standard: int) -> tuple[Move, ...]:
    return ((PinChange(key, f"-std=c++{standard}"),),)


def _newer_gcc(context: CheckContext, standard: int) -> str:
    """Return the first gcc that knows this standard, if it is newer than the recipe's; "" otherwise or if unknown."""
    since = next((row.gcc for row in context.tables.standards.rows if row.standard == standard), "")
    return since if since and version_key(context.gcc) < version_key(since) else ""
