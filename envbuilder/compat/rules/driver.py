"""Rules on the machine that an environment is to run on, as its host facts say: driver and GPUs."""

from collections.abc import Iterator
from typing import Final

from envbuilder.compat.context import CheckContext, Tables, can_run
from envbuilder.compat.host_file import HostFacts, find_name
from envbuilder.compat.problem import Change, CheckCode, Problem, cite
from envbuilder.compat.tables.cuda import Cuda
from envbuilder.compat.tables.gpu import Gpu
from envbuilder.compat.tables.torch import version_key
from envbuilder.core.findings import Severity

_DRIVERS: Final = ("nvidia-drivers", "nvidia-compatibility", "driver-616")


def check_driver(context: CheckContext) -> Iterator[Problem]:
    """NVIDIA's three rules: what a toolkit came with, minor-version compatibility below it, forward below that.

    https://docs.nvidia.com/deploy/cuda-compatibility
    """
    cuda, host = runtime(context), context.host
    if cuda is None or host is None or not host.driver or not cuda.driver_floor:
        return
    source = cite(context.tables.cudas, cuda.source, *_DRIVERS)
    driver = version_key(host.driver)
    if driver >= version_key(cuda.driver_floor):
        if cuda.driver and driver < version_key(cuda.driver):
            yield Problem(
                code=CheckCode.DRIVER_MINOR,
                key="cuda",
                message=f"`{host.path}`: driver {host.driver} runs CUDA {cuda.cuda} by minor-version compatibility; what "
                f"is compiled at run time from PTX needs {cuda.driver}",
                advice="the recipe's extensions hold machine code for its GPUs, so they are not concerned",
                source=source,
                severity=Severity.WARNING,
            )
        return
    needs = (
        f"CUDA {cuda.cuda} needs driver {cuda.driver_floor} or newer, and `{host.path}` says {host.driver}"
    )
    package = f"cuda-compat-{cuda.cuda.replace('.', '-')}"
    takes = cuda.forward_branches is not None and host.driver_branch in cuda.forward_branches
    consumer = [gpu.name for gpu in known_gpus(context) if not gpu.has_forward_compatibility]
    if takes and not consumer:
        yield Problem(
            code=CheckCode.DRIVER_FORWARD,
            key="cuda",
            message=f"{needs}: it runs by forward compatibility alone, with NVIDIA's package {package}, which takes the "
            f"branch R{host.driver_branch}",
            advice=f"put the libcuda of {package} before the driver's on LD_LIBRARY_PATH, or have the host's driver updated",
            source=cite(context.tables.cudas, cuda.source, "nvidia-images", *_DRIVERS),
            severity=Severity.WARNING,
        )
        return
    if takes:
        why = f"forward compatibility ({package}) is not for {', '.join(dict.fromkeys(consumer))}"
    elif cuda.forward_branches is None:
        why = f"whether forward compatibility ({package}) takes R{host.driver_branch} is not known"
    else:
        branches = ", ".join(f"R{branch}" for branch in cuda.forward_branches)
        why = f"forward compatibility ({package}) takes {branches}, not R{host.driver_branch}"
    yield Problem(
        code=CheckCode.DRIVER,
        key="cuda",
        message=f"{needs}; {why}",
        pins=("cuda", "pytorch"),
        advice="have the host's driver updated",
        source=source,
    )


def check_host_gpus(context: CheckContext) -> Iterator[Problem]:
    """Extensions hold machine code for the recipe's GPUs alone."""
    host = context.host
    if host is None or not context.recipe.cuda:
        return
    if host.gpus == ():
        yield Problem(
            code=CheckCode.HOST_EMPTY,
            key="gpus",
            message=f"`{host.path}` has no GPU{'' if host.driver else ' and no driver'}, as on a login node: "
            "whether the environment runs on the nodes that have one is not checked",
            advice="`envbuilder detect --save FILE` on a compute node writes facts that can be judged",
            severity=Severity.WARNING,
        )
    held = tuple(gpu.capability for _, gpu in context.gpus)
    targets = ", ".join(dict.fromkeys(gpu.target for _, gpu in context.gpus))
    for given in dict.fromkeys(host.gpus or ()):
        gpu = _known(given, context.tables)
        if gpu is None:
            yield Problem(
                code=CheckCode.HOST_GPU_UNKNOWN,
                key="gpus",
                message=f"`{host.path}`: no GPU `{given}` is known, so it is not checked",
                advice=f"GPUs: {', '.join(context.tables.gpu)}",
                severity=Severity.WARNING,
            )
        elif held and not can_run(gpu.capability, held):
            yield Problem(
                code=CheckCode.HOST_GPU,
                key="gpus",
                message=f"the recipe compiles for {targets}, which {gpu.name} ({gpu.target}) of `{host.path}` cannot run",
                moves=((Change(key=f"gpus[{len(context.recipe.gpus)}]", value=gpu.name),),),
                pins=("cuda", "pytorch"),
                source=cite(context.tables.gpus, gpu.source),
            )


def runtime(context: CheckContext) -> Cuda | None:
    """The row of the newest CUDA inside: torch's libraries or the toolkit; None without CUDA."""
    rows = [context.tables.cuda.get(context.build.cuda) if context.build else None, context.cuda]
    known = [row for row in rows if row]
    return max(known, key=lambda row: version_key(row.cuda), default=None)


def known_gpus(context: CheckContext) -> tuple[Gpu, ...]:
    host: HostFacts | None = context.host
    named = [_known(given, context.tables) for given in host.gpus or ()] if host else []
    return tuple(gpu for gpu in named if gpu) or tuple(gpu for _, gpu in context.gpus)


def _known(given: str, tables: Tables) -> Gpu | None:
    name = find_name(given, tuple(tables.gpu))
    return tables.gpu[name] if name else None
