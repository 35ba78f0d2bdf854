"""The input of every rule: the tables, and one recipe with the rows that its pins name."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuilder.compat.host_file import HostFacts
from envbuilder.compat.image_as_distribution import as_distribution
from envbuilder.compat.image_facts import Base
from envbuilder.compat.tables.cuda import Cuda, architecture_key, load_cudas
from envbuilder.compat.tables.distribution import Distribution, load_all_distributions
from envbuilder.compat.tables.gpu import Gpu, load_gpus
from envbuilder.compat.tables.python import Python, load_pythons
from envbuilder.compat.tables.standard import Standard, load_standards
from envbuilder.compat.tables.table import Table
from envbuilder.compat.tables.torch import Build, Torch, load_torches
from envbuilder.recipe.model import Recipe


@dataclass(frozen=True, kw_only=True)
class Tables:
    """What the rules look things up in; the indexes are made on first use, so this one has no slots."""

    distributions: Table[Distribution]  # also those that cannot be built on
    gpus: Table[Gpu]
    torches: Table[Torch]
    cudas: Table[Cuda]
    pythons: Table[Python]
    standards: Table[Standard]
    toolkits: frozenset[str]  # the CUDA versions that can be laid out, e.g. 12.4

    @functools.cached_property
    def distribution(self) -> Mapping[str, Distribution]:
        return {row.name: row for row in self.distributions.rows}

    @functools.cached_property
    def bases(self) -> tuple[Distribution, ...]:
        """Those that an environment can stand on."""
        return tuple(row for row in self.distributions.rows if row.buildable)

    @functools.cached_property
    def gpu(self) -> Mapping[str, Gpu]:
        return {row.name: row for row in self.gpus.rows}

    @functools.cached_property
    def torch(self) -> Mapping[str, Torch]:
        return {row.version: row for row in self.torches.rows}

    @functools.cached_property
    def cuda(self) -> Mapping[str, Cuda]:
        return {row.cuda: row for row in self.cudas.rows}

    @functools.cached_property
    def python(self) -> Mapping[str, Python]:
        return {row.python: row for row in self.pythons.rows}

    @functools.cached_property
    def compiling(self) -> Mapping[str, tuple[str, ...]]:
        """The CUDA versions that compile for each GPU's capability, oldest first."""
        return {
            capability: tuple(row.cuda for row in self.cudas.rows if row.can_target(capability))
            for capability in self._capabilities
        }

    @functools.cached_property
    def naming(self) -> Mapping[str, tuple[str, ...]]:
        """The releases of torch whose TORCH_CUDA_ARCH_LIST knows each GPU's capability, oldest first."""
        return {
            capability: tuple(row.version for row in self.torches.rows if capability in row.arch_names)
            for capability in self._capabilities
        }

    @functools.cached_property
    def running(self) -> Mapping[str, tuple[str, ...]]:
        """The builds of torch that run on each GPU's capability, oldest first: 2.6.0+cu124."""
        return {
            capability: tuple(
                f"{row.version}+{build.name}"
                for row in self.torches.rows
                for build in (row.build, *row.other_builds)
                if can_run(capability, build.architectures, build.ptx)
            )
            for capability in self._capabilities
        }

    @property
    def _capabilities(self) -> frozenset[str]:
        return frozenset(gpu.capability for gpu in self.gpus.rows)


def load_tables(toolkits: Iterable[str]) -> Tables:
    """The tables that envbuilder brings, with the CUDA versions of `tables.toolkit`."""
    return Tables(
        distributions=load_all_distributions(),
        gpus=load_gpus(),
        torches=load_torches(),
        cudas=load_cudas(),
        pythons=load_pythons(),
        standards=load_standards(),
        toolkits=frozenset(toolkits),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """One recipe with the rows that its pins name; None where a pin names none, which one rule reports."""

    recipe: Recipe
    tables: Tables
    host: HostFacts | None  # the machine it is to run on, where one was given
    base: Base | None  # the image it stands on, where it stands on one that somebody looked into
    distribution: Distribution | None
    cuda: Cuda | None  # None without CUDA as well
    torch: Torch | None
    build: Build | None  # of torch: the one that is installed; None for the CPU's
    gpus: tuple[tuple[str, Gpu], ...]  # `gpus[0]` → its row

    @property
    def suite(self) -> Distribution | None:
        """The row of the suite that the recipe names, None where it stands on an image."""
        return None if self.recipe.image else self.distribution

    @property
    def gcc(self) -> str:
        """The exact release where the suite's is known (12.2.0), else the recipe's pin (12)."""
        if self.distribution and self.recipe.gcc in self.distribution.gccs:
            return self.distribution.gcc_version(self.recipe.gcc)
        return self.recipe.gcc

    @property
    def python(self) -> str:
        """The exact release where the suite's is known (3.11.2), else the recipe's pin (3.11)."""
        if self.distribution and self.distribution.python == self.recipe.python:
            return self.distribution.python_version
        return self.recipe.python


def make_context(
    recipe: Recipe, tables: Tables, host: HostFacts | None = None, base: Base | None = None
) -> CheckContext:
    torch = tables.torch.get(recipe.pytorch)
    row = tables.distribution.get(recipe.base)
    if recipe.image and base:
        row = as_distribution(base, recipe.python, tables.distribution)
    return CheckContext(
        recipe=recipe,
        tables=tables,
        host=host,
        base=base if recipe.image else None,
        distribution=row,
        cuda=tables.cuda.get(recipe.cuda),
        torch=torch,
        build=installed_build(torch, recipe.cuda) if torch and recipe.cuda else None,
        gpus=tuple(
            (f"gpus[{index}]", tables.gpu[name])
            for index, name in enumerate(recipe.gpus)
            if name in tables.gpu
        ),
    )


def installed_build(torch: Torch, cuda: str) -> Build:
    """The build against exactly this CUDA, else the package index's, as `resolve.wheel.torch_requirement` chooses."""
    return torch.build_for(cuda) or torch.build


@functools.cache
def parse_requirement(text: str) -> Requirement | None:
    """A requirement of a recipe, None for what is none; each is read once, for repairs look at it often."""
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def demands(context: CheckContext, name: str) -> tuple[tuple[str, Requirement], ...]:
    """The recipe's own requirements on one package, `packages[0]` → the requirement; those for other Pythons left out."""
    environment = {
        "python_version": context.recipe.python,
        "python_full_version": context.python,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
    }
    found = []
    for index, text in enumerate(context.recipe.packages):
        requirement = parse_requirement(text)
        if requirement is None or canonicalize_name(requirement.name) != name:
            continue
        if requirement.marker is None or requirement.marker.evaluate(environment):
            found.append((f"packages[{index}]", requirement))
    return tuple(found)


@functools.cache
def can_run(capability: str, architectures: tuple[str, ...], ptx: tuple[str, ...] = ()) -> bool:
    """Whether a GPU runs any of this machine code, or compiles any of this PTX.

    The rule is NVIDIA's: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility. `9.0a` is for 9.0
    alone, `10.0f` for its family.
    """
    major, minor, _ = architecture_key(capability)
    for name in architectures:
        found_major, found_minor, kind = architecture_key(name)
        if found_major == major and (found_minor == minor if kind == "a" else found_minor <= minor):
            return True
    plain = [architecture_key(name) for name in ptx]
    return any(
        kind != "a" and (other_major, other_minor) <= (major, minor)
        for other_major, other_minor, kind in plain
    )
