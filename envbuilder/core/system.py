"""What the kernel and the accounts of this machine say."""

import ctypes
import fcntl
import os
import platform
import pwd
import resource
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

_LATEST: Final = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp())
_USERS: Final = 1 << 16  # of Debian and Ubuntu: `nobody` is next to the last
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


def is_root() -> bool:
    return user_ids()[0] == 0


def may_give_away() -> bool:
    """Whether files may be given to any user: by root, unless it is that of a namespace which has few users."""
    users = Path("/proc/self/uid_map")  # lines of three numbers; the last says how many users
    if not is_root() or not users.exists():
        return is_root()
    return sum(int(line.split()[2]) for line in users.read_text(encoding="ascii").splitlines()) >= _USERS


def user_ids() -> tuple[int, int]:
    """Return the user and the group."""
    return os.geteuid(), os.getegid()


def home_of(user: int) -> str:
    """Return the home of an account, or "" for one without."""
    try:
        return pwd.getpwuid(user).pw_dir
    except KeyError:
        return ""


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


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


def memory() -> int:
    """Return the bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
