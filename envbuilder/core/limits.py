"""Find the cores and the memory that this process may use, by the machine and its control groups.

The usual interfaces show a job, container or CI runner the whole machine. The kernel kills it when it
uses more than its control group may.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.core.system import cores, memory

_ENDLESS: Final = 1 << 60  # version 1 of control groups writes a number as large as this for "no limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The cores and the memory that a build may use."""

    threads: int
    memory: int  # bytes
    root: bool  # whether we are root


def usable_memory(root: Path = Path("/")) -> int:
    """Return the available memory in bytes: the least of the machine's and each control group's."""
    # What is available without swapping: free pages and the page cache.
    kilobytes = _of_table(root / "proc/meminfo", "MemAvailable:")
    free = [kilobytes << 10 if kilobytes else memory()]
    for group, limit, used, cache in _memory_groups(root):
        most = _number(group / limit)
        if most is not None and most < _ENDLESS:
            taken = (_number(group / used) or 0) - _of_table(group / "memory.stat", cache)
            free.append(max(0, most - max(0, taken)))
    return min(free)


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of processors, or the quota of a control group if it is less."""
    counts = [cores()]
    for controller, group in _groups(root):
        if controller == "":
            quota, _, period = _text(group / "cpu.max").partition(" ")
        elif "cpu" in controller.split(","):
            quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
        else:
            continue
        if quota.isdigit() and period.isdigit() and int(period):
            counts.append(max(1, int(quota) // int(period)))
    return min(counts)


def _memory_groups(root: Path) -> Iterator[tuple[Path, str, str, str]]:
    for controller, group in _groups(root):
        if controller == "":
            yield group, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controller.split(","):
            yield group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"


def _groups(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield controllers ("" for version 2) and folder of each control group of this process, outermost last."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        mounts = root / "sys/fs/cgroup"
        top = mounts / controllers.removeprefix("name=") if controllers else mounts
        folder = top / path.lstrip("/")
        # In a container, the path may be the host's. Then only the top exists.
        for group in (folder, *(parent for parent in folder.parents if parent.is_relative_to(top))):
            yield controllers, group


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _of_table(path: Path, name: str) -> int:
    """Return the number after a name in a table, or 0."""
    for line in _text(path).splitlines():
        words = line.split()
        if words[:1] == [name] and words[1].isdigit():
            return int(words[1])
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
