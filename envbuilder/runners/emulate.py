"""Run a program in a namespace that also knows programs of another processor.

    emulate.py MACHINE EMULATOR [OVER BELOW]… -- PROGRAM [ARGUMENT]…

MACHINE is the number of the processor in ELF files, EMULATOR a static qemu for it. Since Linux 6.7, each user namespace
may have a list of binary formats of its own. So an ordinary user may register qemu in it, and nothing changes on the
machine. On an older kernel, what the machine itself has registered must serve.

Each folder OVER is laid over the folder BELOW, for this program alone: native compilers over those of the other
processor.

The program keeps its process, user and group. This is a program of its own, because a process with threads cannot enter
a user namespace.
"""

import ctypes
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

FORMATS: Final = Path("/proc/sys/fs/binfmt_misc")
NO_EMULATION: Final = 97  # exit code
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000  # CLONE_NEWUSER, CLONE_NEWNS
_READ_ONLY, _PRIVATE = 1, 0x44000  # MS_RDONLY; MS_PRIVATE and MS_REC
_KERNEL: Final = "Linux 6.7 or newer lets each user register an emulator for programs of another processor"
# The head of a little-endian 64-bit program, up to the field with the processor. The other values of the two fields
# that the mask loosens are a library (PIE) and another ABI.
_HEAD: Final = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00"
_MASK: Final = b"\xff" * 7 + b"\x00" + b"\xff" * 8 + b"\xfe\xff\xff\xff"
_END: Final = "\x01"  # ends each field: no path has it

_libc: Final = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    words = (os.fsencode(word) or None for word in (source, target, kind))
    _checked(
        _libc.mount(*words, flags, os.fsencode(options) or None), f"mount {kind or 'private'} at {target}"
    )


def _enter(flags: int, *, user: int, group: int) -> None:
    """Enter a user namespace in which this user and group are called so, and what else `flags` say."""
    maps = (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {os.getuid()} 1"),
        ("gid_map", f"{group} {os.getgid()} 1"),
    )
    _checked(_libc.unshare(_NEW_USER | flags), "unshare")
    for name, text in maps:
        Path("/proc/self", name).write_text(text, encoding="ascii")


def _register(machine: int, emulator: str) -> None:
    """Register the emulator in the namespace. The kernel opens it now (F), so a root need not have it (see binfmt-misc)."""
    head, mask = (
        "".join(f"\\x{byte:02x}" for byte in part) for part in (_HEAD + machine.to_bytes(2, "little"), _MASK)
    )
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


def _lay_over(over: str, below: str) -> None:
    folders = ":".join(re.sub(r"([\\:,])", r"\\\1", folder) for folder in (over, below))
    _mount("overlay", below, "overlay", _READ_ONLY, f"lowerdir={folders},userxattr")


def command_line(words: Iterable[str], argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that starts `argv` by this program. `words` are those before its `--`."""
    return (sys.executable, "-I", __file__, *words, "--", *argv)


def trial(machine: int) -> tuple[str, ...]:
    """Return the command line that shows whether this works here. It registers a program that nothing starts."""
    return command_line((str(machine), sys.executable), ("true",))


def enter(words: Sequence[str]) -> None:
    """Enter the namespace that MACHINE, EMULATOR and the folders of `words` describe. Raises OSError."""
    machine, emulator, *folders = words
    is_there = machine_has(int(machine))
    user, group = os.getuid(), os.getgid()
    _enter(_NEW_MOUNTS, user=0, group=0)  # the list of formats belongs to its root user
    _mount("", "/", "", _PRIVATE)
    try:
        _mount("binfmt_misc", str(FORMATS), "binfmt_misc")
    except OSError:
        if not is_there:
            sys.stderr.write(f"emulate: {_KERNEL}\n")
            raise
    else:
        _register(int(machine), emulator)
    for over, below in zip(folders[::2], folders[1::2], strict=True):
        _lay_over(over, below)
    if user:
        _enter(0, user=user, group=group)


def main(words: Sequence[str]) -> int:
    at = words.index("--")
    argv = words[at + 1 :]
    try:
        enter(words[:at])
        os.execvp(argv[0], list(argv))  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"emulate: {argv[0]}: {error}\n")
    return NO_EMULATION


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
