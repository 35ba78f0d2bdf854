"""Explain a recipe's pins for `show`: one fact a line, each with its source."""

from collections.abc import Iterator
from dataclasses import dataclass

from envbuilder.compat.context import CheckContext, Tables, make_context
from envbuilder.compat.image_facts import Base
from envbuilder.compat.rules.driver import runtime
from envbuilder.compat.tables.cuda import target
from envbuilder.compat.tables.table import cite
from envbuilder.compat.tables.torch import CPU
from envbuilder.core.processor import X86_64
from envbuilder.recipe.model import Recipe


@dataclass(frozen=True, slots=True)
class ExplainedFact:
    name: str
    value: str
    source: str


def facts(recipe: Recipe, tables: Tables, base: Base | None = None) -> tuple[ExplainedFact, ...]:
    """Return the facts of these pins in the tables, and those of a base image. `check` reports pins without a row."""
    context = make_context(recipe, tables, base=base)
    return (
        *_processor(context),
        *_suite(context),
        *_image(context),
        *_torch(context),
        *_cuda(context),
        *_gpus(context),
    )


def driver_floor(recipe: Recipe, tables: Tables) -> str:
    """Return the oldest driver that runs the environment; "" without CUDA, and if unknown."""
    newest = runtime(make_context(recipe, tables))
    return newest.driver_floor if newest else ""


def brief(value: object) -> str:
    """Return a recipe's value for one cell: lists with commas, extensions by their names."""
    if isinstance(value, dict):
        pairs = [f"{key}={item}" for key, item in value.items()]
        return str(value["name"]) if "name" in value else brief(pairs)
    if isinstance(value, list):
        return ", ".join(map(brief, value)) or "-"
    return (str(value).lower() if isinstance(value, bool) else str(value)) or "-"


def _processor(context: CheckContext) -> Iterator[ExplainedFact]:
    """Yield the processor, unless it is x86-64."""
    if context.processor is not X86_64:
        beside = (cite(gpu.source) for _, gpu in context.gpus if gpu.arm_host)
        source = context.recipe.place("$.platform") if context.recipe.platform else next(beside)
        yield ExplainedFact("processor", f"{context.processor.title} ({context.processor.platform})", source)


def _suite(context: CheckContext) -> Iterator[ExplainedFact]:
    row = context.suite
    if row is None:
        return
    source = cite(row.source)
    yield ExplainedFact("glibc", row.glibc, source)
    standalone = context.standalone
    yield ExplainedFact("Python", context.python, cite(standalone.source) if standalone else source)
    yield ExplainedFact("gcc", context.gcc, source)
    yield ExplainedFact("libxcrypt", row.libxcrypt, source)
    python = context.tables.pythons.by_name.get(context.recipe.python)
    if python:
        needs = "included by Python.h" if python.needs_crypt_h(context.python) else "not included by Python.h"
        yield ExplainedFact("crypt.h", needs, cite(python.source))


def _image(context: CheckContext) -> Iterator[ExplainedFact]:
    for fact in context.base.facts if context.base else ():
        place = f"{fact.source} ({fact.path})" if fact.path not in ("", fact.source) else fact.source
        yield ExplainedFact(f"base {fact.name}", fact.value or "there", place)


def _torch(context: CheckContext) -> Iterator[ExplainedFact]:
    torch, build = context.torch, context.build
    if torch is None:
        return
    wheels = cite(torch.source, "wheels")
    is_usual = (build.name if build else CPU) == torch.pypi
    index = "the package index" if is_usual else "PyTorch's own index"
    yield ExplainedFact("torch build", f"{torch.version}+{build.name if build else CPU} from {index}", wheels)
    yield ExplainedFact("torch released", torch.released, cite(torch.source, "index"))
    yield ExplainedFact("torch needs glibc", torch.glibc, wheels)
    if build:
        kernels = [*map(target, build.architectures), *(f"PTX of {target(name)}" for name in build.ptx)]
        origin = wheels if build is torch.build else cite(torch.source, "builder")
        yield ExplainedFact("torch kernels", " ".join(kernels) or "not known", origin)
        chosen, required = context.recipe.nccl_version, torch.nccl or "inside torch's own libraries"
        nccl = f"{chosen} in the place of torch's {required}" if chosen else required
        yield ExplainedFact("NCCL", nccl, wheels)
        yield ExplainedFact("cuDNN", torch.cudnn or "inside torch's own libraries", wheels)
    yield ExplainedFact("C++ standard", f"C++{torch.std}; headers take C++{torch.std_min} and newer", wheels)
    yield ExplainedFact("C++ ABI", "new (cxx11)" if torch.cxx11_abi else "old (before cxx11)", wheels)
    if torch.numpy:
        yield ExplainedFact("numpy", torch.numpy, cite(torch.source, "pytorch-107302", "wheels"))
    if torch.setuptools:
        yield ExplainedFact("setuptools", torch.setuptools, cite(torch.source, "setuptools-trial", "wheels"))


def _cuda(context: CheckContext) -> Iterator[ExplainedFact]:
    cuda, newest = context.cuda, runtime(context)
    if cuda:
        yield ExplainedFact(
            "nvcc takes gcc", f"{cuda.gcc_min} to {cuda.gcc_max}", cite(cuda.source, "host_config")
        )
        yield ExplainedFact(
            "nvcc takes C++", f"up to C++{cuda.std_max}", cite(cuda.source, "nvcc", "older-nvcc")
        )
        if cuda.glibc_below:
            source = cite(cuda.source, "math_functions", "debian-trixie")
            yield ExplainedFact("nvcc takes glibc", f"below {cuda.glibc_below}", source)
    if newest:
        floor = newest.driver_floor or "not known"
        native = f"; {newest.driver} for PTX compiled at run time" if newest.driver else ""
        yield ExplainedFact(
            "driver floor", f"{floor}{native}", cite(newest.source, "nvidia-drivers", "driver-616")
        )
        if newest.forward_branches:
            branches = ", ".join(f"R{branch}" for branch in newest.forward_branches)
            value = f"{branches} with cuda-compat-{newest.cuda.replace('.', '-')}, on data-centre GPUs"
            yield ExplainedFact("forward compatibility", value, cite(newest.source, "nvidia-images"))


def _gpus(context: CheckContext) -> Iterator[ExplainedFact]:
    rows = [gpu for _, gpu in context.gpus]
    if rows:
        targets = dict.fromkeys(gpu.target for gpu in sorted(rows, key=lambda gpu: int(gpu.target[3:])))
        yield ExplainedFact("architectures", " ".join(targets), cite(rows[0].source))
    for gpu in dict.fromkeys(rows):
        yield ExplainedFact(f"{gpu.name} interconnect", gpu.interconnect, cite(gpu.source, "data-sheets"))
