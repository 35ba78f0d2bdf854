"""A cache on a small disk: a build asks for what it takes, keeps nothing unpacked, and its limit holds."""

import contextlib
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envbuilder.core.cache import Store
from tests.support.faults import Bench
from tests.support.tiny import make_tiny
from tests.support.workbench import ENVBUILDER, NO_ENGINE, Ended, attempt, build_command, run

pytestmark = pytest.mark.builds
WHEELS = {"a": ("numpy",), "b": ("markupsafe",)}
MEGABYTE = 10**6


@dataclass(frozen=True)
class Small:
    """A file system of a few hundred megabytes with a cache and two recipes, which differ in Python packages."""

    folder: Path
    recipes: dict[str, Path]

    @property
    def store(self) -> Store:
        return Store(self.folder / "cache")

    def env(self, limit: str) -> dict[str, str]:
        return NO_ENGINE | {"ENVBUILDER_CACHE": str(self.store.root), "ENVBUILDER_CACHE_LIMIT": limit}

    def command(self, name: str, output: str) -> tuple[object, ...]:
        return build_command(self.recipes[name], self.folder / output, "--offline")

    def build(self, name: str, *, limit: str, output: str = "out") -> Ended:
        return attempt(*self.command(name, output), env=self.env(limit))

    def sizes(self, limit: str) -> dict[str, Any]:
        return dict(json.loads(run(ENVBUILDER, "cache", "--json", env=self.env(limit)))["data"])

    @contextlib.contextmanager
    def left_free(self, size: int) -> Iterator[None]:
        """Take all but so many bytes of the disk."""
        filler = self.folder / "filler"
        with filler.open("wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, shutil.disk_usage(self.folder).free - size)
        try:
            yield
        finally:
            filler.unlink()


@pytest.fixture
def small(bench: Bench, spacious: Path) -> Iterator[Small]:
    disk = spacious / "disk"
    disk.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=800m,mode=0700", "none", disk)
    try:
        run("cp", "-a", bench.states[1], disk / "cache")
        recipes = {name: make_tiny(spacious, name, wheels)[0] for name, wheels in WHEELS.items()}
        yield Small(disk, recipes)
    finally:
        run("umount", "--lazy", disk)


@contextlib.contextmanager
def least_free(folder: Path) -> Iterator[list[int]]:
    """Yield a list, whose only item will be the least free space in the block, in bytes, as seen each 10 ms."""
    least, over = [shutil.disk_usage(folder).free], threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            least[0] = min(least[0], shutil.disk_usage(folder).free)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield least
    finally:
        over.set()
        looking.join()


def test_a_build_asks_for_what_it_takes_and_keeps_nothing_unpacked(small: Small):
    free = shutil.disk_usage(small.folder).free
    with least_free(small.folder) as least:
        first = small.build("a", limit="none")
    assert first.returncode == 0, first.stderr
    took = free - least[0]
    (asked,) = re.findall(r"this build needs up to (\S+) GB", first.stderr)
    assert took <= float(asked) * 1e9 <= 1.35 * took + 60 * MEGABYTE  # the spare, and one digit
    sizes = small.sizes("none")
    assert sizes["bytes"]["tools"] == sizes["bytes"]["work"] == 0
    with small.left_free(40 * MEGABYTE):
        refused = small.build("b", limit="none")
    assert refused.returncode == 6, refused.stderr
    assert "EB602" in refused.stdout
    assert "`envbuilder cache` shows what can go" in refused.stdout

    left = (
        small.store.root / "build-directories" / ("0" * 64)
    )  # of an extension that nobody compiles any more
    left.mkdir()
    (left / "object").write_bytes(bytes(20 * MEGABYTE))
    limit = sum(sizes["bytes"].values()) // MEGABYTE + 10
    second = small.build("a", limit=f"{limit}MB", output="other")
    assert second.returncode == 0, second.stderr
    assert "0.02 GB of `build-directories`, longest unused first" in second.stderr
    assert not left.exists()
    assert sum(small.sizes("none")["bytes"].values()) <= limit * MEGABYTE
