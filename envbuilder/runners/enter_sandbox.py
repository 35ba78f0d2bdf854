"""Start bubblewrap with nothing of whoever builds: no variables, no root, and a filter of system calls.

    enter_sandbox.py [--layers [FILE OFFSET FOLDER]… --] [MACHINE EMULATOR [OVER BELOW]…] -- OPTION… -- PROGRAM [ARGUMENT]…
    enter_sandbox.py --emulate MACHINE EMULATOR [OVER BELOW]… -- PROGRAM [ARGUMENT]…

OPTIONs are bubblewrap's. Each FILE has a squashfs at byte OFFSET, which squashfuse mounts at the empty FOLDER for this program alone.
MACHINE and what follows it are for programs of another processor. The second form starts a program that knows those of another
processor, without a sandbox.

A sandbox that root starts would run as the machine's root, who owns files of the kernel such as
/proc/sys/kernel/core_pattern. So root takes an id here that nobody has. That id may not enter root's folders. Whatever
bubblewrap is to mount is therefore mounted first below a folder that only this process sees, read-only unless the sandbox
may write there. What the sandbox may write is given to the id. bubblewrap then does what it does for an ordinary user.

Only the standard library, because a build starts it as a program of its own: a process with threads cannot enter a user
namespace.
"""

import contextlib
import ctypes
import errno
import itertools
import os
import resource
import select
import shutil
import signal
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

REFUSED: Final = 98  # exit code
# Lies beside a `bwrap` that is `plain_sandbox.py`: it needs no namespaces, and gives up root in its own way.
PLAIN: Final = "plain"
# Ids for foreign code, of which the first that is mapped here is taken. The first lies in a range that no program uses
# (https://systemd.io/UIDS-GIDS/). The second is for containers, which have 65,536 ids.
IDS: Final = (1_900_000_000, 65_533)
_FLAGS: Final = ("--unshare-all", "--die-with-parent", "--new-session", "--clearenv")
_PAIRS: Final = ("--ro-bind", "--bind", "--symlink", "--setenv")
_STAGE: Final = Path("/tmp")  # noqa: S108 - every machine has it; here it is covered by a new file system

_libc: Final = ctypes.CDLL(None, use_errno=True)
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000  # CLONE_NEWUSER, CLONE_NEWNS
_NAMESPACES: Final = 0x7E020000  # CLONE_NEW…: user, mounts, cgroup, UTS, IPC, processes, network
_READ_ONLY, _NO_SUID, _NO_DEVICES, _REMOUNT, _BIND, _RECURSIVE = 1, 2, 4, 32, 4096, 16384  # MS_…
_PRIVATE: Final = 1 << 18 | _RECURSIVE
_SAME_FLAGS: Final = 0xC0F  # flags with the same number in statvfs(3) and mount(2)
_RELATIVE_TIMES: Final = (4096, 1 << 21)  # ST_RELATIME, MS_RELATIME
_SET_DUMPABLE, _SET_SECURE_BITS, _AMBIENT = 4, 28, 47  # prctl(2)
_NO_FIX, _RAISE, _DAC_OVERRIDE = 4, 2, 1  # SECBIT_NO_SETUID_FIXUP, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE
_LANDLOCK, _LANDLOCK_VERSION = 444, 2  # landlock_create_ruleset; before 2, no file may get another folder

