"""The builds of the end-to-end tests. Each is built once, when the first test needs it.

All use the user's own cache, so that what `make a100` has fetched and built is not fetched and built again. The groups of
one run share the artifacts. Tests that are run by hand find `a100` in `build/`, where `make a100` puts it.
"""

import contextlib
import fcntl
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import faults, tiers
from tests.support.disk import CI
from tests.support.tiny import make_tiny
from tests.support.workbench import (
    NO_ENGINE,
    ROOT,
    Built,
    build,
    fetch_packages,
    make_layers,
    open_folder,
    run,
)

ALONE, RELEASE = "alone", "release"  # markers; as a group, all tests that have it


@pytest.hookimpl(trylast=True)  # after pytest has put those together that share a fixture's parameter
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of one group. Tests of `shapes` run first, then those of `a100`, which uses the same unpacked layers.

    Later tests have their disk space.
    """
    left_out = [item for item in items if not _is_chosen(item, config)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: ("shapes" not in _needs(item), not A100 & _needs(item)))


def _is_chosen(item: pytest.Item, config: pytest.Config) -> bool:
    group, needs, module = config.getoption("--group"), _needs(item), item.path.stem.removeprefix("test_")
    if item.path.parent != Path(__file__).parent:  # a unit test
        return not group
    if group in (ALONE, RELEASE):
        return item.get_closest_marker(group) is not None
    if item.get_closest_marker(RELEASE):
        return group == tiers.release_group_of(module)
    apart = any(item.get_closest_marker(name) for name in ("torch", "slow"))
    if config.getoption("--middle") and (apart or TORCH & needs):
        return False
    return not group or tiers.group_of(module, needs) == group


A100 = {"a100", "loaded_a100"}
TORCH = {"cpu", "shapes"} | A100


def _needs(item: pytest.Item) -> set[str]:
    """The fixtures of a test, and those that its parameters name."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = (word for one in parameters if isinstance(one, str) for word in one.split())
    return {*getattr(item, "fixturenames", ()), *named}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Remove what no later test of the group needs, so that a run needs only the space of its largest part."""
    yield
    is_last = A100 & _needs(item) and (nextitem is None or not A100 & _needs(nextitem))
    if is_last and tiers.RUN in os.environ:
        shutil.rmtree(folder_of_a100())
    if not CI:
        return
    if is_last:
        run("docker", "image", "rm", "--force", "envbuilder/a100:latest")
    if any(word in item.nodeid for word in ("buildkit", "rendered")):
        run("docker", "builder", "prune", "--all", "--force")


@pytest.fixture
def slack(request: pytest.FixtureRequest) -> int:
    """Return the factor on promised times while other groups run too."""
    return 1 if request.config.getoption("--group") == ALONE else 10


@pytest.fixture(scope="session", autouse=True)
def packages() -> None:
    """Fetch the packages of `cpu`, which many tests read from the cache, whichever test is the first.

    Other users read what the tests write. `tests/support/conditions.py` builds under other umasks.
    """
    os.umask(0o022)
    os.environ["ENVBUILDER_CACHE_LIMIT"] = "none"  # one group's build removes no tree that another relies on
    fetch_packages("cpu")


@pytest.fixture(scope="session")
def cpu() -> Iterator[Built]:
    """Build `cpu` once for all groups of a run; the others wait for it."""
    if tiers.RUN in os.environ:
        yield build("cpu", Path(os.environ[tiers.RUN], "cpu"))
        return
    with open_folder() as folder:
        yield build("cpu", folder)


@pytest.fixture(scope="session")
def tiny() -> Iterator[Built]:
    """An environment without torch that builds in seconds, for tests that need no library."""
    with contextlib.ExitStack() as stack:
        shared = os.environ.get(tiers.RUN)
        folder = Path(shared) if shared else stack.enter_context(open_folder())
        recipe = folder / "tiny-recipe/tiny.yaml"
        recipe.parent.mkdir(exist_ok=True)
        with held(recipe.parent):
            if not recipe.with_suffix(".lock").exists():
                make_tiny(recipe.parent)
            built = build(str(recipe), folder / "tiny")
        yield built


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Let one group at a time into the block for this folder."""
    with (folder / "held").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def folder_of_a100() -> Path:
    return Path(os.environ[tiers.RUN], "a100") if tiers.RUN in os.environ else ROOT / "build"


@pytest.fixture(scope="session")
def a100() -> Built:
    """Build without a Docker engine, where the image takes 9.4 GB more. `loaded_a100` has it there."""
    if tiers.RUN in os.environ:
        make_layers(ROOT / "recipes/a100.yaml")
    return build("a100", folder_of_a100(), env=NO_ENGINE)


@pytest.fixture(scope="session")
def loaded_a100(a100: Built) -> Built:
    """Load the image into the Docker engine. Only `scripts/test --release` has the time and the disk for it."""
    loaded = build("a100", a100.output)
    assert loaded.digests == a100.digests
    return loaded


@pytest.fixture(scope="session", params=["cpu", "a100"])
def built(request: pytest.FixtureRequest) -> Built:
    """Each of both."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def bench(tiny: Built) -> Iterator[faults.Bench]:
    """`tiny` in caches of its own, for repeated builds. The groups of one run share its set-up."""
    with open_folder() as folder:
        if tiers.RUN not in os.environ:
            yield faults.set_up(folder, tiny)
            return
        shared = Path(os.environ[tiers.RUN], "bench")
        shared.mkdir(exist_ok=True)
        with held(shared):
            kept = shared / "kept"
            if not kept.exists():
                (shared / "made").mkdir()
                kept.write_bytes(pickle.dumps(faults.set_up(shared / "made", tiny)))
            bench = pickle.loads(kept.read_bytes())
        yield faults.copied(bench, folder / "bench")


@pytest.fixture
def spacious() -> Iterator[Path]:
    """A temporary folder on disk; `tmp_path` may be in memory."""
    with open_folder() as folder:
        yield folder
