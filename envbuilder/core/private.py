"""What is of this user alone, and what is for others.

Artifacts, modules and vendored files are for others: whatever the umask, they may read them and enter the folders that a command
makes for them. A folder that was there keeps its mode. Keys, SSH settings, the cache and temporary folders are private. All else,
such as logs, follows the umask.

In a folder that others can write, they may take any name before this program does, with a link, a FIFO or a folder of theirs. Without
the sticky bit they may even exchange names later. So a folder is opened once, without following a link, and its owner is checked. Where
names may be exchanged, it is then reached through its descriptor.
"""

import contextlib
import errno
import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_to_all(path: str) -> None:
    """Let everybody read a file of this user, or enter a folder, whatever the umask. No link is followed."""
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mode = os.fstat(opened).st_mode
        wanted = mode | 0o444 | (0o111 if mode & 0o100 else 0)
        if wanted != mode:
            os.fchmod(opened, stat.S_IMODE(wanted))
    finally:
        os.close(opened)


def make_folder_for_all(folder: str) -> None:
    """Make a folder, and those above it that are missing, for everybody to enter."""
    if not os.path.isdir(folder):
        make_folder_for_all(os.path.dirname(os.path.abspath(folder)))
        with contextlib.suppress(FileExistsError):  # another process made it, or it is no folder
            Path(folder).mkdir()
            open_to_all(folder)


def kept_out(path: str) -> str:
    """Return which folder keeps others from this file or folder, as a sentence and a repair, or "".

    A closed folder with the setgid bit is for its group on purpose. One with an access list is not judged.
    """
    is_for_group = False
    for name in (*reversed(Path(path).parents), Path(path)):
        mode = name.stat().st_mode
        needed = 1 if name != Path(path) else 5 if stat.S_ISDIR(mode) else 4
        lets_others, lets_group = mode & needed == needed, mode >> 3 & needed == needed
        if lets_group if is_for_group else lets_others:
            continue
        with contextlib.suppress(OSError):  # of file systems without such lists
            if "system.posix_acl_access" in os.listxattr(name):
                continue
        if lets_group and mode & stat.S_ISGID:
            is_for_group = True
            continue
        verb = "enter" if stat.S_ISDIR(mode) else "read"
        who, letters = ("its group", "g") if is_for_group else ("others", "go")  # the group is not among `o`
        repair = f"chmod {letters}+{'x' if needed == 1 else 'rX'} {shlex.quote(str(name))}"
        return f"{who} cannot {verb} `{name}`; `{repair}` lets them"
    return ""


def may_be_exchanged(folder: str) -> bool:
    """Whether another user may rename what lies in the folder: its owner, or who may write it without the sticky bit."""
    status = os.stat(folder)
    is_open = bool(status.st_mode & 0o022) and not status.st_mode & stat.S_ISVTX
    return is_open or status.st_uid not in (0, os.geteuid())


def is_trusted(path: str) -> bool:
    """Whether a file or a folder belongs to this user or to root, the link to it included. False if there is none."""
    try:
        return {os.lstat(path).st_uid, os.stat(path).st_uid} <= {0, os.geteuid()}
    except OSError:
        return False


def is_in_place(path: str) -> bool:
    """Whether a file, or the link under its name, belongs to this user, to root or to the owner of its folder.

    In a shared folder anybody of the group may have put it there: root made the folder, or it has the setgid bit.
    """
    folder = os.stat(os.path.dirname(path) or ".")
    is_for_group = folder.st_mode & 0o2020 == 0o2020
    is_shared = not folder.st_mode & 0o002 and (folder.st_uid == 0 or is_for_group)
    return is_shared or os.lstat(path).st_uid in (0, os.geteuid(), folder.st_uid)


def refused(path: str) -> PermissionError:
    """Return the error for what another user may have put under a name. It names the owner."""
    try:
        status = os.lstat(path)
    except OSError:
        reason = "it was exchanged for something else"
    else:
        what = "is a link of" if stat.S_ISLNK(status.st_mode) else "belongs to"
        others = ", and others can write it" if status.st_mode & 0o022 and what == "belongs to" else ""
        reason = f"it {what} user {status.st_uid}{others}"
    text = f"expected a file or folder of user {os.geteuid()} that nobody else can write, but {reason}"
    return PermissionError(errno.EPERM, text, path)


def open_folder(path: str) -> int:
    """Return a descriptor of a folder. A link is refused with PermissionError."""
    if os.path.dirname(path) == f"/proc/{os.getpid()}/fd":  # of `lasting_path`: a link of the kernel's
        path += "/."
    try:
        return os.open(path, os.O_RDONLY | _FOLDER)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
            raise refused(path) from error
        raise


def lasting_path(path: str, opened: int) -> str:
    """Return a path of an open folder of this user that stays the folder's own while others exchange names around it.

    Raises PermissionError if they have done so already. Only Linux has such paths.
    """
    if not may_be_exchanged(os.path.dirname(path) or "."):
        return path
    status = os.fstat(opened)
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise refused(path)
    through = f"/proc/{os.getpid()}/fd/{opened}"
    return through if os.path.isdir(through) else path


@contextlib.contextmanager
def private_folder(path: str) -> Iterator[str]:
    """Make a folder that only this user can enter, or open the one that an earlier run left; yield a path of it.

    Raises PermissionError for a link, and for a folder of another user or one that others can write.
    """
    is_new = True
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        is_new = False
    try:
        opened = open_folder(path)
    except FileNotFoundError as error:
        raise refused(path) from error
    try:
        status = os.fstat(opened)
        # A new folder may look otherwise: some file systems have no owners and modes, or give root's files to nobody.
        if not is_new and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
            raise refused(path)
        yield lasting_path(path, opened)
    finally:
        os.close(opened)
