"""Bound the time and the memory of a block, so that a reader that obeys a hostile file fails its test instead of hanging."""

import contextlib
import re
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")  # 5: the most memory so far is forgotten, proc(5)
_ROOM = 4  # times the allowed memory, of which the kernel gives no more


class TooSlowError(BaseException):
    """Not an Exception, so that no reader takes it for damage."""


@contextlib.contextmanager
def bounded(*, seconds: float = 5, mebibytes: int = 200) -> Iterator[None]:
    """Fail if the block takes more CPU time, or more memory beyond what is used now."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlowError(f"more than {seconds} s of CPU time")

    _RESET.write_text("5", encoding="ascii")
    before = _kibibytes("VmRSS")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, ((_kibibytes("VmSize") << 10) + (_ROOM * mebibytes << 20), hard))
    former = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    taken = _kibibytes("VmHWM") - before
    assert taken < mebibytes << 10, f"{taken >> 10} MiB of memory, expected less than {mebibytes}"


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def _kibibytes(name: str) -> int:
    (size,) = re.findall(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    return int(size)
