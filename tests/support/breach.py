"""What hostile code tries in a sandbox. Prints the JSON of what it could do: {} if the wall holds.

    breach.py SECRET [FILE…]

SECRET is a text that only the user's variables hold. FILEs are shown read-only. It runs under any Python from 3.8.
"""

import ctypes
import fcntl
import glob
import json
import os
import platform
import socket
import stat
import sys

libc = ctypes.CDLL(None, use_errno=True)
secret, files = sys.argv[1], sys.argv[2:]
X86 = platform.machine() == "x86_64"
reached = {}


def attempt(name):
    def run(function):
        try:
            result = function()
        except (OSError, ValueError):
            return
        if result:
            reached[name] = str(result)

    return run


def call(x86, arm, *arguments):
    """Return whether a system call succeeds."""
    return libc.syscall(x86 if X86 else arm, *arguments) >= 0


def write(path, text):
    with open(path, "r+") as stream:
        stream.write(text)
    return path


def in_child(function):
    """Return whether the function is true in a process of its own, whose namespaces are lost."""
    pid = os.fork()
    if not pid:
        os._exit(0 if function() else 1)
    return os.waitpid(pid, 0)[1] == 0


def can(change, path):
    try:
        change(path)
    except OSError:
        return False
    return True


@attempt("files of the kernel")
def kernel_files():
    paths = (
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/core_pipe_limit",
        "/proc/sys/vm/swappiness",
        "/proc/sysrq-trigger",
    )
    return [
        path
        for path in paths
        if os.path.exists(path) and can(lambda path: os.close(os.open(path, os.O_WRONLY)), path)
    ]


@attempt("root of the machine")
def outer_root():
    with open("/proc/self/uid_map") as rows:
        inner_is_machine = [row.split() for row in rows] == [["0", "0", "4294967295"]]
    return inner_is_machine and os.getuid() == 0


@attempt("capabilities beyond a root folder")
def capabilities():
    with open("/proc/self/status") as lines:
        facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    beyond = int(facts["CapEff"], 16) & ~0b1000000000011111011  # CHOWN to SETUID, SYS_CHROOT
    wrong = [hex(beyond)] if beyond else []
    return wrong + ([] if facts["NoNewPrivs"].strip() == "1" else ["privileges by set-uid programs"])


@attempt("a mount that may be written")
def remount():
    return [
        path for path in ("/", "/usr", *files) if libc.mount(None, path.encode(), None, 32 | 4096, None) == 0
    ]


@attempt("a mount")
def mount():
    return libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0 or libc.umount2(b"/proc", 2) == 0


@attempt("a new way to mount")
def open_tree():
    return call(428, 428, -100, b"/", 1) or call(430, 430, b"tmpfs", 0)


@attempt("a user namespace")
def namespace():
    return in_child(lambda: libc.unshare(0x10000000) == 0) or in_child(lambda: libc.unshare(0x00020000) == 0)


@attempt("a user namespace by clone")
def cloned():
    pid = libc.syscall(56 if X86 else 220, 0x10000000 | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return pid > 0


@attempt("a user namespace by clone3")
def cloned_anew():
    arguments = (ctypes.c_ulonglong * 8)(0x10000000, 0, 0, 0, 17, 0, 0, 0)
    pid = libc.syscall(435, arguments, 64)
    if pid == 0:
        os._exit(0)
    return pid > 0


@attempt("a device")
def device():
    os.mknod("/tmp/disk", 0o600 | stat.S_IFBLK, os.makedev(8, 0))
    return True


@attempt("calls of the kernel")
def calls():
    tried = {
        "bpf": call(321, 280, 0, 0, 0), "keyctl": call(250, 219, 0, -3, 1), "io_uring": call(425, 425, 1, ctypes.create_string_buffer(120)),
        "userfaultfd": call(323, 282, 1), "perf_event_open": call(298, 241, ctypes.create_string_buffer(b"\0" * 4 + b"\x70", 112), 0, -1, -1, 0),
        "sethostname": call(170, 161, b"mine", 4), "name_to_handle_at": call(303, 264, -100, b"/usr", ctypes.create_string_buffer(256), ctypes.create_string_buffer(8), 0),
    }  # fmt: skip
    return [name for name, done in tried.items() if done]


@attempt("other sockets")
def sockets():
    families = []
    for family, kind in (
        (40, socket.SOCK_STREAM),
        (38, socket.SOCK_SEQPACKET),
        (17, socket.SOCK_RAW),
        (29, socket.SOCK_RAW),
    ):
        try:
            socket.socket(family, kind).close()
            families.append(family)
        except OSError:
            pass
    return families


@attempt("a network")
def network():
    return [name for _, name in socket.if_nameindex() if name != "lo"]


@attempt("the user's variables")
def variables():
    places = [name for name, value in os.environ.items() if secret in value]
    for path in glob.glob("/proc/*/environ"):
        try:
            with open(path, "rb") as stream:
                if secret.encode() in stream.read():
                    places.append(path)
        except OSError:
            pass
    return places


@attempt("a file that is shown read-only")
def shared():
    changes = {
        "write": lambda path: write(path, "changed"),
        "chmod": lambda path: os.chmod(path, 0o777),
        "unlink": os.unlink,
        "utime": os.utime,
    }
    return [f"{name} {path}" for path in files for name, change in changes.items() if can(change, path)]


@attempt("a key pressed in the user's terminal")
def terminal():
    with open("/dev/tty", "w") as tty:
        fcntl.ioctl(tty, 0x5412, b"x")
    return True


print(json.dumps(reached))
