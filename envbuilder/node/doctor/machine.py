"""Probe this machine for the doctor: files, programs and system calls."""

import ctypes
import os
import pwd
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from envbuilder.core.errors import CommandError, ToolError
from envbuilder.core.http.reachable import Reached, reach
from envbuilder.core.process import Command, Runner
from envbuilder.core.sources import probe_sources
from envbuilder.node.doctor.item import Machine, NeedsOf
from envbuilder.node.nccl.probe import ProbeIO, import_nvml, probe
from envbuilder.node.nccl.roots import Roots

_TIMEX: Final = 208  # bytes of struct timex on 64-bit Linux
_MAXERROR, _STATUS = 24, 40  # offsets of a long and an int in it
_UNSYNCHRONISED: Final = 0x40  # STA_UNSYNC


def probe_machine(
    environment: Mapping[str, str], runner: Runner, *, cache: Path, output: Path, needs: NeedsOf
) -> Machine:
    roots, uid = Roots(), os.geteuid()

    def run(argv: tuple[str, ...]) -> str | None:
        try:
            return runner.run(Command(argv=argv, why="ask the driver for its GPUs"))
        except (CommandError, ToolError):
            return None

    def answers() -> tuple[Reached, ...]:
        sources = probe_sources(environment, runner)
        return reach((*sources.debian, *sources.indexes, sources.pytorch), sources.certificates)

    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return Machine(
        roots=roots,
        environment=environment,
        runner=runner,
        facts=probe(ProbeIO(roots=roots, environment=environment, nvml=import_nvml(), run=run)),
        cache=cache,
        output=output,
        needs=needs,
        uid=uid,
        user=_user(uid),
        home=Path(environment.get("HOME") or "/"),
        now=time.time(),
        memlock=None if soft == resource.RLIM_INFINITY else soft,
        clock=probe_clock(),
        reach=answers,
    )


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # an id without a name, as in many containers
        return str(uid)


def probe_clock() -> tuple[bool, float] | None:
    """What the kernel says of its clock, by adjtimex(2), which changes nothing when asked for nothing."""
    buffer = ctypes.create_string_buffer(_TIMEX)
    try:
        answer = ctypes.CDLL(None).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    if answer < 0:
        return None
    status = int.from_bytes(buffer.raw[_STATUS : _STATUS + 4], "little")
    error = int.from_bytes(buffer.raw[_MAXERROR : _MAXERROR + 8], "little")
    return not status & _UNSYNCHRONISED, error / 1e6
