"""Rules on the machine that will run the environment, by its host facts: driver and GPUs."""

from collections.abc import Iterator
from typing import Final

from envbuilder.compat.context import CheckCode, CheckContext, PinChange, Problem, Tables, can_run, warning
from envbuilder.compat.host_file import find_name
from envbuilder.compat.tables.cuda import Cuda, GpuModel
from envbuilder.compat.tables.table import cite, version_key

_DRIVERS: Final = ("nvidia-drivers", "nvidia-compatibility", "driver-616")


def check_driver(context: CheckContext) -> Iterator[Problem]:
    """NVIDIA's three rules: the toolkit's own driver, then minor-version, then forward compatibility.

    https://docs.nvidia.com/deploy/cuda-compatibility
    """
    cuda, host = runtime(context), context.host
    if cuda is None or host is None or not host.driver or not cuda.driver_floor:
        return
    source = cite(cuda.source, *_DRIVERS)
    driver = version_key(host.driver)
    if driver >= version_key(cuda.driver_floor):
        if cuda.driver and driver < version_key(cuda.driver):
            message = (
                f"`{host.path}`: driver {host.driver} runs CUDA {cuda.cuda} by minor-version compatibility; what "
                f"is compiled at run time from PTX needs {cuda.driver}"
            )
            advice = "the recipe's extensions hold machine code for its GPUs, so they are not concerned"
            yield warning(CheckCode.DRIVER_MINOR, "cuda", message, advice=advice, source=source)
        return
    message = (
        f"CUDA {cuda.cuda} needs driver {cuda.driver_floor} or newer, and `{host.path}` says {host.driver}"
    )
    advice = "have the host's driver updated"
    package = f"cuda-compat-{cuda.cuda.replace('.', '-')}"
    branch = f"R{host.driver.partition('.')[0]}"
    branches = [f"R{number}" for number in cuda.forward_branches or ()]
    consumer = [gpu.name for gpu in known_gpus(context) if not gpu.has_forward_compatibility]
    if branch in branches and not consumer:
        message += f": it runs by forward compatibility alone, with NVIDIA's package {package}, which takes the branch {branch}"
        advice = f"put the libcuda of {package} before the driver's on LD_LIBRARY_PATH, or {advice}"
        source = cite(cuda.source, "nvidia-images", *_DRIVERS)
        yield warning(CheckCode.DRIVER_FORWARD, "cuda", message, advice=advice, source=source)
        return
    if branch in branches:
        why = f"forward compatibility ({package}) is not for {', '.join(dict.fromkeys(consumer))}"
    elif cuda.forward_branches is None:
        why = f"whether forward compatibility ({package}) takes {branch} is not known"
    else:
        why = f"forward compatibility ({package}) takes {', '.join(branches)}, not {branch}"
    message, pins = f"{message}; {why}", ("cuda", "pytorch")
    yield Problem(CheckCode.DRIVER, "cuda", message, pins=pins, advice=advice, source=source)


def check_host_gpus(context: CheckContext) -> Iterator[Problem]:
    """Extensions hold machine code for the recipe's GPUs alone."""
    host = context.host
    if host is None or not context.recipe.cuda:
        return
    if host.gpus == ():
        has = f"`{host.path}` has no GPU{'' if host.driver else ' and no driver'}, as on a login node"
        message = f"{has}: whether the environment runs on the nodes that have one is not checked"
        advice = "`envbuilder detect --save FILE` on a compute node writes facts that can be judged"
        yield warning(CheckCode.HOST_EMPTY, "gpus", message, advice=advice)
    held = tuple(gpu.capability for _, gpu in context.gpus)
    targets = ", ".join(dict.fromkeys(gpu.target for _, gpu in context.gpus))
    for given in dict.fromkeys(host.gpus or ()):
        gpu = _known(given, context.tables)
        if gpu is None:
            message = f"`{host.path}`: no GPU `{given}` is known, so it is not checked"
            advice = f"GPUs: {', '.join(context.tables.gpus.by_name)}"
            yield warning(CheckCode.HOST_GPU_UNKNOWN, "gpus", message, advice=advice)
        elif held and not can_run(gpu.capability, held):
            message = f"the recipe compiles for {targets}, which {gpu.name} ({gpu.target}) of `{host.path}` cannot run"
            source = cite(gpu.source)
            moves = ((PinChange(f"gpus[{len(context.recipe.gpus)}]", gpu.name),),)
            pins = ("cuda", "pytorch")
            yield Problem(CheckCode.HOST_GPU, "gpus", message, moves=moves, pins=pins, source=source)


def runtime(context: CheckContext) -> Cuda | None:
    """Return the row of the newest CUDA inside: torch's libraries or the toolkit; None without CUDA."""
    rows = [context.tables.cudas.by_name.get(context.build.cuda) if context.build else None, context.cuda]
    known = [row for row in rows if row]
    return max(known, key=lambda row: version_key(row.cuda), default=None)


def known_gpus(context: CheckContext) -> tuple[GpuModel, ...]:
    given = (context.host and context.host.gpus) or ()
    named = [_known(name, context.tables) for name in given]
    return tuple(gpu for gpu in named if gpu) or tuple(gpu for _, gpu in context.gpus)


def _known(given: str, tables: Tables) -> GpuModel | None:
    name = find_name(given, tuple(tables.gpus.by_name))
    return tables.gpus.by_name[name] if name else None
