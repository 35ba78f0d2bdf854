"""The disk of a run of tests: how much of it is taken, and a view of the user's cache that may be cleared."""

import contextlib
import glob
import os
import re
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
RUN: Final = "_ENVBUILDER_TEST_RUN"  # the folder that the groups of one run share
PACKAGES: Final = 4.0  # gigabytes that a run fetches where the cache is empty


@dataclass
class Disk:
    """The most that was written beyond what was there at the start, when that was, and by which groups."""

    gigabytes: float = 0.0
    minute: float = 0.0
    groups: tuple[str, ...] = ()


def folder_prefix(run: str | Path) -> str:
    """Return how the names of the end-to-end tests' own folders begin; `run` is the folder of a run, if there is one."""
    return f"e2e-{Path(run).name[-8:]}-" if str(run) else "envbuilder-e2e-"


def places(run: Path) -> list[Path]:
    """Return what the tests of a run write: the cache and its views, `build`, the run's folder and the tests' own ones."""
    cache = cache_folder(os.environ)
    views = cache.parent.glob(f"{glob.escape(cache.name)}-*")
    return [cache, *views, ROOT / "build", run, *run.parent.glob(f"{folder_prefix(run)}*")]


def written(run: Path) -> int:
    """Return the bytes in the places of a run, each file once, and in the Docker engine by its own count.

    Other programs write on the disk as well, so its free space says nothing. What others do in the engine does count.
    """
    du = ("du", "--block-size=1", "--summarize", "--total", "--", *places(run))
    listed = subprocess.run(du, capture_output=True, text=True, check=False)  # files vanish meanwhile
    return int(listed.stdout.splitlines()[-1].split()[0]) + _in_engine()


def _in_engine() -> int:
    if not shutil.which("docker"):
        return 0
    argv = ("docker", "system", "df", "--format", "{{.Size}}")
    sizes = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.split()
    parts = (re.fullmatch(r"([\d.]+)([kMGT]?)B", size) for size in sizes)
    return sum(int(float(part[1]) * 1000 ** " kMGT".index(part[2] or " ")) for part in parts if part)


@contextlib.contextmanager
def watched_disk(
    alive: Callable[[], Iterable[str]], taken: Callable[[], int], *, seconds: float = 20
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


VIEWED: Final = ("artifacts", "layers", "extensions", "bases", "apt")


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
        if (cache / "build-directories").exists():  # compilers write into these files
            subprocess.run(["cp", "-a", cache / "build-directories", view / "build-directories"], check=True)
        yield view
        for kind in ("artifacts",) if CI else ("artifacts", "layers"):
            for path in (view / kind).glob("*/*" if kind == "artifacts" else "*"):
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
