"""Measure one command: wall time, CPU seconds, memory and disk. Describe the machine.

CPU seconds are those of the whole process tree and of the daemons that work for it; `Cost` says what is what.
"""

import contextlib
import ctypes
import fcntl
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from envbuilder.core.cache import remove_tree

REPOSITORY: Final = Path(__file__).resolve().parent.parent
ENVBUILDER: Final = REPOSITORY / ".venv/bin/envbuilder"
WORK: Final = Path("/var/tmp/envbuilder-bench")
MARK: Final = ".envbuilder-bench"  # a work folder without it is not ours to remove
EVERY: Final = 0.25  # seconds between two looks at disk and memory
LIMIT: Final = 3 * 3600  # seconds for one command
SUBREAPER: Final = 36  # PR_SET_CHILD_SUBREAPER, linux/prctl.h
DAEMONS: Final = ("dockerd", "containerd", "containerd-shim", "buildkitd")
PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Cost:
    """The cost of some work. Times in seconds, sizes in bytes."""

    wall: float = 0.0
    cpu: float = 0.0  # user and system, of the commands and the daemons
    cpu_daemons: float = 0.0
    memory: int = 0  # peak of the process tree and what the daemons took more; shared pages once
    growth: int = 0  # of the used bytes of the disks, at the peak
    left: int = 0  # the same at the end
    load: float = 0.0  # load average before


class Failed(Exception):  # noqa: N818 - read as a sentence
    """A command of a row failed."""


def say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------------- measuring


class Disk:
    """The used bytes of the file systems that the rows write to; inside `with`, also their peak."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = tuple({place.stat().st_dev: place for place in places}.values())
        self._watch = Watch(self._look)
        self.start = self.peak = self.end = 0

    def used(self) -> int:
        facts = [os.statvfs(place) for place in self._places]
        return sum((one.f_blocks - one.f_bfree) * one.f_frsize for one in facts)

    def free(self) -> int:
        return min(shutil.disk_usage(place).free for place in self._places)

    def settle(self, quiet: float = 4.0) -> None:
        """Wait until earlier removals are complete: until the disk does not change for `quiet` seconds."""
        last, since = self.used(), time.monotonic()
        deadline = since + 30
        while time.monotonic() < min(since + quiet, deadline):
            time.sleep(0.5)
            now = self.used()
            if abs(now - last) > 4 << 20:
                last, since = now, time.monotonic()

    def __enter__(self) -> Self:
        self.start = self.peak = self.used()
        self._watch.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.finish()
        self.end = self.used()
        self.peak = max(self.peak, self.end)

    def _look(self) -> None:
        self.peak = max(self.peak, self.used())


class Memory:
    """Peak memory of all our descendants, and of the daemons beyond what they used before."""

    def __init__(self) -> None:
        self._watch = Watch(self._look)
        self._before = self.peak = 0

    def __enter__(self) -> Self:
        self._before, self.peak = self._used(), 0
        self._watch.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.finish()

    def _look(self) -> None:
        self.peak = max(self.peak, self._used() - self._before)

    @staticmethod
    def _used() -> int:
        found = {pid: (name, parent) for pid, name, parent, _ in processes()}
        ours = {os.getpid(), *(pid for pid, (name, _) in found.items() if name in DAEMONS)}
        below = set(ours)
        while more := {pid for pid, (_, parent) in found.items() if parent in below} - below:
            below |= more
        own = shared = 0
        for pid in below - {os.getpid()}:
            with contextlib.suppress(OSError, ValueError):
                _, resident, of_files, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
                own += resident - of_files
                shared = max(shared, of_files)
        return (own + shared) * PAGE


class _HighWater:
    """Peak memory of one process, from the kernel. `ru_maxrss` would also count our own memory at the fork."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._watch = Watch(self._look, every=0.005)
        self.peak = 0

    def __enter__(self) -> None:
        self._watch.begin()

    def __exit__(self, *_: object) -> None:
        self._watch.finish()

    def _look(self) -> None:
        with contextlib.suppress(OSError):
            _, _, rest = self._status.read_text().partition("VmHWM:")
            self.peak = max(self.peak, int(rest.split()[0]) * 1024 if rest else 0)


class Watch:
    """Sample a value every `every` seconds in a thread, and after two seconds only every `EVERY` seconds."""

    def __init__(self, look: Callable[[], None], every: float = EVERY) -> None:
        self._look = look
        self._every = every
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(self._every if time.monotonic() < began + 2 else EVERY):
            self._look()


def adopt_orphans() -> None:
    """Adopt orphans of the processes that we start, so that their CPU seconds are counted."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def own_cpu() -> float:
    """Return the CPU seconds of all our descendants that have ended, orphans included (`adopt_orphans`)."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def daemon_cpu() -> dict[int, float]:
    """CPU seconds of each daemon and of its children that have ended: BuildKit's containers and compressors."""
    return {pid: spent for pid, name, _, spent in processes() if name in DAEMONS}


