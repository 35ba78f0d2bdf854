"""The other end of `sync`: make a SIF of what is in its folder and of what comes, and give it its name.

`envbuilder/run/sync.py` sends this text to Python over SSH, with a request and bytes on stdin. Each
call does one thing and ends: say what is missing, or take some of it. What is there stays for the next.

Standard library and Python 3.8 alone, with `parts` and `history`, whose texts are sent too.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import importlib
import json
import os
import shutil
import sys
import zlib
from typing import IO, Any, Iterator

from envbuilder.artifacts import history
from envbuilder.artifacts.parts import Assembly
from envbuilder.core.private import is_trusted, make_folder_for_all, private_folder

OTHERS = 3  # other SIFs of the folder that are read, the newest first


def main(request: dict[str, Any]) -> None:
    """Answer a request with one line of JSON on stdout."""
    try:
        folder = os.path.expanduser(request["folder"])
        make_folder_for_all(folder)
        with locked(folder):  # a call of another `sync` waits
            answer = _answer(request, folder, sys.stdin.buffer)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        answer = {"error": f"{error.filename or request['folder']}: {error.strerror}", "full": full}
    sys.stdout.write(json.dumps(answer) + "\n")


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Wait until no other program is in this block for the folder. Some file systems have no locks."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            importlib.import_module("fcntl").flock(lock, 2)  # LOCK_EX; only Unix has the module
        yield
    finally:
        os.close(lock)


def _answer(request: dict[str, Any], folder: str, stream: IO[bytes]) -> dict[str, Any]:
    sif = os.path.join(folder, f"{request['name']}.sif")
    work = os.path.join(folder, f".{request['name']}.sync")
    try:
        with private_folder(work) as inside:
            return _receive(request, sif, inside, stream)
    finally:
        with contextlib.suppress(
            OSError
        ):  # it stays while it has files, also those of a `sync` of another SIF
            os.rmdir(work)


def _receive(request: dict[str, Any], sif: str, work: str, stream: IO[bytes]) -> dict[str, Any]:
    whole, folder = request["sha256"], os.path.dirname(sif)
    index, path = os.path.join(work, f"{whole}.index"), os.path.join(work, f"{whole}.parts")
    is_first = "index" in request
    if not is_first and not os.path.exists(index) and _holds(sif, whole):
        _remove(index, path)
        return {"missing": [], "done": True, "here": 0}  # another `sync` of the same SIF was faster
    if is_first:
        with open(index, "wb") as out:
            out.write(stream.read(request["index"]))
    with open(index, "rb") as saved:
        parts = json.loads(zlib.decompress(saved.read()))
    if is_first and _holds(sif, whole, sum(size for size, _ in parts)):
        _remove(index, path)
        return {"missing": [], "done": True, "here": os.path.getsize(sif)}
    with contextlib.closing(Assembly(path, parts, None if is_first else request["missing"])) as made:
        if is_first:
            for source in _sifs(sif):
                if made.missing:
                    made.take(source)
            here = made.size - made.lacks
            if shutil.disk_usage(folder).free < made.lacks:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)
        else:
            here = 0
            for number in request["sent"]:
                made.put(number, stream.read(parts[number][0]))
        done = not made.missing and made.finish() == whole
        if not made.missing and not done:
            made.check()  # a file changed while it was copied
        missing = sorted(made.missing)
    if done:
        os.chmod(path, 0o755)  # noqa: S103 - a SIF is a program
        history.install(path, sif, whole, request["versions"])
        _remove(index, path)
    return {"missing": missing, "done": done, "here": here}


def _remove(*files: str) -> None:
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _sifs(sif: str) -> list[str]:
    """Return the SIF that is replaced, then the newest others of the folder."""
    others = glob.glob(os.path.join(glob.escape(os.path.dirname(sif)), "*.sif"))
    others += [one.path for one in history.versions(sif) if not one.current]
    found = [path for path in others if os.path.isfile(path) and path != sif]
    found.sort(key=os.path.getmtime, reverse=True)
    return [path for path in (sif, *found[:OTHERS]) if os.path.isfile(path)]


def _holds(sif: str, sha256: str, size: int | None = None) -> bool:
    """Whether the SIF has these bytes, and is no file of another user, who could change them."""
    if not os.path.isfile(sif) or not is_trusted(sif) or size not in (None, os.path.getsize(sif)):
        return False
    return history.file_digest(sif) == sha256
