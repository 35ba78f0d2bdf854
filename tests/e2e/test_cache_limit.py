"""The cache on a small disk: its limit holds, the oldest trees go first, and a tree that a build uses stays."""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuilder.builder.job import layer_keys
from envbuilder.core.cache import Store
from envbuilder.plan.make import make_plan
from tests.support.cluster import wait_until
from tests.support.faults import Bench
from tests.support.tiny import make_tiny
from tests.support.workbench import ENVBUILDER, NO_ENGINE, Ended, attempt, build_command, run, start

pytestmark = pytest.mark.builds
WHEELS = {"a": ("numpy",), "b": ("markupsafe",), "c": ("typing-extensions",)}
MEGABYTE = 10**6


@dataclass(frozen=True)
class Small:
    """A file system of a few hundred megabytes with a cache and three recipes, whose trees differ in Python packages."""

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

    def trees(self, name: str) -> dict[str, Path]:
        """Return the places of the recipe's trees by the names of their layers."""
        _, plan, _ = make_plan(str(self.recipes[name]), self.recipes[name].parent, self.store)
        return {step.name: self.store.tree(key) for step, key in layer_keys(plan).items()}

    def sizes(self, limit: str) -> dict[str, object]:
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


def digest(tree: Path) -> str:
    """Return a digest of all paths, modes, links and contents."""
    whole = hashlib.sha256()
    for path in sorted(tree.rglob("*")):
        content = str(path.readlink()).encode() if path.is_symlink() else b""
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
        whole.update(f"{path.relative_to(tree)} {path.lstat().st_mode} {len(content)}\n".encode() + content)
    return whole.hexdigest()


def test_old_trees_go_by_themselves_and_those_in_use_stay(small: Small):
    a, b, c = (small.trees(name) for name in WHEELS)
    free = shutil.disk_usage(small.folder).free
    first = small.build("a", limit="none")
    assert first.returncode == 0, first.stderr
    took = free - shutil.disk_usage(small.folder).free
    (asked,) = re.findall(r"this build needs up to (\S+) GB", first.stderr)
    assert took <= float(asked) * 1e9 <= 1.2 * took + 60 * MEGABYTE  # the spare, and one digit
    system = digest(a["os"])
    with small.left_free(60 * MEGABYTE):  # less than the second build needs
        second = small.build("b", limit="none")
    assert second.returncode == 0, second.stderr
    assert "GB of `trees`, longest unused first" in second.stderr
    assert [tree.exists() for tree in (a["python"], b["python"], b["os"])] == [False, True, True]

    with contextlib.ExitStack() as stack:
        stack.enter_context(small.store.lock(f"layer-{c['runtime'].name}"))  # the third build waits for it
        third = start(*small.command("c", "out"), env=small.env("none"))
        wait_until("the tree is there", lambda: c["python"].exists() or third.poll() is not None, 120)
        assert third.poll() is None
        with small.left_free(40 * MEGABYTE):
            refused = small.build("b", limit="none", output="other")
        assert refused.returncode == 6, refused.stderr
        assert "EB602" in refused.stdout
        assert "`envbuilder cache` shows what can go" in refused.stdout
        assert [tree.exists() for tree in (b["python"], c["python"], c["os"])] == [True, True, True]
    out, err = third.communicate(timeout=120)
    assert third.returncode == 0, out + err

    limit = sum(small.sizes("none")["bytes"].values()) // MEGABYTE - 60
    repeated = small.build("b", limit=f"{limit}MB", output="other")
    assert repeated.returncode == 0, repeated.stderr
    assert "GB of `trees`, longest unused first" in repeated.stderr
    assert not c["os"].exists()
    sizes = small.sizes(f"{limit}MB")
    assert sum(sizes["bytes"].values()) <= sizes["limit"] == limit * MEGABYTE
    assert sizes["removable"]["trees"] == sizes["bytes"]["trees"]

    shutil.rmtree(small.store.layer(c["start"].name))  # it is made in the distribution's tree
    again = small.build("c", limit="none", output="other")
    assert again.returncode == 0, again.stderr
    assert digest(c["os"]) == system