_X86, _ARM = 62, 183  # e_machine of 64-bit programs
# Calls that reach beyond a build: mounts, namespaces, modules, clocks, keys, file handles, tracing of the kernel.
_DENIED: Final = {
    # mount, umount2, pivot_root, unshare, setns, swapon, swapoff, reboot, sethostname, setdomainname, init_module,
    # delete_module, finit_module, kexec_load, kexec_file_load, acct, settimeofday, clock_settime, clock_adjtime, adjtimex,
    # quotactl, bpf, perf_event_open, userfaultfd, add_key, request_key, keyctl, name_to_handle_at, open_by_handle_at, syslog,
    # fanotify_init; on x86 also iopl, ioperm
    _X86: (
        165, 166, 155, 272, 308, 167, 168, 169, 170, 171, 175, 176, 313, 246, 320, 163, 164, 227, 305, 159,
        179, 321, 298, 323, 248, 249, 250, 303, 304, 103, 300, 172, 173,
    ),
    _ARM: (
        40, 39, 41, 97, 268, 224, 225, 142, 161, 162, 105, 106, 273, 104, 294, 89, 170, 112, 266, 171,
        60, 280, 241, 282, 217, 218, 219, 264, 265, 116, 262,
    ),
}  # fmt: skip
# Of one number on all processors: open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, mount_setattr, quotactl_fd,
# open_tree_attr.
_DENIED_TOO: Final = (428, 429, 430, 431, 432, 433, 442, 443, 467)
# io_uring_setup, io_uring_enter, io_uring_register; and clone3, whose flags a filter cannot read. Programs do without.
_ABSENT: Final = (425, 426, 427, 435)
_READ_BY_ARGUMENT: Final = {_X86: (56, 41, 16), _ARM: (220, 198, 29)}  # clone, socket, ioctl
_ANSWERED: Final = {
    # chown, fchown, lchown, fchownat; and setuid, setgid, setreuid, setregid, setgroups, setresuid, setresgid
    _X86: (92, 93, 94, 260, 105, 106, 113, 114, 116, 117, 119),
    _ARM: (55, 54, 146, 144, 145, 143, 159, 147, 149),
}
# setxattr, lsetxattr, fsetxattr: file capabilities and ACLs, which a layer has from an image alone. Programs that copy a file change
# its mode instead.
_UNSUPPORTED: Final = {_X86: (188, 189, 190), _ARM: (5, 6, 7)}
# Processes and threads at once of a sandbox's root user. Packages need some ten; Java starts one or two for each core.
_MOST: Final = 1000
_FAMILIES: Final = (1, 2, 10, 16)  # AF_: UNIX, INET, INET6, NETLINK
_TERMINAL: Final = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: they type into a terminal


def filter_of_calls(*, is_root: bool) -> bytes:
    """Return the filter that bubblewrap sets at its end, as an array of struct sock_filter (seccomp(2)).

    The root user of a sandbox has one id. What changes owners or its own id succeeds there and does nothing; files have no attributes.
    """
    with Path("/proc/self/exe").open("rb") as program:
        machine = int.from_bytes(program.read(20)[18:], "little")
    clone, socket, ioctl = _READ_BY_ARGUMENT[machine]
    load, equal, at_least, any_bit, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    number, architecture, first, second = 0, 4, 16, 24  # offsets in struct seccomp_data
    allow = (answer, 0, 0, 0x7FFF0000)

    def refuse(error: int) -> tuple[int, int, int, int]:
        return (answer, 0, 0, 0x00050000 | error)  # SECCOMP_RET_ERRNO

    def refuse_all(calls: Sequence[int], error: int) -> Iterator[tuple[int, int, int, int]]:
        for call in calls:
            yield from ((equal, 0, 1, call), refuse(error))

    steps = [
        (load, 0, 0, architecture), (equal, 1, 0, 0xC0000000 | machine), refuse(errno.ENOSYS),
        (load, 0, 0, number), (at_least, 0, 1, 1 << 30), refuse(errno.ENOSYS),  # of x32
        *refuse_all((*_DENIED[machine], *_DENIED_TOO), errno.EPERM), *refuse_all(_ABSENT, errno.ENOSYS),
        *refuse_all(_ANSWERED[machine] if is_root else (), 0),
        *refuse_all(_UNSUPPORTED[machine] if is_root else (), errno.EOPNOTSUPP),
        (equal, 0, 4, clone), (load, 0, 0, first), (any_bit, 0, 1, _NAMESPACES), refuse(errno.EPERM), allow,
        (equal, 0, 7, socket), (load, 0, 0, first), *((equal, len(_FAMILIES) - at, 0, family) for at, family in enumerate(_FAMILIES)),
        refuse(errno.EAFNOSUPPORT), allow,
        (equal, 0, 4, ioctl), (load, 0, 0, second), (equal, 1, 0, _TERMINAL[0]), (equal, 0, 1, _TERMINAL[1]), refuse(errno.EPERM),
        allow,
    ]  # fmt: skip
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


# --------------------------------------------------------------------------------------------------- an id that nobody has


