"""The input of every rule: the tables, and one recipe with the rows that its pins name."""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuilder.compat.host_file import HostFacts
from envbuilder.compat.image_facts import Base, Name, as_distribution, is_version, suite_of
from envbuilder.compat.tables.cuda import Cuda, GpuModel, architecture_key, load_cudas, load_gpus
from envbuilder.compat.tables.distribution import (
    Distribution,
    Python,
    Standalone,
    Standard,
    load_distributions,
    load_pythons,
    load_standalones,
    load_standards,
)
from envbuilder.compat.tables.table import Table, version_key
from envbuilder.compat.tables.toolkit import all_releases, load_toolkits
from envbuilder.compat.tables.torch import Build, Torch, load_torches
from envbuilder.core.findings import CodeEnum, Severity
from envbuilder.core.processor import AARCH64, Processor
from envbuilder.recipe.model import Recipe


@dataclass(frozen=True, kw_only=True)
class Tables:
    """All tables that rules read."""

    distributions: Table[Distribution] = field(default_factory=load_distributions)
    gpus: Table[GpuModel] = field(default_factory=lambda: _gpus(are_refused=False))
    refused_gpus: Table[GpuModel] = field(default_factory=lambda: _gpus(are_refused=True))
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


def _gpus(*, are_refused: bool) -> Table[GpuModel]:
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
    gpus: tuple[tuple[str, GpuModel], ...]  # `gpus[0]` → its row

    def has_toolkit(self, cuda: str) -> bool:
        """Return whether a source is known to have this CUDA, or a repository of the recipe or its image may have it."""
        if any(is_version(release, cuda) for release in self.tables.releases):
            return True
        named = bool(self.recipe.apt_sources or (self.base and self.base.every(Name.APT)))
        return named and any(is_version(release, cuda) for release in self.tables.apt_releases)

    @property
    def torches(self) -> Table[Torch]:
        return self.tables.torches_on(self.processor)

    @property
    def processor(self) -> Processor:
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
    demanded = []
    for index, text in enumerate(context.recipe.packages):
        requirement = parse_requirement(text)
        if requirement is None or canonicalize_name(requirement.name) != name:
            continue
        if requirement.marker is None or requirement.marker.evaluate(environment):
            demanded.append((f"packages[{index}]", requirement))
    return tuple(demanded)


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


MINORS: Final = 9  # the most minor versions that may follow before the tables are read again


