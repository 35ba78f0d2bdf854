"""The calls of Linux that macOS or Windows lack, and what stands in for them there.

Everything but the assemble engine runs on these systems. No other module that they need imports `fcntl`.
"""

import contextlib
import ctypes
import errno
import getpass
import importlib.util
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

IS_POSIX: Final[bool] = importlib.util.find_spec("fcntl") is not None

if IS_POSIX:
    import fcntl
    import pwd
    import resource
else:  # Windows
    import msvcrt

_MEMORY: Final = 4 << 30  # bytes; what Docker Desktop and this program can count on
_LATEST: Final = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp())
_USERS: Final = 1 << 16  # of Debian and Ubuntu: `nobody` is next to the last
DOCKER_SOCKET: Final = "unix:///var/run/docker.sock"  # where DOCKER_HOST names no other place
NO_LINKS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)  # for os.open


def utc_time(seconds: float) -> datetime:
    """Return the time of a file. A file system may hold any, `datetime` none after the year 9999."""
    return datetime.fromtimestamp(min(max(seconds, 0), _LATEST), UTC)


def lock_file(file: IO[bytes] | IO[str] | int, *, wait: bool = True, shared: bool = False) -> None:
    """Lock an open file until it is closed. Raises BlockingIOError if another process has it and `wait` is false.

    Windows has no shared locks; nothing is locked instead.
    """
    if IS_POSIX:
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(file, how if wait else how | fcntl.LOCK_NB)
        return
    while not shared:
        descriptor = file if isinstance(file, int) else file.fileno()
        os.lseek(descriptor, 0, os.SEEK_SET)
        how = msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK  # type: ignore[attr-defined]
        try:
            msvcrt.locking(descriptor, how, 1)  # type: ignore[attr-defined]
        except OSError as error:
            if not wait:
                raise BlockingIOError(errno.EAGAIN, "another process has the lock") from error
            if error.errno != errno.EDEADLK:  # after ten seconds, as documented
                raise
        else:
            return


def machine_name() -> str:
    """Return the name of this machine's processor in lower case: `uname -m` of Linux or macOS, and amd64 or arm64 on Windows."""
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


def unlink_open(path: Path) -> None:
    """Remove a file that this process may have open. Windows refuses that, and the file stays."""
    with contextlib.suppress(*(() if IS_POSIX else (PermissionError,))):
        path.unlink(missing_ok=True)


def is_ours(status: os.stat_result) -> bool:
    """Whether a file belongs to this user, who alone may write it. Windows keeps that elsewhere."""
    return not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & 0o022)


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
    """Return the user and the group; those of Docker Desktop's containers on Windows."""
    return (os.geteuid(), os.getegid()) if hasattr(os, "geteuid") else (1000, 1000)


def home_of(user: int) -> str:
    """Return the home of an account, or "" for one without."""
    try:
        return pwd.getpwuid(user).pw_dir if IS_POSIX else ""
    except KeyError:
        return ""


def user_name() -> str:
    """Return the name of the user, or the number of one without a name, as in many containers."""
    if not IS_POSIX:
        return getpass.getuser()
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def lockable_memory() -> int | None:
    """Return the bytes that a program may keep in memory; None for no limit."""
    if not IS_POSIX:
        return None
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int:
    """Return the bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else _MEMORY


def read_at(descriptor: int, size: int, at: int) -> bytes:
    """Read at a place of a file. Where this moves the file's position, no other thread may read from it."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, at)
    os.lseek(descriptor, at, os.SEEK_SET)
    return os.read(descriptor, size)
