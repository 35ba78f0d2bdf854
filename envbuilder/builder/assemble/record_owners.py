"""Run a program whose changes of owners are recorded in place of being made.

    record_owners.py RECORD ENTER [WORD]…

A package's scripts give files to users that the one-id user namespace of an ordinary user does not have. Here the kernel
asks this process about each such call (seccomp user notification, Linux 5.5) and the call succeeds. An older kernel stops
the program at these calls instead (ptrace), which proot below does not allow. RECORD, a file
of JSON, begins as a list of `[path, uid, gid]` and ends as a list of `[device, inode, uid, gid, capability]` of
the files that still exist: owners, and the value of `security.capability` in hexadecimal digits, "" if nobody set it.
The calls that change the process's own user succeed and do nothing. Below proot, which traces the same calls, it is
first: the paths are this machine's then.

A program with more than 1,000 processes and threads at once is ended, with all of them.

ENTER is `enter_sandbox.py`, which is given the words and says what to start: a filter would keep it from giving up root.

The exit code is the program's. A program of its own, because the kernel applies a filter to a process and all below it.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import runpy
import select
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_X86, _ARM = 62, 183  # e_machine of 64-bit programs
with Path("/proc/self/exe").open("rb") as _own:
    _MACHINE: Final = int.from_bytes(_own.read(20)[18:], "little")
_ARCHITECTURE: Final = 0xC0000000 | _MACHINE  # AUDIT_ARCH_…
_ABSENT: Final = -1  # Arm has the newer calls alone
_CHOWN, _FCHOWN, _LCHOWN, _FCHOWNAT, _SETXATTR, _LSETXATTR, _FSETXATTR, _SECCOMP = {
    _X86: (92, 93, 94, 260, 188, 189, 190, 317),
    _ARM: (_ABSENT, 55, _ABSENT, 54, 5, 6, 7, 277),
}[_MACHINE]
_ASKED: Final = (_CHOWN, _FCHOWN, _LCHOWN, _FCHOWNAT, _SETXATTR, _LSETXATTR, _FSETXATTR)
# setuid, setgid, setreuid, setregid, setgroups, setresuid, setresgid
_IGNORED: Final = {_X86: (105, 106, 113, 114, 116, 117, 119), _ARM: (146, 144, 145, 143, 159, 147, 149)}[
    _MACHINE
]
# Processes and threads at once. Packages need some ten; Java starts one or two for each core.
_MOST: Final = 1000
_BETWEEN: Final = 0.2  # seconds between two counts
_ALLOW, _SUCCEED, _ASK = 0x7FFF0000, 0x00050000, 0x7FC00000  # SECCOMP_RET_: ALLOW, ERRNO of 0, USER_NOTIF
_STOP: Final = 0x7FF00000  # SECCOMP_RET_TRACE
_RECEIVE, _ANSWER = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_: RECV, SEND
_CONTINUE: Final = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
_REQUEST: Final = struct.Struct("=QIIiIQ6Q")
_REPLY: Final = struct.Struct("=QqiI")
_CURRENT: Final = -100  # AT_FDCWD
_NO_FOLLOW, _EMPTY_PATH = 0x100, 0x1000  # AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH
_SAME: Final = 0xFFFFFFFF  # an owner that stays
_LONGEST: Final = 4096  # PATH_MAX
_MOST_LINKS: Final = 40  # links that a path may go through, as in Linux
_CAPABILITY: Final = b"security.capability"
# linux/ptrace.h
_SEIZE, _LISTEN, _CONTINUE_TRACED, _GET, _SET = 0x4206, 0x4208, 7, 12, 13  # PTRACE_: …, CONT, GETREGS, SETREGS  # fmt: skip
# PTRACE_O_: EXITKILL, TRACESECCOMP, and TRACEFORK, TRACEVFORK, TRACECLONE
_TRACED: Final = 0x100000 | 0x80 | 0xE
_AT_CALL, _AT_STOP = 7, 128  # PTRACE_EVENT_: SECCOMP, STOP
_STOPPING: Final = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_REGISTERS: Final = 27  # of x86-64
_ARGUMENTS: Final = (14, 13, 12, 7, 9, 8)  # rdi, rsi, rdx, r10, r8, r9 in struct user_regs_struct
_RESULT, _NUMBER = 10, 15  # rax, orig_rax
_WORD: Final = (1 << 64) - 1
_ALL: Final = 0x40000000  # __WALL

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _install_filter(*, traced: bool) -> int:
    """Filter the calls of this process and all below it from now on.

    Returns the descriptor that the kernel asks through, if it does not stop them for a tracer.
    """
    steps = [(0x20, 0, 0, 4), (0x15, 1, 0, _ARCHITECTURE), (0x06, 0, 0, _ALLOW), (0x20, 0, 0, 0)]
    for numbers, answer in ((_ASKED, _STOP if traced else _ASK), (_IGNORED, _SUCCEED)):
        for number in (one for one in numbers if one != _ABSENT):
            steps += [(0x15, 0, 1, number), (0x06, 0, 0, answer)]
    steps.append((0x06, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    _checked(_libc.prctl(38, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    return _checked(_libc.syscall(_SECCOMP, 1, 0 if traced else 8, program), "SECCOMP_SET_MODE_FILTER")


def _is_asked() -> bool:
    """Whether the kernel asks about calls, and lets one go on. Another process tries it, since a filter stays."""
    pid = os.fork()
    if not pid:
        try:
            listener = _install_filter(traced=False)
            _libc.ioctl(listener, ctypes.c_ulong(_ANSWER), _REPLY.pack(0, 0, 0, _CONTINUE))
            os._exit(ctypes.get_errno() != errno.ENOENT)  # EINVAL: it does not know the flag
        except OSError:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


class Owners:
    """The owners and capabilities of files, by device and inode. Each file is held open, so no other gets its inode."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], tuple[int, int, int, str]] = {}  # descriptor, uid, gid, capability

    def note(self, descriptor: int, uid: int = _SAME, gid: int = _SAME, capability: str = "") -> None:
        """Take over an open file, and what changes. As in Linux, a change of the owner takes the capability away."""
        status = os.fstat(descriptor)
        key = (status.st_dev, status.st_ino)
        held, old_uid, old_gid, _ = self._held.get(key, (descriptor, 0, 0, ""))
        new = (old_uid if uid == _SAME else uid, old_gid if gid == _SAME else gid, capability)
        if held != descriptor or new == (0, 0, ""):
            os.close(descriptor)
        if key in self._held or new != (0, 0, ""):
            self._held[key] = (held, *new)

    def rows(self) -> list[tuple[int, int, int, int, str]]:
        alive = {key: row for key, row in self._held.items() if os.fstat(row[0]).st_nlink}
        return [(*key, uid, gid, capability) for key, (_, uid, gid, capability) in sorted(alive.items())]

    def answer(self, pid: int, number: int, given: Sequence[int]) -> bool:
        """Note one call. Returns whether it is done; raises OSError, which the call then returns."""
        if number in (_FCHOWN, _FSETXATTR):
            file = os.open(f"/proc/{pid}/fd/{given[0]}", os.O_PATH | os.O_CLOEXEC)
        else:
            start, flags = _CURRENT, 0
            if number == _FCHOWNAT:
                start, flags = ctypes.c_int(given[0] & _SAME).value, given[4]
                given = given[1:]
            follow = number in (_CHOWN, _SETXATTR) or (number == _FCHOWNAT and not flags & _NO_FOLLOW)
            file = _find(pid, start, _read(pid, given[0]), follow=follow, empty=bool(flags & _EMPTY_PATH))
        if number in (_SETXATTR, _LSETXATTR, _FSETXATTR):
            if _read(pid, given[1]) != _CAPABILITY:
                os.close(file)
                return False
            self.note(file, capability=_memory(pid, given[2], given[3]).hex())
        else:
            uid, gid = given[1] & _SAME, given[2] & _SAME
            if Path(f"/proc/{pid}/root").samefile("/"):  # proot calls the program's own user root
                own = _ids(pid)
                uid, gid = (0 if uid == own[0] else uid), (0 if gid == own[1] else gid)
            self.note(file, uid, gid)
        return True


