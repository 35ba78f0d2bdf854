"""Put a copy of a SIF on a node, made of older copies there and, for the rest, of the shared file.

`envbuilder/run/launch/copier.py` packs this text into the program that each node of a job runs with
the Python of the SIF. A copy has its digest in its name: it is whole or absent, and a running job's
copy is never replaced.

Standard library and Python 3.8 alone, with `parts`, `history` and `receive`.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import shutil
import sys
import time
import zipfile
from typing import Any, Iterator

from envbuilder.artifacts.parts import Assembly
from envbuilder.artifacts.receive import OTHERS, locked
from envbuilder.core.private import private_folder

UNUSED = 3600.0  # seconds without the start of a job, after which a new copy of the name removes an older one
FORGOTTEN = 30 * 24 * 3600.0  # the same for copies of other names
TRIES = 2  # the second reads parts again that came from a file which changed meanwhile


def main() -> None:
    """`python COPIER FOLDER <SIF`: the index is in the archive that is running."""
    with zipfile.ZipFile(sys.argv[0]) as archive:
        index = json.loads(archive.read("index.json"))
    try:
        put(index, sys.argv[1], sys.stdin.fileno())
    except OSError as error:
        sys.exit(f"{error.filename or sys.argv[1]}: {error.strerror}")


def put(index: dict[str, Any], folder: str, source: int) -> None:
    """Put the copy into the folder, unless it is there; `source` is the shared file. Raises OSError."""
    with private_folder(folder) as inside:
        _put(index, inside, source)


def _put(index: dict[str, Any], folder: str, source: int) -> None:
    sif = os.path.join(folder, copy_name(index["name"], index["sha256"]))
    partial = f"{sif}.parts"
    with locked(folder):  # a second job waits, and finds the copy
        if os.path.exists(sif):
            return
        with contextlib.closing(Assembly(partial, index["parts"])) as made:
            for path in _sources(folder, index["name"]):
                if made.missing:
                    made.take(path)
            if shutil.disk_usage(folder).free < made.lacks:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)
            is_whole = False
            for _ in range(TRIES):
                made.fill(source)
                is_whole = made.finish() == index["sha256"]
                if is_whole:
                    break
                made.check()
        if not is_whole:
            os.unlink(partial)
            raise OSError(errno.EIO, "the shared file has other bytes than the job expects", folder)
        os.chmod(partial, 0o755)  # noqa: S103 - a SIF is a program
        os.replace(partial, sif)
        for path in _old(folder, index["name"], sif, time.time()):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def copy_name(name: str, sha256: str) -> str:
    return f"{name}-{sha256}.sif"


def mark_path(sif: str) -> str:
    """Return the file that each job touches when it starts from the copy."""
    return f"{sif}.checked"


def _name(path: str) -> str:
    return os.path.basename(path).rpartition("-")[0]


def _copies(folder: str) -> list[str]:
    return glob.glob(os.path.join(glob.escape(folder), "*.sif"))


def _sources(folder: str, name: str) -> list[str]:
    """Return a few copies: those of this name first, the newest first."""
    found = sorted(_copies(folder), key=os.path.getmtime, reverse=True)
    return sorted(found, key=lambda path: _name(path) != name)[:OTHERS]


def _old(folder: str, name: str, new: str, now: float) -> Iterator[str]:
    """Yield what is removed: copies that no job needs, with their marks, and what killed jobs left."""
    for path in _copies(folder):
        mark = mark_path(path)
        used = max(os.path.getmtime(one) for one in (path, mark) if os.path.exists(one))
        if path != new and now - used > (UNUSED if _name(path) == name else FORGOTTEN):
            yield from (path, mark)
    yield from glob.glob(os.path.join(glob.escape(folder), "*.parts"))
