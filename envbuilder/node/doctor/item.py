"""What a check of the doctor judges, and the item that it returns."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import Field

from envbuilder.core.answer import Answer
from envbuilder.core.findings import CodeEnum


class DoctorCode(CodeEnum):
    """Stable; a new check takes the next free one."""

    PYTHON = "EB810", "no virtual environment around envbuilder"
    TOOL = "EB811", "a program that a build uses"
    DOCKER = "EB812", "no engine answers, or one before 25"
    BUILDX = "EB813", "what the runner `buildkit` drives"
    IMAGE_STORE = "EB814", "images are not kept in containerd's store"
    APPTAINER = "EB815", "Apptainer is not installed"
    NAMESPACES = "EB816", "an ordinary user can make no user namespace"
    FUSE = "EB818", "an ordinary user cannot mount a SIF"
    SPACE = "EB819", "too little for an environment"
    CACHE = "EB820", "not a folder that belongs to you alone, or with leftovers of killed builds"
    LOCKS = "EB821", "locks that killed compilations of torch's load() left"
    SOURCES = "EB822", "a mirror or an index that does not answer"
    CLOCK = "EB823", "not synchronised, or far from that of the sources"
    DRIVER = "EB824", "NVIDIA's driver does not answer, or Apptainer does not find its libraries"
    RECIPE = "EB825", "what a recipe needs of the driver and the GPUs"
    SHARED_MEMORY = "EB826", "a small /dev/shm"
    IOMMU = "EB827", "it translates what GPUs send each other"
    ACS = "EB828", "it sends what GPUs exchange through the CPU"
    RDMA = "EB829", "InfiniBand or RoCE is there, and a part that it needs is not"
    LIMITS = "EB830", "too little memory may be locked"
    SLURM = "EB831", "what is here of Slurm; never a fault"
    SCRATCH = "EB832", "little room where temporary files and caches go"
    KERNEL = "EB833", "older than the sandbox needs, or another system"
    EXECUTE = "EB834", "programs may not run in a folder that needs it"
    KEYRING = "EB835", "a keyring that a setting names is not there"
    RUNNER = "EB836", "the runner that works on this machine"
    EMULATION = "EB841", "this machine cannot build for another processor"


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"  # something works less well, or not for everyone
    MISSING = "missing"  # a requirement is not met
    UNKNOWN = "unknown"  # could not be found out, which is not the same as wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """A safe repair: it changes nothing that others use, and installs nothing."""

    command: str  # with the same effect
    run: Callable[[], object]


class DoctorRow(Answer):
    """One check: what was found, why it matters, what repairs it, and whether `--fix` does."""

    purpose: str = Field(alias="for")  # a keyword of Python
    code: str
    name: str
    state: str
    found: str
    why: str
    repair: str
    fixable: bool


@dataclass(frozen=True, slots=True)
class Subject:
    """What a check judges, and why it matters. Its methods return the item for each state."""

    code: DoctorCode
    name: str
    why: str

    def ok(self, found: str) -> "Item":
        return Item(self, State.OK, found)

    def unknown(self, found: str, repair: str = "") -> "Item":
        return Item(self, State.UNKNOWN, found, repair)

    def warning(self, found: str, repair: str, fix: Fix | None = None) -> "Item":
        return Item(self, State.WARNING, found, repair, fix)

    def missing(self, found: str, repair: str, fix: Fix | None = None) -> "Item":
        return Item(self, State.MISSING, found, repair, fix)


@dataclass(frozen=True, slots=True)
class Item:
    """What a check found, and the command that repairs it."""

    subject: Subject
    state: State
    found: str
    repair: str = ""
    fix: Fix | None = None

    def row(self, purpose: str) -> DoctorRow:
        subject = self.subject
        return DoctorRow(
            **{"for": purpose}, code=subject.code, name=subject.name, state=self.state, found=self.found,
            why=subject.why, repair=self.repair, fixable=self.fix is not None,
        )  # fmt: skip


def free_bytes(path: Path) -> int | None:
    """Return the bytes that a user may still write below a path, which may not exist yet."""
    for place in (path, *path.absolute().parents):
        try:
            return shutil.disk_usage(place).free
        except FileNotFoundError:
            continue
        except OSError:
            break
    return None


def forbids_programs(path: Path) -> bool:
    """Return whether a path, which may not exist yet, lies on a file system that is mounted noexec."""
    for place in (path, *path.absolute().parents):
        try:
            return bool(os.statvfs(place).f_flag & os.ST_NOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, AttributeError):  # not to be read, or a system without mounts
            break
    return False


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