def _ids(pid: int) -> tuple[int, ...]:
    """Return the user and the group of a process."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return tuple(int(line.split()[1]) for line in lines if line.startswith(("Uid:", "Gid:")))


def _memory(pid: int, address: int, size: int) -> bytes:
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(memory, size, address)
    finally:
        os.close(memory)


def _read(pid: int, address: int) -> bytes:
    """Return the text at an address of a process."""
    try:
        text = _memory(pid, address, _LONGEST)
    except OSError:  # the next page is not its own
        text = _memory(pid, address, _LONGEST - address % _LONGEST)
    return text.partition(b"\0")[0]


def _find(pid: int, start: int, path: bytes, *, follow: bool, empty: bool) -> int:
    """Open what a path of a process means, below the root of the process."""
    if not path and not empty:
        raise FileNotFoundError(errno.ENOENT, "")
    top = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_CLOEXEC)
    folder = f"/proc/{pid}/cwd" if start == _CURRENT else f"/proc/{pid}/fd/{start}"
    at = os.dup(top) if path.startswith(b"/") else os.open(folder, os.O_PATH | os.O_CLOEXEC)
    left, links = [part for part in path.split(b"/") if part not in (b"", b".")], 0
    while left:
        part = left.pop(0)
        if part == b".." and os.path.sameopenfile(at, top):
            continue
        found = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        if stat.S_ISLNK(os.fstat(found).st_mode) and (left or follow):
            target = os.readlink(b"", dir_fd=found)
            os.close(found)
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            if target.startswith(b"/"):
                os.close(at)
                at = os.dup(top)
            left = [part for part in target.split(b"/") if part not in (b"", b".")] + left
            continue
        os.close(at)
        at = found
    os.close(top)
    return at


def _children(pid: int) -> list[list[int]]:
    """Return the children of each thread of a process."""
    found = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            text = (thread / "children").read_text(encoding="ascii")
            found.append(list(map(int, text.split())))
    return found


def _has_many(pid: int) -> bool:
    """Whether a process and all below it are more than `_MOST` threads."""
    todo, found = [pid], 0
    while todo and found <= _MOST:
        for started in _children(todo.pop()):
            found += 1
            todo += started
    return found > _MOST


def _limit_processes() -> None:
    """Let this user have only some thousand processes more from here, which holds between two counts.

    The kernel counts all of the user, also those that a container does not show, so a trial finds out how many there are.
    For root it has no limit.
    """
    soft, hard = (one % (1 << 64) for one in resource.getrlimit(resource.RLIMIT_NPROC))  # -1 is none
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


def _put_first(pid: int) -> None:
    """Let a process run before thousands of others. Root alone may; for all others the kernel has a limit of processes."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def _end(child: int) -> None:
    """End the sandbox, and with it all that runs in it: its first process is the only child of the program."""
    for one in (child, *(pid for started in _children(child) for pid in started)):
        with contextlib.suppress(ProcessLookupError):
            _put_first(one)
            os.kill(one, signal.SIGTERM if one == child else signal.SIGKILL)


