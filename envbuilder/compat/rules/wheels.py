"""Rules on what is installed: torch's wheel against Python, GPUs, CUDA and glibc, and packages against torch."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from envbuilder.compat.context import CheckContext, can_run, demands
from envbuilder.compat.problem import Change, CheckCode, Problem, cite, either, is_ahead
from envbuilder.compat.tables.cuda import Cuda
from envbuilder.compat.tables.torch import Build, version_key
from envbuilder.core.findings import Severity

# Wheels of a CUDA compiler that only work together, each in the compiler's own version.
COMPILER: Final = "nvidia-cuda-nvcc"
COMPILER_PARTS: Final = ("nvidia-nvvm", "nvidia-cuda-crt")
TOOLKIT_PACKAGE: Final = "cuda-toolkit"  # its extra `nvcc` brings the compiler
_COMPILER_EXTRAS: Final = frozenset({"nvcc", "all"})


def check_torch_python(context: CheckContext) -> Iterator[Problem]:
    torch = context.torch
    if torch and context.recipe.python not in torch.pythons:
        yield Problem(
            code=CheckCode.TORCH_PYTHON,
            key="pytorch",
            message=f"torch {torch.version} has no wheel for Python {context.recipe.python}; it has "
            f"{', '.join(torch.pythons)}",
            pins=("pytorch", "base"),
            source=cite(context.tables.torches, torch.source, "index"),
        )


def check_torch_glibc(context: CheckContext) -> Iterator[Problem]:
    torch, row = context.torch, context.distribution
    if torch and row and version_key(row.glibc) < version_key(torch.glibc):
        yield Problem(
            code=CheckCode.TORCH_GLIBC,
            key="base",
            message=f"the wheel of torch {torch.version} needs glibc {torch.glibc} or newer, and {row.name} has {row.glibc}",
            pins=("base", "pytorch"),
            source=cite(context.tables.torches, torch.source, "index", "release-md"),
        )


def check_torch_cuda(context: CheckContext) -> Iterator[Problem]:
    """Another major version than the build that is installed refuses or crashes; another minor one works."""
    torch, build, cuda = context.torch, context.build, context.recipe.cuda
    is_newer = not context.cuda and is_ahead(cuda, context.tables.cudas.rows[-1].cuda) if cuda else False
    if torch is None or build is None or build.cuda == cuda or not (context.cuda or is_newer):
        return
    listing = f"torch {torch.version} is built against CUDA {either([build.cuda, *_others(context, build)])}, not {cuda}"
    source = cite(context.tables.torches, torch.source, "wheels")
    if build.cuda.partition(".")[0] == cuda.partition(".")[0]:
        if context.cuda and cuda not in context.tables.toolkits:
            return  # that it cannot be laid out is enough
        yield Problem(
            code=CheckCode.TORCH_CUDA_MINOR,
            key="cuda",
            message=f"{listing}: extensions compile and load, as the major version is the same",
            pins=("cuda", "pytorch"),
            source=source,
            severity=Severity.WARNING,
        )
        return
    yield Problem(
        code=CheckCode.TORCH_CUDA,
        key="cuda",
        message=f"{listing}; the package index's build, for {build.cuda}, would be installed",
        pins=("cuda", "pytorch"),
        source=source,
    )


def _others(context: CheckContext, build: Build) -> list[str]:
    builds = (context.torch.build, *context.torch.other_builds) if context.torch else ()
    return [one.cuda for one in builds if one is not build]


def check_kernels(context: CheckContext) -> Iterator[Problem]:
    """A GPU runs machine code of its own major version up to its minor one, and compiles older PTX for itself."""
    torch, build = context.torch, context.build
    if torch is None or build is None or not build.architectures:
        return
    for key, gpu in context.gpus:
        if can_run(gpu.capability, build.architectures, build.ptx):
            continue
        able = context.tables.running[gpu.capability]
        span = f"; the first that has is {able[0]}, the last {able[-1]}" if able else ""
        held = " ".join(f"sm_{name.replace('.', '')}" for name in build.architectures)
        yield Problem(
            code=CheckCode.KERNELS,
            key=key,
            message=f"torch {torch.version}+{build.name} has no code for {gpu.name} ({gpu.target}), only {held}{span}",
            pins=("pytorch", "cuda"),
            source=cite(
                context.tables.torches, torch.source, "wheels" if build is torch.build else "builder"
            ),
        )


def check_numpy(context: CheckContext) -> Iterator[Problem]:
    yield from _check_bound(context, "numpy", CheckCode.NUMPY, "works with", "pytorch-107302")


def check_setuptools(context: CheckContext) -> Iterator[Problem]:
    yield from _check_bound(
        context, "setuptools", CheckCode.SETUPTOOLS, "compiles extensions with", "setuptools-trial"
    )


def _check_bound(
    context: CheckContext, name: str, code: CheckCode, does: str, source: str
) -> Iterator[Problem]:
    """The resolver keeps to torch's bounds by itself; a recipe can only demand what no version meets."""
    torch = context.torch
    bound = "" if torch is None else torch.numpy if name == "numpy" else torch.setuptools
    asked = demands(context, name)
    if torch is None or not bound or not asked:
        return
    wanted = SpecifierSet(",".join(str(requirement.specifier) for _, requirement in asked))
    if can_meet(wanted, SpecifierSet(bound)):
        return
    key = next(
        (key for key, one in asked if not can_meet(one.specifier, SpecifierSet(bound))),
        asked[-1][0],
    )
    yield Problem(
        code=code,
        key=key,
        message=f"torch {torch.version} {does} {name}{bound}, and the recipe asks for {name}{wanted}",
        pins=("pytorch",),
        moves=(tuple(Change(key=key, value=f"{name}{bound}") for key, _ in asked),),
        source=cite(context.tables.torches, torch.source, source),
    )


