"""What the doctor checks, its machine with files, programs and limits, and the items that it finds."""

import ctypes
import os
import platform
import pwd
import resource
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from pydantic import Field

from envbuilder.core.answer import Answer
from envbuilder.core.errors import CommandError, ToolError, UsageError
from envbuilder.core.findings import CodeEnum
from envbuilder.core.process import Command, Runner
from envbuilder.core.system import user_ids
from envbuilder.node.detect import probe_here
from envbuilder.node.nccl.facts import Facts
from envbuilder.sources.http.reachable import Reached, reach
from envbuilder.sources.names import probe_sources

_TIMEX: Final = 208  # bytes of struct timex on 64-bit Linux
_MAXERROR, _STATUS = 24, 40  # offsets of a long and an int in it
_UNSYNCHRONISED: Final = 0x40  # STA_UNSYNC


class DoctorCode(CodeEnum):
    """Stable; a new check takes the next free one."""

    PYTHON = "EB810", "no virtual environment around envbuilder"
    TOOL = "EB811", "a program that a build uses"
    DOCKER = "EB812", "no engine answers, or one before 25"
    BUILDX = "EB813", "what the runner `buildkit` drives"
    IMAGE_STORE = "EB814", "images are not kept in containerd's store"
    APPTAINER = "EB815", "Apptainer is not installed, or does not start"
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
class CheckSubject:
    """What a check judges, and why it matters. Its methods return the item for each state."""

    code: DoctorCode
    name: str
    why: str

    def ok(self, found: str) -> "DoctorItem":
        return DoctorItem(self, State.OK, found)

    def unknown(self, found: str, repair: str = "") -> "DoctorItem":
        return DoctorItem(self, State.UNKNOWN, found, repair)

    def warning(self, found: str, repair: str, fix: Fix | None = None) -> "DoctorItem":
        return DoctorItem(self, State.WARNING, found, repair, fix)

    def missing(self, found: str, repair: str, fix: Fix | None = None) -> "DoctorItem":
        return DoctorItem(self, State.MISSING, found, repair, fix)


@dataclass(frozen=True, slots=True)
class DoctorItem:
    """What a check found, and the command that repairs it."""

    subject: CheckSubject
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


def probe_clock() -> tuple[bool, float] | None:
    """Ask the kernel about its clock by adjtimex(2), which changes nothing when given zeros."""
    buffer = ctypes.create_string_buffer(_TIMEX)
    try:
        answer = ctypes.CDLL(None).adjtimex(buffer)
    except (OSError, AttributeError, TypeError):  # not Linux
        return None
    if answer < 0:
        return None
    status = int.from_bytes(buffer.raw[_STATUS : _STATUS + 4], "little")
    error = int.from_bytes(buffer.raw[_MAXERROR : _MAXERROR + 8], "little")
    return not status & _UNSYNCHRONISED, error / 1e6


def user_name() -> str:
    """Return the name of the user, or the number of one without a name, as in many containers."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def lockable_memory() -> int | None:
    """Return the bytes that a program may keep in memory; None for no limit."""
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if soft == resource.RLIM_INFINITY else soft


# Driver and names of GPUs → an item for each recipe with CUDA, compared with them.
RecipeItems = Callable[[str, Sequence[str]], Iterable[DoctorItem]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that the checks read; a test can replace each part."""

    root: Path = Path("/")
    environment: Mapping[str, str]
    runner: Runner
    facts: Facts
    cache: Path
    output: Path
    recipes: RecipeItems
    reach: Callable[[], Sequence[Reached]]
    uid: int = field(default_factory=lambda: user_ids()[0])
    user: str = field(default_factory=user_name)
    home: Path
    now: float = field(default_factory=time.time)  # seconds since 1970
    memlock: int | None = field(default_factory=lockable_memory)  # bytes; None without a limit
    # Whether the kernel calls it synchronised, its largest error in seconds.
    clock: tuple[bool, float] | None = field(default_factory=probe_clock)
    kernel: str = field(default_factory=platform.release)  # of Linux; "" on another system

    def output_of(self, *argv: str, why: str) -> str | None:
        """Return what a program prints, or None where it is missing or fails."""
        try:
            return self.runner.run(Command(argv=argv, why=why)).strip()
        except (CommandError, ToolError):
            return None


def probe_machine(
    environment: Mapping[str, str], runner: Runner, *, cache: Path, output: Path, recipes: RecipeItems
) -> Machine:
    def reach_sources() -> tuple[Reached, ...]:
        try:
            sources = probe_sources(environment, runner)
        except (UsageError, ToolError) as error:
            return (Reached(url="the settings:", trouble=error.message),)
        named = {
            "DEBIAN_MIRROR": sources.debian, "DEBIAN_SECURITY": sources.security, "INDEX": sources.indexes,
            "PYTORCH_INDEX": (sources.pytorch,), "CUDA_REDIST": (sources.cuda,),
        }  # fmt: skip
        asked = [(url, f"ENVBUILDER_{name}") for name, urls in named.items() for url in urls if url]
        answers = reach([url for url, _ in asked], sources.certificates)
        return tuple(replace(answer, setting=name) for answer, (_, name) in zip(answers, asked, strict=True))

    return Machine(
        environment=environment, runner=runner, facts=probe_here(environment, runner), cache=cache, output=output,
        recipes=recipes, reach=reach_sources, home=Path(environment.get("HOME") or "/"),
    )  # fmt: skip


def free_bytes(path: Path) -> int | None:
    """Return the bytes that a user may still write below a path, which may not exist yet."""
    try:
        return shutil.disk_usage(_existing(path)).free
    except OSError:
        return None


def forbids_programs(path: Path) -> bool:
    """Return whether a path, which may not exist yet, lies on a file system that is mounted noexec."""
    try:
        return bool(os.statvfs(_existing(path)).f_flag & os.ST_NOEXEC)
    except (OSError, AttributeError):  # not to be read, or a system without mounts
        return False


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
