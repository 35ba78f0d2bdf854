"""Machines that are not Debian: the same locks as on Debian, and a sandbox, out of the toolbox."""

from pathlib import Path

import pytest

from envbuilder.core.cache import Store
from envbuilder.core.fetch import Fetcher
from envbuilder.core.process import Command, ProcessRunner
from envbuilder.core.sources import Sources
from envbuilder.core.toolbox import open_sandbox
from envbuilder.lock.file import load_lock
from tests.support import package_sources
from tests.support.hosts import on_rocky
from tests.support.workbench import ENVBUILDER, cache_with_toolbox, resolve_context, run

pytestmark = pytest.mark.builds
world = package_sources.world
RECIPE = """\
base: debian/bookworm
python: "3.11"
gcc: "12"
libxcrypt: "4.4"
pytorch: "2.13.0"
apt: [git]
"""


def test_lock_without_apt_on_the_machine(spacious: Path, world: Sources):
    place = spacious / "a folder é"
    place.mkdir()
    recipe = place / "test.yaml"
    recipe.write_text(RECIPE)
    environment = {
        "ENVBUILDER_DEBIAN_MIRROR": world.debian[0], "ENVBUILDER_DEBIAN_SECURITY": world.security[0],
        "ENVBUILDER_DEBIAN_KEYRING": str(world.keyring), "ENVBUILDER_INDEX": world.indexes[0],
        "ENVBUILDER_FOLDERS": str(world.folders[0]),
    }  # fmt: skip
    locks = []
    for name, machine in (("here", ()), ("there", on_rocky(spacious / "rocky"))):
        cache = cache_with_toolbox(place / f"the cache {name}")
        run(*machine, ENVBUILDER, "lock", recipe, env={**environment, "ENVBUILDER_CACHE": str(cache)})
        locks.append(load_lock(recipe.with_suffix(".lock")))
        recipe.with_suffix(".lock").unlink()
    assert locks[0] == locks[1]
    assert {"git", "libc6"} <= {deb.name for deb in locks[0].debs}


def test_a_machine_without_bubblewrap_takes_the_toolboxs(spacious: Path):
    (spacious / "programs").mkdir()
    runner, store = (
        ProcessRunner({"PATH": str(spacious / "programs")}),
        Store(cache_with_toolbox(spacious / "cache")),
    )
    context = resolve_context()
    open_sandbox(store, Fetcher(store, context.sources, offline=True), runner, context.transfer)
    argv = ("bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--", "/bin/echo", "inside")
    assert runner.run(Command(argv=argv, why="run a program in the sandbox")) == "inside\n"
