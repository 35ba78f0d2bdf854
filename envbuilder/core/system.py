"""What the kernel, the control groups, the accounts and the package manager of this machine say."""

import ctypes
import fcntl
import os
import platform
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

_LATEST: Final = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp())
_ENDLESS: Final = 1 << 60  # version 1 of control groups writes a number as large as this for "no limit"
TABLE: Final = Path(__file__).with_name("packages.toml")
SETUP: Final = Path(__file__).parents[2] / "scripts/setup"  # a checkout has it, an installed package does not
DOCKER_SOCKET: Final = "unix:///var/run/docker.sock"  # where DOCKER_HOST names no other place
NO_LINKS: Final = os.O_NOFOLLOW | os.O_CLOEXEC  # for os.open


def utc_time(seconds: float) -> datetime:
    """Return the time of a file. A file system may hold any, `datetime` none after the year 9999."""
    return datetime.fromtimestamp(min(max(seconds, 0), _LATEST), UTC)


def lock_file(file: IO[bytes] | IO[str] | int, *, wait: bool = True, shared: bool = False) -> None:
    """Lock an open file until it is closed. Raises BlockingIOError if another process has it and `wait` is false."""
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(file, how if wait else how | fcntl.LOCK_NB)


def machine_name() -> str:
    """Return the name of this machine's processor, as `uname -m`, in lower case."""
    return platform.machine().lower()


def boot_identity() -> str:
    """Return what tells this start of the machine from others; "" where no file says it."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text(encoding="ascii").strip() if path.exists() else ""


def sync_file_system(folder: Path) -> None:
    """Wait until everything on the folder's file system is on the disk; on all of them where there is no syncfs(2)."""
    syncfs = getattr(ctypes.CDLL(None), "syncfs", None)
    descriptor = os.open(folder, os.O_RDONLY | NO_LINKS)
    try:
        if syncfs is None or syncfs(descriptor):
            os.sync()
    finally:
        os.close(descriptor)


def is_ours(status: os.stat_result) -> bool:
    """Whether a file belongs to this user, who alone may write it."""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def why_no_engine(environment: Mapping[str, str]) -> str:
    """Return why no Docker engine answers this user, as the beginning of a sentence."""
    place = environment.get("DOCKER_HOST") or DOCKER_SOCKET
    socket = Path(place.removeprefix("unix://"))
    if socket.exists() and not os.access(socket, os.W_OK):
        return f"you may not use the Docker engine at `{socket}`"
    return "no Docker engine is running"


def user_ids() -> tuple[int, int]:
    return os.geteuid(), os.getegid()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The cores and the memory that a build may use."""

    threads: int
    memory: int  # bytes
    root: bool  # whether we are root


def usable_memory(root: Path = Path("/")) -> int:
    """Return the available memory in bytes: the least of the machine's and each control group's.

    The usual interfaces show a job, container or CI runner the whole machine. The kernel kills it when it uses more than its
    control group may.
    """
    # What is available without swapping: free pages and the page cache.
    kilobytes = _of_table(root / "proc/meminfo", "MemAvailable:")
    free = [kilobytes << 10 or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for group, limit, used, cache in _memory_groups(root):
        most = _number(group / limit)
        if most is not None and most < _ENDLESS:
            taken = (_number(group / used) or 0) - _of_table(group / "memory.stat", cache)
            free.append(max(0, most - max(0, taken)))
    return min(free)


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of processors, or the quota of a control group if it is less."""
    counts = [len(os.sched_getaffinity(0))]
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


def install_command(*packages: str) -> str:
    """Return the command of this machine's package manager for packages by their names in Debian, "" if it has none of them."""
    table, release, family = _find_family()
    names, before = family.get("names", {}), family.get("before", {})
    epel = table["epel"].get(release.get("ID"), "epel-release")
    major = release.get("VERSION_ID", "").partition(".")[0]
    steps = [before[name].format(epel=epel.format(major=major)) for name in packages if name in before]
    if wanted := dict.fromkeys(filter(None, (names.get(name, name) for name in packages))):
        steps.append(f"{family.get('install', 'install')} {' '.join(wanted)}")
    return " && ".join(dict.fromkeys(steps))


def install_hint(package: str) -> str:
    """Return how to install a package, or a program: by the package manager, and by `scripts/setup` where there is one."""
    table, _, family = _find_family()
    command = install_command(table["programs"].get(package, package))
    hint = f"`{command}`"
    if not command and package == "apptainer":
        hint = "Apptainer's own package: https://apptainer.org/docs/admin/latest/installation.html"
    if os.access(SETUP, os.R_OK) and family.get("install") in ("apt-get install", None):
        hint += "; `scripts/setup` installs all of them on Debian 12"
    return hint


def account_hint(user: int) -> str:
    """Return what to do where a program wants an account, and the user id has none."""
    return f"give user id {user} an account on this machine: `getent passwd {user}` must print a line"


def _find_family() -> tuple[Any, dict[str, str], Any]:
    """Return the table, /etc/os-release, and this system's row of the table, empty for an unknown one."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    name = release.get("ID", "")
    like = ["rhel"] if name == "ol" else release.get("ID_LIKE", "").split()  # Oracle's says fedora alone
    families = table["families"]
    return table, release, next((families[other] for other in (name, *like) if other in families), {})