def other_id() -> int | None:
    """Return an id that is neither root's nor a user's. None for an ordinary user, and where root has one id alone."""
    if os.geteuid():
        return None
    tables = [
        Path(f"/proc/self/{kind}_map").read_text(encoding="ascii").splitlines() for kind in ("uid", "gid")
    ]

    def is_mapped(number: int, rows: Sequence[str]) -> bool:
        return any(0 <= number - int(first) < int(count) for first, _, count in map(str.split, rows))

    return next((number for number in IDS if all(is_mapped(number, rows) for rows in tables)), None)


def give(folder: str, uid: int, gid: int, *, special: bool) -> None:
    """Give a folder or file, and all below it, to a user and group. A link is given, not what it names.

    `special` says whether set-uid and set-gid bits stay, which chown(2) clears.
    """

    def hand_over(name: str, at: int | None) -> None:
        facts = os.stat(name, dir_fd=at, follow_symlinks=False)
        if (facts.st_uid, facts.st_gid) != (uid, gid):
            os.chown(name, uid, gid, dir_fd=at, follow_symlinks=False)
        bits = facts.st_mode & (stat.S_ISUID | stat.S_ISGID)
        if bits and not stat.S_ISLNK(facts.st_mode):
            mode = stat.S_IMODE(facts.st_mode)
            os.chmod(name, mode if special else mode & ~bits, dir_fd=at)

    hand_over(folder, None)
    for _, folders, files, at in os.fwalk(folder, follow_symlinks=False):
        for name in (*folders, *files):
            hand_over(name, at)


def become(to: int) -> None:
    """Take an id for good, with all capabilities gone. Raises SystemExit unless that is so."""
    os.setgroups([])
    os.setresgid(to, to, to)
    os.setresuid(to, to, to)
    if os.getresuid() != (to, to, to) or os.getresgid() != (to, to, to):
        raise SystemExit("enter_sandbox: root's rights could not be given up")
    # So that it may write its own /proc/self/uid_map.
    _checked(_libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0), "PR_SET_DUMPABLE")


def leave_root(to: int) -> None:
    """Take an id for good, which may enter root's folders as root may: Landlock says which, and without it this is refused.

    The id owns no file of root's, so it cannot change their modes, times and owners.
    """
    if _libc.syscall(_LANDLOCK, None, ctypes.c_size_t(0), 1) < _LANDLOCK_VERSION:
        raise SystemExit(
            "enter_sandbox: this machine refuses namespaces, and its kernel has no Landlock (Linux 5.19), without which foreign "
            "code would have root's rights: build as an ordinary user"
        )
    # A change of the id leaves the capabilities, and access(2), which proot calls, counts them.
    _checked(_libc.prctl(_SET_SECURE_BITS, _NO_FIX, 0, 0, 0), "PR_SET_SECUREBITS")
    become(to)
    bits = 1 << _DAC_OVERRIDE
    header, sets = struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", bits, bits, bits, 0, 0, 0)
    _checked(_libc.capset(header, sets), "capset")
    _checked(_libc.prctl(_AMBIENT, _RAISE, _DAC_OVERRIDE, 0, 0), "PR_CAP_AMBIENT")


# ------------------------------------------------------------------------------------------------------------- the mounts


def _checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: Path, kind: str, flags: int, options: str = "") -> None:
    words = (os.fsencode(word) or None for word in (source, str(target), kind))
    _checked(_libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(options) or None), f"mount {target}")


def _enter_namespace(to: int) -> None:
    """Enter a name space of mounts. Root in a container may need one of users for that, with root's id and the other one."""
    try:
        _checked(_libc.unshare(_NEW_MOUNTS), "unshare")
    except OSError as error:
        if error.errno == errno.ENOSPC:  # said of disks everywhere else
            limit = "user.max_mnt_namespaces"
            raise SystemExit(f"enter_sandbox: this machine allows no more namespaces ({limit})") from None
        if error.errno != errno.EPERM:
            raise
        entered, waiting = os.pipe()
        if not (helper := os.fork()):  # of the outer namespace, where root may say which ids are inside
            try:
                os.close(waiting)
                os.read(entered, 1)
                for kind in ("uid", "gid"):
                    text = f"0 0 1\n{to} {to} 1\n"
                    Path(f"/proc/{os.getppid()}/{kind}_map").write_text(text, encoding="ascii")
                os._exit(0)
            finally:
                os._exit(1)
        _checked(_libc.unshare(_NEW_USER | _NEW_MOUNTS), "unshare")
        os.close(waiting)
        if os.waitpid(helper, 0)[1]:
            raise SystemExit(
                "enter_sandbox: this root may not change its user id, which foreign code must not have"
            ) from None
    _mount("", Path("/"), "", _PRIVATE)


