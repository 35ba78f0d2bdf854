"""Run a program whose changes of owners are recorded in place of being made.

    record_owners.py RECORD PROGRAM [ARGUMENT]…

A package's scripts give files to users that the one-id user namespace of an ordinary user does not have. Here the kernel
asks this process about each such call (seccomp user notification, Linux 5.5) and the call succeeds. RECORD, a file
of JSON, begins as a list of `[path, uid, gid]` and ends as a list of `[device, inode, uid, gid, capability]` of
the files that still exist: owners, and the value of `security.capability` in hexadecimal digits, "" if nobody set it.
The calls that change the process's own user succeed and do nothing. Below proot, which traces the same calls, it is
first: the paths are this machine's then.

The exit code is the program's. A program of its own, because the kernel applies a filter to a process and all below it.
"""

import ctypes
import errno
import json
import os
import select
import signal
import socket
import stat
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_ARCHITECTURE: Final = 0xC000003E  # AUDIT_ARCH_X86_64; the numbers are those of its system calls
_CHOWN, _FCHOWN, _LCHOWN, _FCHOWNAT = 92, 93, 94, 260
_SETXATTR, _LSETXATTR, _FSETXATTR = 188, 189, 190
_ASKED: Final = (_CHOWN, _FCHOWN, _LCHOWN, _FCHOWNAT, _SETXATTR, _LSETXATTR, _FSETXATTR)
_IGNORED: Final = (
    105,
    106,
    113,
    114,
    116,
    117,
    119,
)  # setuid, setgid, setreuid, setregid, setgroups, setresuid, setresgid
_SECCOMP: Final = 317
_ALLOW, _SUCCEED, _ASK = 0x7FFF0000, 0x00050000, 0x7FC00000  # SECCOMP_RET_: ALLOW, ERRNO of 0, USER_NOTIF
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

_libc: Final = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _install_filter() -> int:
    """Filter the calls of this process and all below it from now on. Returns the descriptor that the kernel asks through."""
    steps = [(0x20, 0, 0, 4), (0x15, 1, 0, _ARCHITECTURE), (0x06, 0, 0, _ALLOW), (0x20, 0, 0, 0)]
    for numbers, answer in ((_ASKED, _ASK), (_IGNORED, _SUCCEED)):
        for number in numbers:
            steps += [(0x15, 0, 1, number), (0x06, 0, 0, answer)]
    steps.append((0x06, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    _checked(_libc.prctl(38, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    return _checked(_libc.syscall(_SECCOMP, 1, 8, program), "SECCOMP_SET_MODE_FILTER with a listener")


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
            if Path(f"/proc/{pid}/root").samefile("/"):  # proot calls this user root
                uid, gid = (0 if uid == os.getuid() else uid), (0 if gid == os.getgid() else gid)
            self.note(file, uid, gid)
        return True


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


def _serve(listener: int, child: int, owners: Owners) -> None:
    """Answer the kernel until the child has ended."""
    poll = select.poll()
    for descriptor in (listener, child):
        poll.register(descriptor, select.POLLIN)
    while child not in (ready := dict(poll.poll())) or listener in ready:
        if listener not in ready:
            continue
        if not ready[listener] & select.POLLIN:
            poll.unregister(listener)  # nobody is left below the filter
            continue
        request = ctypes.create_string_buffer(_REQUEST.size)
        if _libc.ioctl(listener, ctypes.c_ulong(_RECEIVE), request) < 0:
            continue  # the caller was killed meanwhile
        identity, pid, _, number, _, _, *given = _REQUEST.unpack(request.raw)
        error, flags = 0, 0
        try:
            flags = 0 if owners.answer(pid, number, given) else _CONTINUE
        except OSError as refused:
            error = -(refused.errno or errno.EIO)
        reply = ctypes.create_string_buffer(_REPLY.pack(identity, 0, error, flags))
        _libc.ioctl(listener, ctypes.c_ulong(_ANSWER), reply)


def main() -> int:
    record, *argv = sys.argv[1:]
    owners = Owners()
    for path, uid, gid in json.loads(Path(record).read_text(encoding="utf-8")):
        owners.note(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC), uid, gid)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        try:
            _libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
            listener = _install_filter()
            socket.send_fds(theirs, [b"x"], [listener])
            os.close(listener)
            os.execvp(argv[0], argv)  # noqa: S606
        except BaseException as error:  # noqa: BLE001 - a forked child must not return
            sys.stderr.write(f"record_owners: {argv[0]}: {error}\n")
            sys.stderr.flush()
        os._exit(1)
    theirs.close()
    _, listeners, _, _ = socket.recv_fds(ours, 1, 1)
    if listeners:
        _serve(listeners[0], os.pidfd_open(pid), owners)
    _, status = os.waitpid(pid, 0)
    Path(record).write_text(json.dumps(owners.rows()), encoding="utf-8")
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