def _answer(owners: Owners, pid: int, number: int, given: Sequence[int]) -> tuple[bool, int]:
    """Return whether a call is done, and its negative error number or 0."""
    try:
        return owners.answer(pid, number, given), 0
    except OSError as refused:
        return True, -(refused.errno or errno.EIO)


def _serve(listener: int, child: int, owners: Owners) -> int:
    """Answer the kernel until the program has ended. Returns its status."""
    poll, ended = select.poll(), os.pidfd_open(child)
    for descriptor in (listener, ended):
        poll.register(descriptor, select.POLLIN)
    counted, is_full = time.monotonic(), False
    while ended not in (ready := dict(poll.poll(_BETWEEN * 1000))) or listener in ready:
        if not is_full and time.monotonic() > counted + _BETWEEN:
            is_full = _has_many(child)
            if is_full:
                _end(child)
            counted = time.monotonic()
        if listener not in ready:
            continue
        if not ready[listener] & select.POLLIN:
            poll.unregister(listener)  # nobody is left below the filter
            continue
        request = ctypes.create_string_buffer(_REQUEST.size)
        if _libc.ioctl(listener, ctypes.c_ulong(_RECEIVE), request) < 0:
            continue  # the caller was killed meanwhile
        identity, pid, _, number, _, _, *given = _REQUEST.unpack(request.raw)
        is_done, error = _answer(owners, pid, number, given)
        flags = 0 if is_done else _CONTINUE
        reply = ctypes.create_string_buffer(_REPLY.pack(identity, 0, error, flags))
        _libc.ioctl(listener, ctypes.c_ulong(_ANSWER), reply)
    _, status = os.waitpid(child, 0)
    if is_full:
        with contextlib.suppress(ChildProcessError):  # what the end of the program ends, needs a moment
            while True:
                os.wait()
        _say_full()
    return status


