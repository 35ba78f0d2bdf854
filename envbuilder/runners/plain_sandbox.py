"""Run a program in a sandbox where the kernel refuses namespaces. It takes bubblewrap's options.

    plain_sandbox.py LOADER LIBRARIES PROOT STORE [OPTION]… -- PROGRAM [ARGUMENT]…

proot shows the program the files as bubblewrap would mount them. A filter of system calls takes its network away. Where the
kernel has Landlock (Linux 5.19), that limits it to these files too, and keeps it from other processes: proot alone is no
border, because a program can end it. The exit code is the program's.

Weaker than namespaces: the program sees the machine's list of processes, and can change modes and times of the user's files
if it ends proot. It makes no socket that has a name, so it reaches no service of the user. For root,
`enter_sandbox.py` has taken an id that nobody has, which owns none of these files.

Only the standard library, because a build starts it as a program of its own.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import signal
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_SET_DEATH_SIGNAL, _SET_SUBREAPER, _NO_NEW_PRIVILEGES, _SET_SECCOMP = 1, 36, 38, 22  # prctl(2)
_DROP_CAPABILITY, _CAPABILITIES = 24, 64
_KEPT: Final = (0, 1, 3, 4, 5, 6, 7)  # CAP_: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS: Final = {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
_FLAGS: Final = ("--unshare-all", "--die-with-parent", "--new-session", "--clearenv")
_PAIRS: Final = ("--ro-bind", "--bind", "--symlink", "--setenv")
_TICK: Final = 0.01  # seconds
_LOADER: Final = "loader"  # in the temporary folder
_ELF: Final = b"\x7fELF\x02\x01\x01"  # of 64 bits

# name_to_handle_at, execveat, statx, io_uring_setup, clone3, openat2, faccessat2, fchmodat2, setxattrat to removexattrat
_NEWER: Final = (303, 322, 332, 425, 435, 437, 439, 452, 463, 464, 465, 466)

# linux/landlock.h
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_LOOK: Final = _EXECUTE | _READ | _LIST
_NODES: Final = 1 << 6 | 1 << 11  # device nodes
_TRUNCATE: Final = 1 << 14
_CHANGE: Final = ((1 << 15) - 1) & ~_NODES
_OLDEST: Final = 2  # before it, no file may get another folder
_ABI_TRUNCATE, _ABI_SCOPES = 3, 6


@dataclass(slots=True, kw_only=True)
class Sandbox:
    """What bubblewrap's options say. `shown` are folders and files of this machine: source, target, whether writable."""

    own: Path  # a temporary folder: the root, where no source is
    root: Path
    shown: list[tuple[str, str, bool]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    is_root: bool = False
    folder: str = "/"
    calls: bytes = b""  # the filter of system calls, as `enter_sandbox.py` made it

    def place(self, target: str) -> Path:
        """Return the place of a path in the folder, with the folders above it."""
        path = self.own / "root" / target.strip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def show(self, source: str, target: str, *, writable: bool) -> None:
        if target == "/":
            self.root = Path(source)
        else:
            place = self.place(target)
            if Path(source).is_dir():
                place.mkdir(exist_ok=True)
            else:
                place.touch()
        self.shown.append((source, target, writable))

    def show_own(self, target: str) -> None:
        self.place(target).mkdir(exist_ok=True)
        self.shown.append((str(self.place(target)), target, True))

    def show_devices(self, target: str) -> None:
        self.show_own(target)
        for name in ("shm", "pts"):
            (self.place(target) / name).mkdir()
        for name, link in _LINKS.items():
            (self.place(target) / name).symlink_to(f"/proc/self/{link}")
        for name in _DEVICES:
            if Path("/dev", name).exists():  # in `apptainer exec --containall`, /dev/full does not
                self.show(f"/dev/{name}", f"{target}/{name}", writable=True)


def read_options(words: Sequence[str], folder: Path) -> tuple[Sandbox, list[str]]:
    """Read bubblewrap's options, as far as envbuilder gives them. Returns the program with its arguments, too."""
    sandbox, left = Sandbox(own=folder, root=folder / "root"), list(words)
    sandbox.root.mkdir()
    while left:
        option = left.pop(0)
        if option == "--":
            return sandbox, left
        if option in _FLAGS:
            continue
        value, target = left.pop(0), left.pop(0) if option in _PAIRS else ""
        match option:
            case "--bind" | "--ro-bind":
                sandbox.show(value, target, writable=option == "--bind")
            case "--symlink":
                sandbox.place(target).symlink_to(value)
            case "--setenv":
                sandbox.environment[value] = target
            case "--tmpfs":
                sandbox.show_own(value)
            case "--remount-ro":
                sandbox.shown = [(*show[:2], show[2] and show[1] != value) for show in sandbox.shown]
            case "--dir":
                sandbox.place(value).mkdir(exist_ok=True)
            case "--proc":
                sandbox.show("/proc", value, writable=False)
            case "--dev":
                sandbox.show_devices(value)
            case "--uid":
                sandbox.is_root = value == "0"
            case "--chdir":
                sandbox.folder = value
            case "--seccomp":
                with os.fdopen(int(value), "rb") as stream:
                    sandbox.calls = stream.read()
            case "--gid" | "--cap-add" | "--cap-drop" | "--hostname":
                pass
            case _:
                raise SystemExit(f"plain_sandbox: `{option}` is not known")
    raise SystemExit("plain_sandbox: no program is named")


def proot_arguments(sandbox: Sandbox, argv: Sequence[str]) -> list[str]:
    words = ["-r", str(sandbox.root), "-w", sandbox.folder]
    if sandbox.is_root:
        words.append("-0")
    for source, target, _ in sandbox.shown:
        if target != "/":
            words += ["-b", f"{source}:{target}!"]
    return [*words, *argv]


# ------------------------------------------------------------------------------------------------------- what the kernel holds


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def filter_calls() -> None:
    """Refuse the network, calls that are newer than proot, and its own heap.

    `socket` makes those of the kernel alone (netlink): one of AF_UNIX could connect to a service of the user, such as the engine
    or the agent of SSH, by the name of a file, which Landlock does not limit. `socketpair` is not limited. proot would not translate the paths
    of newer calls, and programs know what to do instead. In place of `brk` proot maps a heap of its own, and counts one for two
    programs that threads of one process start at once by `posix_spawn`: they write into each other's. The C library then maps.
    """
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    allow = (answer, 0, 0, 0x7FFF0000)

    def refuse(number: int) -> tuple[int, int, int, int]:
        return (answer, 0, 0, 0x00050000 | number)  # SECCOMP_RET_ERRNO

    steps = [
        (load, 0, 0, 4), (equal, 1, 0, 0xC000003E), refuse(errno.ENOSYS),  # AUDIT_ARCH_X86_64
        (load, 0, 0, 0), (at_least, 0, 1, 1 << 30), refuse(errno.ENOSYS),  # of x32
        *(step for number in _NEWER for step in ((equal, 0, 1, number), refuse(errno.ENOSYS))),
        (equal, 0, 1, 12), refuse(0),  # brk
        # mmap of proot's heap: its size (argument 2), private and anonymous (4), and -1 for a file (5) in 64 bits, where C has 32
        (equal, 0, 8, 9), (load, 0, 0, 24), (equal, 0, 5, 0x1001000), (load, 0, 0, 40), (equal, 0, 3, 0x22),
        (load, 0, 0, 52), (equal, 0, 1, 0xFFFFFFFF), refuse(errno.ENOMEM), allow,
        (equal, 1, 0, 41), allow,  # socket
        (load, 0, 0, 16), (equal, 1, 0, 16), refuse(errno.EAFNOSUPPORT), allow,
    ]  # fmt: skip
    install_filter(b"".join(struct.pack("=HBBI", *step) for step in steps))


def install_filter(steps: bytes) -> None:
    code = ctypes.create_string_buffer(steps)
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps) // 8, ctypes.addressof(code)))
    _checked(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    _checked(_libc.prctl(_SET_SECCOMP, 2, program, 0, 0), "PR_SET_SECCOMP")


def drop_capabilities() -> None:
    """Leave root in a container only what is needed to write files as their owner does. To others this means nothing."""
    for one in range(_CAPABILITIES):
        if one not in _KEPT:
            _libc.prctl(_DROP_CAPABILITY, one, 0, 0, 0)


def limit_files(readable: Sequence[str], writable: Sequence[str]) -> None:
    """Allow this process and all below it these files alone, if the kernel has Landlock."""
    abi = _libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1)
    if abi < _OLDEST:
        return
    change = _CHANGE if abi >= _ABI_TRUNCATE else _CHANGE & ~_TRUNCATE
    scopes = 3 if abi >= _ABI_SCOPES else 0  # abstract sockets, signals
    rules = struct.pack("=QQQ", change | _NODES, 0, scopes)[: 24 if scopes else 8]
    ruleset = _checked(
        _libc.syscall(_CREATE, rules, ctypes.c_size_t(len(rules)), 0), "landlock_create_ruleset"
    )
    for paths, allowed in ((readable, _LOOK), (writable, change)):
        for path in paths:
            file = os.open(path, os.O_PATH | os.O_CLOEXEC)
            is_folder = stat.S_ISDIR(os.fstat(file).st_mode)
            bits = allowed if is_folder else allowed & (_EXECUTE | _READ | _WRITE | _TRUNCATE)
            rule = struct.pack("=Qi", bits, file)
            _checked(_libc.syscall(_ADD, ruleset, 1, rule, 0), f"landlock_add_rule of {path}")
            os.close(file)
    _checked(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    _checked(_libc.syscall(_RESTRICT, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def write_loader(proot: Path, path: Path) -> None:
    """Write the program that starts others for proot. proot holds it, and would put it into /tmp, where it may not run."""
    content = proot.read_bytes()
    loader = content[content.index(_ELF, 1) :]
    sections, size, count = struct.unpack_from("=Q10xHH", loader, 40)
    path.write_bytes(loader[: sections + size * count])
    path.chmod(0o755)


@contextlib.contextmanager
def own_folder(store: Path) -> Iterator[Path]:
    """Yield a temporary folder of the store (`core.cache.Store.workspace`), where programs may run. `/tmp` may forbid it."""
    path = Path(tempfile.mkdtemp(prefix="work-", dir=store / "work"))
    holder = store / "locks" / path.name
    with holder.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            holder.unlink(missing_ok=True)


def _children(pid: int) -> set[int]:
    try:
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()))
    except FileNotFoundError:  # it has ended
        return set()


def _end_all() -> None:
    """End the program and all that it started: they are our children once their parents have ended."""
    while children := _children(os.getpid()):
        _kill(children)
        with contextlib.suppress(ChildProcessError):
            for _ in children:
                os.wait()


def _kill(processes: Iterable[int]) -> None:
    for one in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def _wait_for(proot: int) -> int:
    """Return the exit code. proot waits for all that the program started; here its own end counts, as in a namespace."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == proot:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if not pid:
            if not _children(proot):  # the program has ended, and what it left are orphans
                _kill(_children(os.getpid()) - {proot})
            time.sleep(_TICK)


def main() -> int:
    loader, libraries, proot, store, *words = sys.argv[1:]
    _libc.prctl(_SET_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    _libc.prctl(_SET_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with own_folder(Path(store)) as folder:
        try:
            sandbox, argv = read_options(words, folder)
            write_loader(Path(proot), folder / _LOADER)
            options = ("--library-path", libraries, "--argv0", "proot", proot)
            program = (loader, *options, *proot_arguments(sandbox, argv))
            pid = os.fork()
            if not pid:
                _become(program, sandbox, tools=(loader, libraries, proot))
            return _wait_for(pid)
        finally:
            _end_all()


def _become(program: Sequence[str], sandbox: Sandbox, *, tools: Sequence[str]) -> None:
    """Replace this process by proot, with the limits of the sandbox."""
    try:
        os.setsid()
        drop_capabilities()
        _libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        filter_calls()
        if sandbox.calls:
            install_filter(sandbox.calls)
        readable = [source for source, _, is_writable in sandbox.shown if not is_writable]
        writable = [source for source, _, is_writable in sandbox.shown if is_writable]
        limit_files((*readable, *tools), (str(sandbox.own), *writable))
        environment = sandbox.environment | {"PROOT_LOADER": str(sandbox.own / _LOADER)}
        os.execve(program[0], list(program), environment)  # noqa: S606
    except BaseException as error:  # noqa: BLE001 - a forked child must not return
        sys.stderr.write(f"plain_sandbox: {error}\n")
        sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