def _stage(sources: dict[str, bool]) -> Callable[[str], str]:
    """Mount each source below a new folder, read-only unless it is writable. Returns the function from source to its place."""
    opened = {source: os.open(source, os.O_PATH | os.O_CLOEXEC) for source in sources}
    _mount("tmpfs", _STAGE, "tmpfs", _NO_SUID | _NO_DEVICES, "mode=755")
    places: dict[str, str] = {}
    for at, (source, is_writable) in enumerate(sources.items()):
        place, descriptor = _STAGE / str(at), opened[source]
        places[source] = str(place)
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode) and not is_writable and not mode & 0o004:
            # envbuilder's own file, installed under umask 077: the id may read a copy.
            shutil.copyfile(f"/proc/self/fd/{descriptor}", place)
            place.chmod(0o555 if mode & 0o100 else 0o444)
            os.close(descriptor)
            continue
        if stat.S_ISDIR(mode):
            place.mkdir()
        else:
            place.touch()
        _mount(f"/proc/self/fd/{descriptor}", place, "", _BIND | _RECURSIVE)
        if not is_writable:
            flags = os.statvfs(place).f_flag
            kept = flags & _SAME_FLAGS | (_RELATIVE_TIMES[1] if flags & _RELATIVE_TIMES[0] else 0)
            _mount("", place, "", kept | _BIND | _REMOUNT | _READ_ONLY)
        os.close(descriptor)
    return lambda source: places[source]


# ---------------------------------------------------------------------------------------------------- the files of layers

LAYERS: Final = "--layers"
_MOUNTERS: Final = ("squashfuse_ll", "squashfuse")


def _mounter() -> str:
    """Return the squashfuse of this machine, or that of its Apptainer. Raises SystemExit without one."""
    apptainer = Path(shutil.which("apptainer") or "/usr/bin/apptainer").resolve()
    places = (None, str(apptainer.parents[1] / "libexec/apptainer/bin"))  # None: PATH
    programs = (shutil.which(name, path=place) for place in places for name in _MOUNTERS)
    program = next(filter(None, programs), None)
    if program is None:
        raise SystemExit("enter_sandbox: `squashfuse` is not installed")
    return program


def _mount_layers(words: Sequence[str], *, for_others: bool) -> None:
    """Mount each FILE at its FOLDER in this namespace, until this process ends. Raises OSError, SystemExit."""
    program, options = _mounter(), "ro,allow_other" if for_others else "ro"
    mounting: dict[str, int] = {}  # folder → process
    before = {folder: Path(folder).stat().st_dev for folder in words[2::3]}
    for file, offset, folder in zip(words[::3], words[1::3], words[2::3], strict=True):
        command = [program, "-f", "-o", f"{options},offset={offset}", file, folder]
        mounting[folder] = _started(lambda: os.execv(program, command))  # noqa: B023, S606
    # A signal at the death of their parent would not reach them: it has another user by then.
    this, others = os.pidfd_open(os.getpid()), [os.pidfd_open(pid) for pid in mounting.values()]
    _started(lambda: _end_after(this, others))
    for folder, pid in mounting.items():
        while Path(folder).stat().st_dev == before[folder]:
            if os.waitpid(pid, os.WNOHANG)[0]:
                raise SystemExit(f"enter_sandbox: `{program}` could not mount `{folder}`")
            time.sleep(0.001)


def _started(work: Callable[[], object]) -> int:
    """Do the work in a new process, which reads and writes nothing. Returns its id."""
    if pid := os.fork():
        return pid
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        work()
    finally:
        os._exit(1)


def _end_after(process: int, others: Sequence[int]) -> None:
    """Wait until a process has ended, then end others. Each is a file descriptor of pidfd_open(2)."""
    os.setsid()  # not ended with the group of the process
    select.select([process], [], [])
    for other in others:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(other, signal.SIGTERM)