def _trace(child: int, owners: Owners) -> int:
    """Answer the calls that the program and all below it are stopped at, until it has ended. Returns its status."""
    alive, is_full, code = {child}, False, 0
    while child in alive or (is_full and alive):
        try:
            pid, status = os.waitpid(-1, _ALL)
        except ChildProcessError:
            break
        if not os.WIFSTOPPED(status):
            alive.discard(pid)
            code = status if pid == child else code
            continue
        event, number = status >> 16, os.WSTOPSIG(status)
        if event == _AT_CALL:
            _answer_stopped(owners, pid)
        alive.add(pid)
        if len(alive) > _MOST and not is_full:
            is_full = True
            _end(child)
        # Fails if the process was killed meanwhile.
        if event == _AT_STOP and number in _STOPPING:
            _libc.ptrace(_LISTEN, pid, None, None)
        elif is_full and pid != child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        else:
            _libc.ptrace(_CONTINUE_TRACED, pid, None, None if event else number)
    if is_full:
        _say_full()
    return code


def _say_full() -> None:
    """Say why the program has ended: last, so that this is what the error shows."""
    sys.stderr.write(f"record_owners: a script started more than {_MOST} processes, and all were ended\n")
    sys.stderr.flush()


def _answer_stopped(owners: Owners, pid: int) -> None:
    """Answer the call that a process is stopped at: it goes on, or is left out and has a result."""
    registers = (ctypes.c_ulonglong * _REGISTERS)()
    if _libc.ptrace(_GET, pid, None, registers) < 0:
        return  # it was killed meanwhile
    is_done, error = _answer(owners, pid, registers[_NUMBER], [registers[one] for one in _ARGUMENTS])
    if is_done:
        registers[_NUMBER], registers[_RESULT] = _WORD, error & _WORD
        _libc.ptrace(_SET, pid, None, registers)


def main() -> int:
    record, enter, *words = sys.argv[1:]
    prepare = runpy.run_path(enter)["prepare"]
    owners = Owners()
    for path, uid, gid in json.loads(Path(record).read_text(encoding="utf-8")):
        owners.note(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC), uid, gid)
    _libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    ours, theirs = socket.socketpair()
    traced = not _is_asked()
    if traced and _MACHINE != _X86:
        raise SystemExit("record_owners: this kernel does not ask about calls: Linux 5.5 does")
    pid = os.fork()
    if not pid:
        try:
            argv = prepare(words)
            _libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG, which a change of the user clears
            _limit_processes()
            if traced:
                theirs.recv(1)
                _install_filter(traced=True)
            else:
                listener = _install_filter(traced=False)
                socket.send_fds(theirs, [b"x"], [listener])
                os.close(listener)
            os.execve(argv[0], argv, {})  # noqa: S606
        except BaseException as error:  # noqa: BLE001 - a forked child must not return
            sys.stderr.write(f"record_owners: {error}\n")
            sys.stderr.flush()
        os._exit(1)
    theirs.close()
    _put_first(0)
    if traced:
        _checked(_libc.ptrace(_SEIZE, pid, None, _TRACED), "this kernel does not ask about calls, and ptrace")
        ours.send(b"x")
        status = _trace(pid, owners)
    else:
        _, listeners, _, _ = socket.recv_fds(ours, 1, 1)
        status = _serve(listeners[0], pid, owners) if listeners else os.waitpid(pid, 0)[1]
    Path(record).write_text(json.dumps(owners.rows()), encoding="utf-8")
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
