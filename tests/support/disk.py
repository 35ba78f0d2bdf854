"""The disk of a run of tests: how much of it is taken, and a view of the user's cache that may be cleared."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envbuilder.core.cache import cache_folder

ROOT: Final = Path(__file__).parents[2]
CI: Final = "CI" in os.environ  # its disk is small, and no later build uses it
PACKAGES: Final = 4.0  # gigabytes that a run fetches where the cache is empty


@dataclass
class Disk:
    """The most that was taken of the disk beyond what was taken at the start, when that was, and by which groups."""

    gigabytes: float = 0.0
    minute: float = 0.0
    groups: tuple[str, ...] = ()


def _taken() -> int:
    """The bytes that are taken on the disks of the repository, the tests and the Docker engine."""
    places = [path for path in (ROOT, Path("/var/tmp"), Path("/var/lib/docker")) if path.exists()]
    disks = {path.stat().st_dev: shutil.disk_usage(path) for path in places}
    return sum(disk.used for disk in disks.values())


@contextlib.contextmanager
def watched_disk(
    alive: Callable[[], Iterable[str]], *, taken: Callable[[], int] = _taken, seconds: float = 1
) -> Iterator[Disk]:
    """Look at the disk again and again; `alive` names the groups that run, `taken` says how many bytes are in use."""
    most, before, began, ended = Disk(), taken(), time.monotonic(), threading.Event()

    def watch() -> None:
        while not ended.wait(seconds):
            more = (taken() - before) / 1e9
            if more > most.gigabytes:
                most.gigabytes, most.minute = round(more, 2), round((time.monotonic() - began) / 60, 1)
                most.groups = tuple(alive())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        ended.set()
        watcher.join()


VIEWED: Final = ("artefacts", "layers", "extensions", "bases", "apt")


@contextlib.contextmanager
def view_of_cache(name: str) -> Iterator[Path]:
    """Make a cache of hard links to the user's cache. New files go to the user's cache afterwards."""
    cache = cache_folder(os.environ)
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    view = cache.with_name(f"{cache.name}-{name}")
    shutil.rmtree(view, ignore_errors=True)
    view.mkdir(mode=0o700)
    try:
        for kind in VIEWED:
            if (cache / kind).exists():
                subprocess.run(["cp", "-al", cache / kind, view / kind], check=True)
        if (cache / "spaces").exists():  # compilers write into these files
            subprocess.run(["cp", "-a", cache / "spaces", view / "spaces"], check=True)
        yield view
        for kind in ("artefacts",) if CI else ("artefacts", "layers"):
            for path in (view / kind).glob("*/*" if kind == "artefacts" else "*"):
                _give(path, cache / path.relative_to(view))
    finally:
        shutil.rmtree(view, ignore_errors=True)


def _give(path: Path, target: Path) -> None:
    """Give a finished file or folder a second name in one step, unless the name exists."""
    if target.exists():
        return
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=target.parent, prefix=".view-"))
    try:
        subprocess.run(["cp", "-al", path, new / "one"], check=True)
        with contextlib.suppress(OSError):  # another process has just made it
            (new / "one").rename(target)
    finally:
        shutil.rmtree(new, ignore_errors=True)