def _binds(options: Sequence[str]) -> Iterator[tuple[int, bool]]:
    """Yield the place of each option that mounts, and whether the sandbox may write there."""
    at = 0
    while at < len(options):
        if options[at] in ("--bind", "--ro-bind"):
            yield at, options[at] == "--bind"
        at += 1 if options[at] in _FLAGS else 3 if options[at] in _PAIRS else 2


def _become_with(
    to: int, options: list[str], emulator: list[str], bubblewrap: str, layers: Sequence[str]
) -> str:
    """Take an id for good that may enter what bubblewrap and the emulator need, and root's other folders not.

    Replaces their paths in `options` and `emulator` by those that the id may enter. Returns that of bubblewrap.
    """
    sources = {options[at + 1]: is_writable for at, is_writable in _binds(options)}
    # The toolbox's lies in a root of its own, in root's cache, and starts a program beside it.
    program = Path(bubblewrap).resolve()
    top = program.parents[2] if len(program.parents) > 3 else None
    for path in (*emulator[1:], *([str(top)] if top else [])):
        sources.setdefault(path, False)
    _enter_namespace(to)
    if layers:
        _mount_layers(layers, for_others=True)
    place = _stage(sources)
    for at, _ in _binds(options):
        options[at + 1] = place(options[at + 1])
    emulator[1:] = map(place, emulator[1:])
    become(to)
    return str(Path(place(str(top)), program.relative_to(top))) if top else bubblewrap


# ----------------------------------------------------------------------------------------- programs of another processor
#
# MACHINE is the number of the processor in ELF files, EMULATOR a static qemu for it. Since Linux 6.7, each user namespace may
# have a list of binary formats of its own. So an ordinary user may register qemu in it, and nothing changes on the machine. On
# an older kernel, what the machine itself has registered must serve. Each folder OVER is laid over the folder BELOW, for this
# program alone: native compilers over those of the other processor. The program keeps its process, user and group.

FORMATS: Final = Path("/proc/sys/fs/binfmt_misc")
_EMULATE: Final = "--emulate"
_KERNEL: Final = "Linux 6.7 or newer lets each user register an emulator for programs of another processor"
# The head of a little-endian 64-bit program, up to the field with the processor. The other values of the two fields
# that the mask loosens are a library (PIE) and another ABI.
_HEAD: Final = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00"
_MASK: Final = b"\xff" * 7 + b"\x00" + b"\xff" * 8 + b"\xfe\xff\xff\xff"
_END: Final = "\x01"  # ends each field: no path has it


def register(machine: int, emulator: str) -> None:
    """Register the emulator in the namespace. The kernel opens it now (F), so a root need not have it (see binfmt-misc)."""
    patterns = (_HEAD + machine.to_bytes(2, "little"), _MASK)
    head, mask = ("".join(f"\\x{byte:02x}" for byte in pattern) for pattern in patterns)
    fields = ("", f"envbuilder-{machine}", "M", "0", head, mask, emulator, "PF")
    with (FORMATS / "register").open("wb", buffering=0) as stream:
        stream.write(os.fsencode(_END.join(fields)))


def machine_has(machine: int, formats: Path = FORMATS) -> bool:
    """Return whether the machine runs programs of this processor by an emulator that no root needs to have (F)."""
    head = (_HEAD[:16] + b"\x02\x00" + machine.to_bytes(2, "little")).hex()
    for path in formats.glob("*"):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        flags = next((line.partition(":")[2] for line in lines if line.startswith("flags:")), "")
        if "enabled" in lines and "F" in flags and f"magic {head}" in lines:
            return True
    return False