def can_meet(first: SpecifierSet, second: SpecifierSet) -> bool:
    """Whether any version is in both: tried with the versions that they name and those just below and above."""
    both = first & second
    return any(both.contains(version, prereleases=True) for one in both for version in _around(one.version))


def _around(version: str) -> tuple[str, ...]:
    try:
        release = list(Version(version.removesuffix(".*")).release)
    except InvalidVersion:  # `===` takes any text
        return ()
    above = ".".join(map(str, [*release, 1]))
    while release and release[-1] == 0:
        release.pop()
    below = ".".join(map(str, [*release[:-1], release[-1] - 1, 999])) if release else "0"
    after = ".".join(map(str, [*release[:-1], release[-1] + 1])) if release else "1"
    return version.removesuffix(".*"), above, below, after


def check_compiler_parts(context: CheckContext) -> Iterator[Problem]:
    """A compiler from the package index whose other parts nothing holds comes with the newest of them, which fail with it.

    `ptxas` refuses the newer `nvvm`'s code ("Unsupported .version"); only some releases of `cuda-toolkit` hold them.
    """
    held = {part: demands(context, part) for part in COMPILER_PARTS}
    if all(any(_holds(requirement) for _, requirement in asked) for asked in held.values()):
        return
    missing = [part for part in COMPILER_PARTS if not held[part]]
    for loose in _loose_compilers(context):
        pins = tuple(
            Change(key=f"packages[{len(context.recipe.packages) + index}]", value=f"{part}=={loose.parts}")
            for index, part in enumerate(missing)
        )
        yield Problem(
            code=CheckCode.COMPILER_PARTS,
            key=loose.key,
            message=f"{loose.asker} leaves {' and '.join(COMPILER_PARTS)} to the resolver, which takes those of CUDA "
            f"{context.tables.cudas.rows[-1].cuda}: every compile fails (`Unsupported .version`)",
            pins=loose.pins,
            moves=(pins,) if pins else (),
            advice=f"hold {' and '.join(COMPILER_PARTS)} at the compiler's own version",
            source=cite(context.tables.cudas, loose.cuda.source, "toolkit_metadata"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loose:
    """A compiler that is asked for without its parts."""

    key: str
    asker: str  # for the message
    cuda: Cuda
    parts: str  # the version that its parts must have
    pins: tuple[str, ...]


def _loose_compilers(context: CheckContext) -> Iterator[_Loose]:
    pinned = context.torch.cuda_toolkit if context.torch and context.build is context.torch.build else ""
    for key, requirement in demands(context, TOOLKIT_PACKAGE):
        release = _exact(requirement) or pinned
        cuda = _with_unpinned(context, release)
        if requirement.extras & _COMPILER_EXTRAS and cuda:
            asker = f"`{requirement}`, of which torch and the recipe make {release},"
            yield _Loose(key=key, asker=asker, cuda=cuda, parts=_parts(cuda), pins=("pytorch",))
    for key, requirement in demands(context, COMPILER):
        release = _exact(requirement)
        cuda = context.tables.cuda.get(".".join(release.split(".")[:2]))
        if cuda and cuda is not context.tables.cudas.rows[-1]:
            parts = release if release.count(".") > 1 else _parts(cuda)
            yield _Loose(key=key, asker=f"`{requirement}`", cuda=cuda, parts=parts, pins=())
    cuda = _with_unpinned(context, pinned)
    if cuda and cuda is context.cuda and cuda.cuda not in context.tables.toolkits:
        asker = f"{TOOLKIT_PACKAGE} {pinned}, which torch {context.recipe.pytorch} pins,"
        yield _Loose(key="cuda", asker=asker, cuda=cuda, parts=_parts(cuda), pins=("cuda", "pytorch"))


def _parts(cuda: Cuda) -> str:
    return cuda.compiler or f"{cuda.cuda}.*"


def _with_unpinned(context: CheckContext, release: str) -> Cuda | None:
    return next((row for row in context.tables.cudas.rows if release and release in row.unpinned), None)


def _exact(requirement: Requirement) -> str:
    """13.0.2 of `==13.0.2`, "" of any other bound."""
    found = re.fullmatch(r"={2,3}\s*(\d+(\.\d+)*)(\.\*)?", str(requirement.specifier))
    return found[1] if found else ""


def _holds(requirement: Requirement) -> bool:
    return any(one.operator in {"==", "===", "<", "<=", "~="} for one in requirement.specifier)