class CheckCode(CodeEnum):
    """Stable; a new rule takes the next free one."""

    BASE = "EB301", "no such suite, or none that can be built on"
    GPU = "EB302", "no such GPU"
    PYTHON = "EB303", "a Python that neither the base nor a standalone build has"
    GCC = "EB304", "not packaged in the suite"
    LIBXCRYPT = "EB305", "not the suite's version"
    TORCH = "EB306", "no such release"
    TORCH_NEWER = "EB307", "newer than the tables"
    TORCH_PYTHON = "EB308", "no wheel of this torch for this Python"
    TORCH_CUDA = "EB309", "toolkit and torch of different major versions of CUDA"
    TORCH_CUDA_MINOR = "EB310", "the same major version, but another minor one"
    TOOLKIT = "EB311", "a CUDA that envbuilder cannot lay out"
    CUDA_SOURCE = "EB312", "a .cu file or a CUDAExtension, and no CUDA"
    CUDA = "EB313", "no such release"
    CUDA_NEWER = "EB314", "newer than the tables"
    NVCC_GCC_NEW = "EB315", "gcc newer than nvcc supports"
    NVCC_GCC_OLD = "EB316", "gcc below it"
    NVCC_GCC_BROKEN = "EB317", "a patch release of gcc that nvcc takes and fails with"
    NVCC_GLIBC = "EB318", "the toolkit's headers clash with the suite's C library"
    ARCHITECTURE = "EB319", "a GPU that the toolkit does not compile for"
    KERNELS = "EB320", "a GPU for which torch's build holds no code"
    ARCHITECTURE_NAME = "EB321", "a GPU that torch's TORCH_CUDA_ARCH_LIST does not know"
    STANDARD_NVCC = "EB322", "a C++ standard that nvcc does not take"
    STANDARD_GCC = "EB323", "a C++ standard that gcc does not take"
    STANDARD_TORCH = "EB324", "a C++ standard below what torch's headers take"
    TORCH_GCC = "EB325", "gcc below what torch's headers take"
    TORCH_GCC_BOUND = "EB326", "gcc that torch's own check of a setup.py refuses"
    TORCH_GLIBC = "EB327", "the suite's C library is older than the wheel needs"
    CRYPT_H = "EB328", "Python.h includes crypt.h, and nothing in the recipe brings it"
    NUMPY = "EB329", "numpy that this torch does not work with"
    SETUPTOOLS = "EB330", "setuptools that this torch's cpp_extension does not work with"
    COMPILER_PARTS = "EB331", "a compiler from the package index with parts of another release"
    DRIVER = "EB332", "the host's driver is too old"
    DRIVER_MINOR = "EB333", "the driver runs this CUDA by minor-version compatibility"
    DRIVER_FORWARD = "EB334", "the driver runs this CUDA by forward compatibility"
    HOST_GPU = "EB335", "a GPU of the host that the recipe does not compile for"
    HOST_GPU_UNKNOWN = "EB336", "a GPU of the host that the tables do not know"
    ARM_HOST = "EB337", "an environment for an Arm processor, for which not everything is possible yet"
    BASE_UNSEEN = "EB338", "a base image that `lock` has not read"
    BASE_FOREIGN = "EB339", "a base for another processor"
    BASE_LIBC = "EB340", "a base with musl, or without a C library"
    BASE_OS = "EB341", "a base of an unknown distribution"
    GCC_BESIDE = "EB342", "a second gcc beside the base's own"
    CUDA_TWICE = "EB343", "CUDA in the base and once more in the environment"
    CUDA_SEVERAL = "EB344", "a base with several CUDAs"
    CUDA_UNUSED = "EB345", "a base with CUDA for a recipe without"
    DRIVER_REQUIRED = "EB346", "the base's own demand on the host's driver"
    TORCH_TWICE = "EB347", "a base with a torch of its own"
    BASE_PARTS = "EB348", "a part that the base lacks and nothing brings"
    HOST_EMPTY = "EB349", "a host without a GPU, as a login node is"
    COMPANION = "EB350", "torchvision or torchaudio of another torch"
    OWN_GPUS = "EB351", "a project that names GPUs of its own in its build"
    PLATFORM = "EB352", "a processor that does not go with the GPUs or the base"
    TORCH_PROCESSOR = "EB353", "a torch whose wheels for the processor have no CUDA, or that has none"
    GPU_REFUSED = "EB354", "a GPU that no environment can be made for"
    MODULE_TWICE = "EB355", "two projects that build one module"
    OTHER_PROJECT = (
        "EB356",
        "a package of CUDA code whose name is another project's on the package index, or nobody's",
    )
    NCCL = "EB357", "an NCCL that cannot take the place of torch's own"
    NCCL_FAULT = "EB358", "a release of NCCL with a known fault"
    ALONE = "EB359", "a package of CUDA code whose name alone brings a build for the CPU or for another torch"


@dataclass(frozen=True, slots=True)
class PinChange:
    """One changed value of a recipe: key and new text; an index past the end appends."""

    key: str  # gcc, gpus[0], packages[1]
    value: str


Move = tuple[PinChange, ...]  # changes that are made together


@dataclass(frozen=True, slots=True)
class Problem:
    """The problem that one rule found; `check` makes a finding of it."""

    code: CheckCode
    key: str  # the key of the finding: gcc, gpus[0]
    message: str
    _: KW_ONLY
    pins: tuple[str, ...] = ()  # whose values decide it, the nearest to change first
    moves: tuple[Move, ...] = ()  # repairs beside the other values of those pins
    are_equal: bool = False  # of the moves, each that passes is a repair
    advice: str = ""  # what to do if no pin helps
    source: str = ""
    severity: Severity = Severity.ERROR

    @property
    def is_error(self) -> bool:
        return self.severity is Severity.ERROR


warning = functools.partial(Problem, severity=Severity.WARNING)
Rule = Callable[[CheckContext], Iterator[Problem]]


def is_ahead(asked: str, newest: str) -> bool:
    """Whether a version is newer than the tables and plausible: 13.9 or 14.0 after 13.5, not 13.99 or 99.9."""
    version, known = version_key(asked), version_key(newest)
    last = (known[0], known[1] + MINORS) if version[0] == known[0] else (known[0] + 1, MINORS)
    return version > known and version[:2] <= last


def distance(version: str, asked: str) -> tuple[int, ...]:
    """Return the distance between two versions, () if they are equal.

    The first number that differs counts, then the second: 2.0 is nearer to 1.13 than 2.15. Of two with the same
    distance, the newer is nearer, and so is the newer patch.
    """
    numbers, wanted = version_key(version), version_key(asked)
    differences = [number - other for number, other in itertools.zip_longest(numbers, wanted, fillvalue=0)]
    place = next((index for index, difference in enumerate(differences) if difference), None)
    if place is None:
        return ()
    ahead = differences[place]
    after = itertools.islice(enumerate(numbers), place + 1, None)
    rest = (number if ahead > 0 and index == 1 else -number for index, number in after)
    return (*([0] * place), abs(ahead), ahead < 0, *rest)
