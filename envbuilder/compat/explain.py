"""Explain a recipe's pins for `show`: one fact a line, each with its source."""

from collections.abc import Iterator
from dataclasses import dataclass

from envbuilder.compat.context import CheckContext, Tables, make_context
from envbuilder.compat.image_facts import Base
from envbuilder.compat.problem import cite
from envbuilder.compat.rules.driver import runtime
from envbuilder.recipe.model import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    name: str
    value: str
    source: str


def facts(recipe: Recipe, tables: Tables, base: Base | None = None) -> tuple[Fact, ...]:
    """Everything that the tables know of these pins; nothing for a pin that names no row, which `check` reports.

    Of an image, everything that was found inside.
    """
    context = make_context(recipe, tables, base=base)
    return (*_suite(context), *_image(context), *_torch(context), *_cuda(context), *_gpus(context))


def driver_floor(recipe: Recipe, tables: Tables) -> str:
    """The oldest driver that runs what is inside; "" without CUDA and where it is not known."""
    newest = runtime(make_context(recipe, tables))
    return newest.driver_floor if newest else ""


def brief(value: object) -> str:
    """A recipe's value in one cell: lists with commas, extensions by their names."""
    if isinstance(value, dict):
        return (
            str(value["name"]) if "name" in value else brief([f"{key}={item}" for key, item in value.items()])
        )
    if isinstance(value, list):
        return ", ".join(map(brief, value)) or "-"
    return str(value) or "-"


def _suite(context: CheckContext) -> Iterator[Fact]:
    row = context.suite
    if row is None:
        return
    source = cite(context.tables.distributions, row.source)
    yield Fact(name="glibc", value=row.glibc, source=source)
    yield Fact(name="Python", value=context.python, source=source)
    yield Fact(name="gcc", value=context.gcc, source=source)
    yield Fact(name="libxcrypt", value=row.libxcrypt, source=source)
    python = context.tables.python.get(context.recipe.python)
    if python:
        needs = "included by Python.h" if python.needs_crypt_h(context.python) else "not included by Python.h"
        yield Fact(name="crypt.h", value=needs, source=cite(context.tables.pythons, python.source))


def _image(context: CheckContext) -> Iterator[Fact]:
    for fact in context.base.facts if context.base else ():
        place = f"{fact.source} ({fact.path})" if fact.path not in ("", fact.source) else fact.source
        yield Fact(name=f"base {fact.name}", value=fact.value or "there", source=place)


def _torch(context: CheckContext) -> Iterator[Fact]:
    torch, build = context.torch, context.build
    if torch is None:
        return
    wheels = cite(context.tables.torches, torch.source, "wheels")
    index = "the package index" if build is torch.build else "PyTorch's own index"
    yield Fact(
        name="torch build",
        value=f"{torch.version}+{build.name if build else 'cpu'} from {index}",
        source=wheels,
    )
    yield Fact(
        name="torch released",
        value=torch.released,
        source=cite(context.tables.torches, torch.source, "index"),
    )
    yield Fact(name="torch needs glibc", value=torch.glibc, source=wheels)
    if build:
        origin = wheels if build is torch.build else cite(context.tables.torches, torch.source, "builder")
        held = " ".join(_target(name) for name in build.architectures)
        newer = " ".join(f"PTX of {_target(name)}" for name in build.ptx)
        yield Fact(name="torch kernels", value=f"{held} {newer}".strip() or "not known", source=origin)
        yield Fact(name="NCCL", value=torch.nccl or "inside torch's own libraries", source=wheels)
        yield Fact(name="cuDNN", value=torch.cudnn or "inside torch's own libraries", source=wheels)
    yield Fact(
        name="C++ standard", value=f"C++{torch.std}; headers take C++{torch.std_min} and newer", source=wheels
    )
    yield Fact(
        name="C++ ABI", value="new (cxx11)" if torch.cxx11_abi else "old (before cxx11)", source=wheels
    )
    for name, bound, origin in (
        ("numpy", torch.numpy, "pytorch-107302"), ("setuptools", torch.setuptools, "setuptools-trial"),
    ):  # fmt: skip
        if bound:
            yield Fact(
                name=name, value=bound, source=cite(context.tables.torches, torch.source, origin, "wheels")
            )


def _cuda(context: CheckContext) -> Iterator[Fact]:
    cuda, newest = context.cuda, runtime(context)
    if cuda:
        header = cite(context.tables.cudas, cuda.source, "host_config")
        yield Fact(name="nvcc takes gcc", value=f"{cuda.gcc_min} to {cuda.gcc_max}", source=header)
        yield Fact(
            name="nvcc takes C++",
            value=f"up to C++{cuda.std_max}",
            source=cite(context.tables.cudas, cuda.source, "nvcc", "older-nvcc"),
        )
        if cuda.glibc_below:
            source = cite(context.tables.cudas, cuda.source, "math_functions", "debian-trixie")
            yield Fact(name="nvcc takes glibc", value=f"below {cuda.glibc_below}", source=source)
    if newest:
        source = cite(context.tables.cudas, newest.source, "nvidia-drivers", "driver-616")
        floor = newest.driver_floor or "not known"
        native = f"; {newest.driver} for PTX compiled at run time" if newest.driver else ""
        yield Fact(name="driver floor", value=f"{floor}{native}", source=source)
        if newest.forward_branches:
            branches = ", ".join(f"R{branch}" for branch in newest.forward_branches)
            value = f"{branches} with cuda-compat-{newest.cuda.replace('.', '-')}, on data-centre GPUs"
            source = cite(context.tables.cudas, newest.source, "nvidia-images")
            yield Fact(name="forward compatibility", value=value, source=source)


def _gpus(context: CheckContext) -> Iterator[Fact]:
    rows = [gpu for _, gpu in context.gpus]
    if not rows:
        return
    source = cite(context.tables.gpus, rows[0].source)
    targets = dict.fromkeys(gpu.target for gpu in sorted(rows, key=lambda gpu: int(gpu.target[3:])))
    yield Fact(name="architectures", value=" ".join(targets), source=source)
    for gpu in dict.fromkeys(rows):
        origin = cite(context.tables.gpus, gpu.source, "data-sheets")
        yield Fact(name=f"{gpu.name} interconnect", value=gpu.interconnect, source=origin)


def _target(capability: str) -> str:
    return f"sm_{capability.replace('.', '')}"