def emulated(words: Iterable[str], argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that starts `argv` so, without a sandbox. `words` are MACHINE, EMULATOR and the folders."""
    return (sys.executable, "-I", __file__, _EMULATE, *words, "--", *argv)


def trial(machine: int) -> tuple[str, ...]:
    """Return the command line that shows whether this works here. It registers a program that nothing starts."""
    return emulated((str(machine), sys.executable), ("true",))


def _enter_user(flags: int, *, user: int, group: int) -> None:
    """Enter a user namespace in which this user and group are called so, and what else `flags` say."""
    maps = {"setgroups": "deny", "uid_map": f"{user} {os.getuid()} 1", "gid_map": f"{group} {os.getgid()} 1"}
    _checked(_libc.unshare(_NEW_USER | flags), "unshare")
    for name, text in maps.items():
        Path("/proc/self", name).write_text(text, encoding="ascii")


def _emulate(words: Sequence[str]) -> None:
    """Enter the namespace that MACHINE, EMULATOR and the folders of `words` describe. Raises OSError."""
    machine, emulator, *folders = words
    is_there = machine_has(int(machine))
    user, group = os.getuid(), os.getgid()
    _enter_user(_NEW_MOUNTS, user=0, group=0)  # the list of formats belongs to its root user
    _mount("", Path("/"), "", _PRIVATE)
    try:
        _mount("binfmt_misc", FORMATS, "binfmt_misc", 0)
    except OSError:
        if not is_there:
            sys.stderr.write(f"enter_sandbox: {_KERNEL}\n")
            raise
    else:
        register(int(machine), emulator)
    escaped = [folder.translate({ord(sign): f"\\{sign}" for sign in "\\:,"}) for folder in folders]
    for over, below, target in zip(escaped[::2], escaped[1::2], folders[1::2], strict=True):
        _mount("overlay", Path(target), "overlay", _READ_ONLY, f"lowerdir={over}:{below},userxattr")
    if user:
        _enter_user(0, user=user, group=group)


# -------------------------------------------------------------------------------------------------------------- the start


def limit_processes() -> None:
    """Let this user have only some thousand processes more from here.

    The kernel counts all of the user, also those that a container does not show, so a trial finds out how many there are.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    soft %= 1 << 64  # -1 is none
    most = _MOST
    while most < soft:
        resource.setrlimit(resource.RLIMIT_NPROC, (most, hard))
        try:
            pid = os.fork()
        except BlockingIOError:
            most *= 2
            continue
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        break
    most = min(most + 2 * _MOST, soft)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def prepare(words: Sequence[str]) -> list[str]:
    """Give up root and the variables, enter the emulator's namespace if one is named, and return bubblewrap's command line.

    The caller replaces its process by it, with no variables. Raises OSError, or SystemExit with a reason.
    """
    layers: Sequence[str] = ()
    if words[0] == LAYERS:
        layers, words = words[1 : words.index("--")], words[words.index("--") + 1 :]
    emulated_by, rest = list(words[: words.index("--")]), words[words.index("--") + 1 :]
    options, argv = list(rest[: rest.index("--")]), rest[rest.index("--") + 1 :]
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        raise SystemExit("enter_sandbox: `bwrap` is not installed")
    to = other_id()
    if to is not None:
        for at, is_writable in _binds(options):
            if is_writable:
                give(options[at + 1], to, to, special=True)
        if Path(bubblewrap).with_name(PLAIN).exists():
            if layers:
                raise SystemExit("enter_sandbox: without namespaces, nothing can be mounted")
            leave_root(to)
        else:
            bubblewrap = _become_with(to, options, emulated_by, bubblewrap, layers)
    elif layers:
        user, group = os.getuid(), os.getgid()
        _enter_user(_NEW_MOUNTS, user=0, group=0)  # who may mount there
        _mount("", Path("/"), "", _PRIVATE)
        _mount_layers(layers, for_others=False)
        _enter_user(0, user=user, group=group)
    if emulated_by:
        _emulate(emulated_by)
    os.chdir("/")
    os.umask(0o022)  # the user's decides no mode of what is built
    is_root = ("--uid", "0") in itertools.pairwise(options)
    if is_root:
        limit_processes()
    filtered = os.memfd_create("filter", 0)  # bubblewrap inherits it
    os.write(filtered, filter_of_calls(is_root=is_root))
    os.lseek(filtered, 0, os.SEEK_SET)
    return [bubblewrap, "--seccomp", str(filtered), *options, "--", *argv]


def main() -> int:
    words, place = sys.argv[1:], ""
    try:
        if words[0] == _EMULATE:
            at = words.index("--")
            place = f"{words[at + 1]}: "
            _emulate(words[1:at])
            os.execvp(words[at + 1], words[at + 1 :])  # noqa: S606
        argv = prepare(words)
        os.execve(argv[0], argv, {})  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"enter_sandbox: {place}{error}\n")
    return REFUSED


if __name__ == "__main__":
    sys.exit(main())
