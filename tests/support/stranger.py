"""Another user of this machine, who plants files in a folder that both can write and exchanges names there."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

STRANGER = 65534
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


@contextlib.contextmanager
def reachable_folder() -> Iterator[Path]:
    """Make a folder that other users can enter, which pytest's are not: each run of pytest closes them again."""
    with tempfile.TemporaryDirectory() as name:
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
    command = [sys.executable, "-S", "-c", EXCHANGE, str(folder), start, end, str(target)]
    with subprocess.Popen(
        command, user=STRANGER, group=STRANGER, extra_groups=[], stdout=subprocess.PIPE, text=True, cwd="/"
    ) as process:
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
