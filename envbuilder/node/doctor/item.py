"""What a check of the doctor reads, and the item that it returns."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from envbuilder.core.errors import CommandError, ToolError
from envbuilder.core.findings import CodeEnum
from envbuilder.core.http.reachable import Reached
from envbuilder.core.process import Command, Runner
from envbuilder.node.nccl.facts import Facts
from envbuilder.node.nccl.roots import Roots


class DoctorCode(CodeEnum):
    """Stable; a new check takes the next free one."""

    PYTHON = "EB810", "no virtual environment around envbuilder"
    TOOL = "EB811", "a program that a build uses"
    DOCKER = "EB812", "no engine answers, or one before 25"
    BUILDX = "EB813", "what the docker engine drives"
    IMAGE_STORE = "EB814", "images are not kept in containerd's store"
    APPTAINER = "EB815", "Apptainer is not installed"
    NAMESPACES = "EB816", "an ordinary user can make no user namespace"
    SUBIDS = "EB817", "an ordinary user has no ids to map"
    FUSE = "EB818", "an ordinary user cannot mount a SIF"
    SPACE = "EB819", "too little for an environment"
    CACHE = "EB820", "not a folder that belongs to you alone, or with leftovers of killed builds"
    LOCKS = "EB821", "locks that killed compilations of torch's load() left"
    SOURCES = "EB822", "a mirror or an index that does not answer"
    CLOCK = "EB823", "not synchronised, or far from that of the sources"
    DRIVER = "EB824", "NVIDIA's driver is not there or does not answer"
    RECIPE = "EB825", "what a recipe needs of the driver and the GPUs"
    SHARED_MEMORY = "EB826", "a small /dev/shm"
    IOMMU = "EB827", "it translates what GPUs send each other"
    ACS = "EB828", "it sends what GPUs exchange through the CPU"
    RDMA = "EB829", "InfiniBand or RoCE is there, and a part that it needs is not"
    LIMITS = "EB830", "too little memory may be locked"
    SLURM = "EB831", "what is here of Slurm; never a fault"
    SCRATCH = "EB832", "little room where temporary files and caches go"


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"  # something works less well, or not for everyone
    MISSING = "missing"  # a thing that is needed
    UNKNOWN = "unknown"  # could not be found out, which is not the same as wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """A safe repair: it changes nothing that others use, and installs nothing."""

    told: str  # the command that it amounts to
    run: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What a check found, why it matters, and the command that repairs it."""

    code: DoctorCode
    name: str
    state: State
    found: str
    why: str = ""
    repair: str = ""
    fix: Fix | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeNeeds:
    """One recipe with CUDA, compared with a driver and GPUs."""

    name: str
    cuda: str
    messages: tuple[str, ...]  # what stands against it here; empty where it runs


NeedsOf = Callable[[str, Sequence[str]], Sequence[RecipeNeeds]]  # driver and GPU names → each recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that the checks read; a test can replace each part."""

    roots: Roots
    environment: Mapping[str, str]
    runner: Runner
    facts: Facts
    cache: Path
    output: Path
    needs: NeedsOf
    uid: int
    user: str
    home: Path
    now: float  # seconds since 1970
    memlock: int | None  # bytes; None without a limit
    clock: tuple[bool, float] | None  # whether the kernel calls it synchronised, its largest error in seconds
    reach: Callable[[], Sequence[Reached]]

    def say(self, *argv: str, why: str) -> str | None:
        """Return what a program prints, or None where it is missing or fails."""
        try:
            return self.runner.run(Command(argv=argv, why=why)).strip()
        except (CommandError, ToolError):
            return None


def free_bytes(path: Path) -> int | None:
    """Return the bytes that a user may still write below a path, which may not exist yet."""
    for place in (path, *path.absolute().parents):
        try:
            numbers = os.statvfs(place)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        return numbers.f_frsize * numbers.f_bavail
    return None


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
