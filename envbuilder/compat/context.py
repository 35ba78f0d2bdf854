"""The input of every rule: the tables, and one recipe with the rows that its pins name."""

import functools
from dataclasses import dataclass, field, replace

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuilder.compat.host_file import HostFacts
from envbuilder.compat.image_facts import Base, Name, as_distribution, is_version, suite_of
from envbuilder.compat.tables.cuda import Cuda, architecture_key, load_cudas
from envbuilder.compat.tables.distribution import Distribution, load_distributions
from envbuilder.compat.tables.gpu import Gpu, load_gpus
from envbuilder.compat.tables.language import Python, Standard, load_pythons, load_standards
from envbuilder.compat.tables.standalone import Standalone, load_standalones
from envbuilder.compat.tables.table import Table
from envbuilder.compat.tables.toolkit import all_releases, load_toolkits
from envbuilder.compat.tables.torch import Build, Torch, load_torches
from envbuilder.core.processor import AARCH64, Processor
from envbuilder.recipe.model import Recipe


@dataclass(frozen=True, kw_only=True)
class Tables:
    """All tables that rules read."""

    distributions: Table[Distribution] = field(default_factory=load_distributions)
    gpus: Table[Gpu] = field(default_factory=lambda: _gpus(are_refused=False))
    refused_gpus: Table[Gpu] = field(default_factory=lambda: _gpus(are_refused=True))
    torches: Table[Torch] = field(default_factory=load_torches)
    cudas: Table[Cuda] = field(default_factory=load_cudas)
    pythons: Table[Python] = field(default_factory=load_pythons)
    standalones: Table[Standalone] = field(default_factory=load_standalones)
    standards: Table[Standard] = field(default_factory=load_standards)
    # The releases of CUDA that a source has, oldest first, e.g. 12.4.1.
    releases: tuple[str, ...] = field(
        default_factory=lambda: all_releases(row for row in load_toolkits().rows if row.source != "apt")
    )
    # Those of NVIDIA's apt repositories, for a recipe or an image that names one.
    apt_releases: tuple[str, ...] = field(
        default_factory=lambda: all_releases(row for row in load_toolkits().rows if row.source == "apt")
    )

    @functools.cached_property
    def toolkits(self) -> tuple[str, ...]:
        """The CUDA versions that can be laid out, oldest first, e.g. 12.4."""
        return tuple(dict.fromkeys(release.rpartition(".")[0] for release in self.releases))

    def torches_on(self, processor: Processor) -> Table[Torch]:
        """Return the releases of torch as their wheels for a processor are, without those that have none."""
        return self._arm_torches if processor is AARCH64 else self.torches

    @functools.cached_property
    def _arm_torches(self) -> Table[Torch]:
        rows = tuple(row for one in self.torches.rows if (row := one.on(AARCH64)))
        return replace(self.torches, rows=rows)


def _gpus(*, are_refused: bool) -> Table[Gpu]:
    table = load_gpus()
    return replace(table, rows=tuple(gpu for gpu in table.rows if bool(gpu.refused) == are_refused))


@functools.cache
def load_tables() -> Tables:
    return Tables()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """One recipe with the rows that its pins name. A pin without a row gives None; one rule reports it."""

    recipe: Recipe
    tables: Tables
    host: HostFacts | None  # the machine that will run it, if given
    base: Base | None  # its base image, if it has one whose facts are known
    distribution: Distribution | None
    cuda: Cuda | None  # None without CUDA as well
    torch: Torch | None  # as its wheels for this processor are
    build: Build | None  # of torch: the one that is installed; None for the CPU's
    gpus: tuple[tuple[str, Gpu], ...]  # `gpus[0]` → its row

    def has_toolkit(self, cuda: str) -> bool:
        """Return whether a source is known to have this CUDA, or a repository of the recipe or its image may have it."""
        if any(is_version(release, cuda) for release in self.tables.releases):
            return True
        named = bool(self.recipe.apt_sources or (self.base and self.base.every(Name.APT)))
        return named and any(is_version(release, cuda) for release in self.tables.apt_releases)

    @property
    def torches(self) -> Table[Torch]:
        """Return the releases of torch that have wheels for the recipe's processor."""
        return self.tables.torches_on(self.processor)

    @property
    def processor(self) -> Processor:
        """Return the processor that the environment is for."""
        return self.recipe.processor

    @property
    def suite(self) -> Distribution | None:
        """Return the row of the recipe's suite, None for a recipe on an image."""
        return None if self.recipe.image else self.distribution

    @property
    def gcc(self) -> str:
        """The exact release where the suite's is known (12.2.0), else the recipe's pin (12)."""
        if self.distribution and self.recipe.gcc in self.distribution.gccs:
            return self.distribution.gcc_version(self.recipe.gcc)
        return self.recipe.gcc

    @property
    def standalone(self) -> Standalone | None:
        """Return the build of Python to add: None if the suite or the image has the recipe's, or if there is none."""
        python, base = self.recipe.python, self.base
        suite = suite_of(base, self.tables.distributions.by_name) if base else self.suite
        is_there = suite is not None and suite.python == python
        if is_there or self.distribution is None or (base and base.python(python)):
            return None
        return self.tables.standalones.by_name.get(python)

    @property
    def python(self) -> str:
        """The exact release where it is known (3.11.2), else the recipe's pin (3.11)."""
        if self.standalone:
            return self.standalone.version
        if self.distribution and self.distribution.python == self.recipe.python:
            return self.distribution.python_version
        return self.recipe.python


def make_context(
    recipe: Recipe, tables: Tables, host: HostFacts | None = None, base: Base | None = None
) -> CheckContext:
    torch = tables.torches_on(recipe.processor).by_name.get(recipe.pytorch)
    row = tables.distributions.by_name.get(recipe.base)
    if recipe.image and base:
        row = as_distribution(base, recipe.python, tables.distributions.by_name)
    build = (torch.build_for(recipe.cuda_minor) or torch.build) if torch and recipe.cuda else None
    return CheckContext(
        recipe=recipe,
        tables=tables,
        host=host,
        base=base if recipe.image else None,
        distribution=row,
        cuda=tables.cudas.by_name.get(recipe.cuda_minor),
        torch=torch,
        # What `lock` installs: the build against exactly this CUDA, else the package index's.
        build=build if build and build.cuda else None,
        gpus=tuple(
            (f"gpus[{index}]", tables.gpus.by_name[name])
            for index, name in enumerate(recipe.gpus)
            if name in tables.gpus.by_name
        ),
    )


@functools.cache
def parse_requirement(text: str) -> Requirement | None:
    """Parse a requirement of a recipe, None if it is invalid. Cached, because the search for repairs reads it often."""
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def demands(context: CheckContext, name: str) -> tuple[tuple[str, Requirement], ...]:
    """Return the recipe's requirements on one package, each with its key (`packages[0]`), for its Python."""
    environment = context.processor.markers(context.recipe.python, context.python)
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
    plain = [architecture_key(name) for name in ptx if not name.endswith("a")]
    return any(other[:2] <= (major, minor) for other in plain)
