"""A rule's problem: its code, the pins that decide it, and possible repairs."""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Final

from envbuilder.compat.context import CheckContext
from envbuilder.compat.tables.table import version_key
from envbuilder.core.findings import CodeEnum, Severity

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


@dataclass(frozen=True, slots=True)
class Change:
    """One changed value of a recipe: key and new text; an index past the end appends."""

    key: str  # gcc, gpus[0], packages[1]
    value: str


Move = tuple[Change, ...]  # changes that are made together


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
    one, other = version_key(asked), version_key(newest)
    last = (other[0], other[1] + MINORS) if one[0] == other[0] else (other[0] + 1, MINORS)
    return one > other and one[:2] <= last


def distance(version: str, asked: str) -> tuple[int, ...]:
    """Return the distance between two versions, () if they are equal.

    The first number that differs counts, then the second: 2.0 is nearer to 1.13 than 2.15. Of two with the same
    distance, the newer is nearer, and so is the newer patch.
    """
    pairs = itertools.zip_longest(version_key(version), version_key(asked), fillvalue=0)
    numbers, wanted = zip(*pairs, strict=True)
    place = next(
        (index for index, (one, other) in enumerate(zip(numbers, wanted, strict=True)) if one != other), None
    )
    if place is None:
        return ()
    ahead = numbers[place] - wanted[place]
    rest = tuple(
        number if ahead > 0 and index == 1 else -number
        for index, number in enumerate(numbers)
        if index > place
    )
    return (*([0] * place), abs(ahead), ahead < 0, *rest)
