"""The machine that the doctor checks: its files, programs and limits."""

import ctypes
import os
import platform
import pwd
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.core.errors import CommandError, ToolError, UsageError
from envbuilder.core.process import Command, Runner
from envbuilder.core.system import user_ids
from envbuilder.node.detect import probe_here
from envbuilder.node.nccl.facts import Facts
from envbuilder.sources.http.reachable import Reached, reach
from envbuilder.sources.names import probe_sources

_TIMEX: Final = 208  # bytes of struct timex on 64-bit Linux
_MAXERROR, _STATUS = 24, 40  # offsets of a long and an int in it
_UNSYNCHRONISED: Final = 0x40  # STA_UNSYNC


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeNeeds:
    """One recipe with CUDA, compared with a driver and GPUs."""

    name: str
    cuda: str
    messages: tuple[str, ...]  # problems on this machine; empty where it runs


NeedsOf = Callable[[str, Sequence[str]], Sequence[RecipeNeeds]]  # driver and GPU names → each recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that the checks read; a test can replace each part."""

    root: Path
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
    kernel: str  # the release of Linux; "" on another system

    def output_of(self, *argv: str, why: str) -> str | None:
        """Return what a program prints, or None where it is missing or fails."""
        try:
            return self.runner.run(Command(argv=argv, why=why)).strip()
        except (CommandError, ToolError):
            return None


def probe_machine(
    environment: Mapping[str, str], runner: Runner, *, cache: Path, output: Path, needs: NeedsOf
) -> Machine:
    def reach_sources() -> tuple[Reached, ...]:
        try:
            sources = probe_sources(environment, runner)
        except (UsageError, ToolError) as error:
            return (Reached(url="the settings:", trouble=error.message),)
        cuda = (sources.cuda,) if sources.cuda else ()
        urls = (*sources.debian, *sources.security, *sources.indexes, sources.pytorch, *cuda)
        return reach(urls, sources.certificates)

    return Machine(
        root=Path("/"),
        environment=environment,
        runner=runner,
        facts=probe_here(environment, runner),
        cache=cache,
        output=output,
        needs=needs,
        uid=user_ids()[0],
        user=user_name(),
        home=Path(environment.get("HOME") or "/"),
        now=time.time(),
        memlock=lockable_memory(),
        clock=probe_clock(),
        reach=reach_sources,
        kernel=platform.release(),
    )


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