def processes() -> Iterator[tuple[int, str, int, float]]:
    """Return number, name, parent and CPU seconds of every process, with those of its ended children."""
    tick = os.sysconf("SC_CLK_TCK")
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            _, _, rest = (folder / "stat").read_text().partition("(")
            name, _, fields = rest.rpartition(") ")
            values = fields.split()
            yield int(folder.name), name, int(values[1]), sum(map(int, values[11:15])) / tick


@contextlib.contextmanager
def measured(disk: Disk) -> Iterator[Cost]:
    """Fill in the cost of the block at its end, even if it fails."""
    cost = Cost(load=os.getloadavg()[0])
    own, daemons, started = own_cpu(), daemon_cpu(), time.monotonic()
    memory = Memory()
    try:
        with disk, memory:
            started = time.monotonic()
            yield cost
            cost.wall = time.monotonic() - started
    finally:
        cost.wall = cost.wall or time.monotonic() - started
        cost.cpu_daemons = sum(seconds - daemons.get(pid, 0.0) for pid, seconds in daemon_cpu().items())
        cost.cpu = own_cpu() - own + cost.cpu_daemons
        cost.memory = max(cost.memory, memory.peak)
        cost.growth, cost.left = disk.peak - disk.start, disk.end - disk.start


def run(argv: Sequence[object], *, log: Path, env: Mapping[str, str], cost: Cost | None = None) -> str:
    """Run with all output into `log`, and return that; raises Failed with the last lines.

    The command's own process is the least that `cost` has as memory: what `Memory` sees is too coarse for a short one.
    """
    words = [str(word) for word in argv]
    with log.open("w") as stream:
        print("$", *words, file=stream, flush=True)
        process = subprocess.Popen(
            words, stdout=stream, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env={**_environment(), **env},
            cwd=REPOSITORY, start_new_session=True,
        )  # fmt: skip
        timer = threading.Timer(LIMIT, _end, [process.pid])
        timer.daemon = True
        timer.start()
        high = _HighWater(process.pid)
        try:
            with high:
                code = process.wait()
        except BaseException:
            _end(process.pid)
            process.wait()
            raise
        finally:
            timer.cancel()
    if cost is not None:
        cost.memory = max(cost.memory, high.peak)
    text = log.read_text(errors="replace")
    if code:
        last = " / ".join(text.strip().splitlines()[-4:])
        raise Failed(f"`{' '.join(words)[:120]}` ended with exit code {code}: {last[-600:]}")
    return text


def _environment() -> dict[str, str]:
    """Return our environment without the variables that make Python start slower than a user's."""
    slow = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONPATH", "PYTHONHASHSEED")
    return {name: value for name, value in os.environ.items() if name not in slow}


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGTERM)


def size(path: Path) -> int:
    """Return the bytes on disk, 0 for a missing path."""
    if path.is_dir():
        return sum(one.stat().st_blocks * 512 for one in path.rglob("*") if one.is_file())
    return path.stat().st_blocks * 512 if path.exists() else 0


def drop_caches() -> None:
    """Make cold rows start alike: sync the disk and drop the page cache."""
    os.sync()
    with contextlib.suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("3\n")


def forget(path: Path) -> None:
    """Drop only this file, or all files of this folder, from the page cache."""
    for one in [path] if path.is_file() else path.rglob("*"):
        if one.is_file() and not one.is_symlink():
            handle = os.open(one, os.O_RDONLY)
            try:
                os.fsync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


# ----------------------------------------------------------------------------------------------------- the machine


def versions(asked: Mapping[str, Sequence[object]]) -> dict[str, str]:
    """Return the date, the machine, and the first line that each of these commands prints."""
    found = {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "machine": f"{len(os.sched_getaffinity(0))} cores ({_processor()}), Linux {platform.release()}",
        "revision": _first_line(["git", "describe", "--always", "--dirty"]),
        "envbuilder": _first_line([ENVBUILDER, "--version"]),
    }
    return found | {name: _first_line(argv) for name, argv in asked.items()}


def _first_line(argv: Sequence[object]) -> str:
    try:
        ended = subprocess.run(
            [str(word) for word in argv], capture_output=True, text=True, check=False, cwd=REPOSITORY
        )
    except FileNotFoundError:
        return "not there"
    return next(iter((ended.stdout or ended.stderr).splitlines()), "not there")


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine()
    )


@contextlib.contextmanager
def work_folder(path: Path, *, keep: bool) -> Iterator[Path]:
    """Provide an empty work folder for this run alone. At the end, only its logs stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as holder:
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"another comparison is running in `{path}`")
        if path.exists():
            if not (path / MARK).exists():
                sys.exit(
                    f"`{path}` is there and not from an earlier comparison: remove it, or name another with --work"
                )
            remove_tree(path)
        for name in ("logs", "tmp", "apptainer"):
            (path / name).mkdir(parents=True)
        (path / MARK).touch()
        try:
            yield path
        finally:
            if not keep:
                for part in path.iterdir():
                    if part.is_dir() and not part.is_symlink():
                        if part.name != "logs":
                            remove_tree(part)
                    elif part.name != MARK:
                        part.unlink()
