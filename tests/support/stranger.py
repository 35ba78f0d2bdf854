"""Other users of this machine: what runs a program as one of them, and one who plants files and exchanges names."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
STRANGER = 65534  # `nobody`
# In this mount namespace alone, an empty folder hides the first one that is closed. In it is the checkout under its own
# path, opened to all by an overlay that takes the new modes and no content. A descriptor names the hidden checkout.
ENTER = """
closed=$1 checkout=$2 here=$PWD
shift 2
exec 3<"$checkout"
mount -t tmpfs -o mode=0755 none "$closed"
cd "$closed"
(umask 022 && mkdir -p .upper .work "$checkout")
mount -t overlay -o lowerdir=/proc/self/fd/3,upperdir=.upper,workdir=.work,metacopy=on none "$checkout"
exec 3<&-
cd "$checkout"
find . \\( -path ./.git -o -path ./build \\) -prune -o ! -type l ! -perm -004 -exec chmod a+rX {} +
cd "$here" 2>/dev/null || cd /
exec "$@"
"""
MODES = {"sticky": 0o1777, "not sticky": 0o777}
# The stranger's program: moves each folder with such a name away, and puts a link in its place.
EXCHANGE = """
import os, sys
folder, start, end, target = sys.argv[1:]
print("ready", flush=True)
number = 0
while True:
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name.startswith(start) and name.endswith(end) and not os.path.islink(path):
            number += 1
            try:
                os.rename(path, os.path.join(folder, f"moved-{number}"))
                os.symlink(target, path)
                print("done", flush=True)
            except OSError:
                pass
"""


def enter_checkout() -> tuple[str, ...]:
    """Return a command prefix, for root, with which every user can read this checkout: below a closed home, or cloned
    under a closed umask."""
    closed = [path for path in (*reversed(ROOT.parents), ROOT) if path.stat().st_mode & 0o005 != 0o005]
    return ("unshare", "--mount", "sh", "-euc", ENTER, "sh", str(closed[0]), str(ROOT)) if closed else ()


def as_user(user: int, *argv: object, groups: str = "", home: object = "/nonexistent") -> tuple[str, ...]:
    """Return the command line by which root runs another one as that user, who can read this checkout."""
    extra = ("--groups", groups) if groups else ("--clear-groups",)
    words = (
        *enter_checkout(), "setpriv", "--reuid", user, "--regid", user, *extra,
        "env", "-u", "XDG_RUNTIME_DIR", f"HOME={home}", *argv,
    )  # fmt: skip
    return tuple(map(str, words))


@contextlib.contextmanager
def reachable_folder() -> Iterator[Path]:
    """Make a folder that other users can enter, unlike pytest's, which each run closes again, and many a TMPDIR."""
    with tempfile.TemporaryDirectory(prefix="envbuilder-tests-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def shared_folder(folder: Path, mode: int) -> Path:
    """Make a folder that everybody can write."""
    folder.mkdir()
    folder.chmod(mode)
    return folder


def give(*paths: Path) -> None:
    """Make the stranger the owner."""
    for path in paths:
        os.lchown(path, STRANGER, STRANGER)


@contextlib.contextmanager
def exchanging(folder: Path, start: str, end: str, target: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run the stranger's program during the block."""
    command = as_user(STRANGER, sys.executable, "-S", "-c", EXCHANGE, folder, start, end, target)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of everything below a folder, and of the folder itself."""
    paths = (folder, *folder.rglob("*"))
    return {str(path): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"") for path in paths}
