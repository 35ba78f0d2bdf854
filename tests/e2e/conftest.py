"""The builds that the end-to-end tests look at: each is made once, and only when a test needs it.

Both use the user's own cache, so that what `make a100` has fetched and built is not fetched and built again; `a100` is
built into `build/` as well, where `make a100` puts it.
"""

import contextlib
import dataclasses
import fcntl
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import faults, tiers
from tests.support.tiny import make_tiny
from tests.support.workbench import CI, ENVBUILDER, NO_ENGINE, ROOT, Built, build, open_folder, run

ALONE, RELEASE = "alone", "release"  # markers, and the groups of `scripts/test --release` that they make


@pytest.hookimpl(trylast=True)  # after pytest has put those together that share a fixture's parameter
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of one group; in CI those that use `a100` are first, so that the others have its disk space."""
    left_out = [item for item in items if not _is_chosen(item, config)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: "a100" not in _needs(item))


def _is_chosen(item: pytest.Item, config: pytest.Config) -> bool:
    group, needs = config.getoption("--group"), _needs(item)
    if item.path.parent != Path(__file__).parent:  # a unit test
        return not group
    if group in (ALONE, RELEASE):
        return item.get_closest_marker(group) is not None
    if item.get_closest_marker(RELEASE):
        return False
    if config.getoption("--without-torch") and (item.get_closest_marker("torch") or TORCH & needs):
        return False
    return not group or tiers.group_of(item.path.stem.removeprefix("test_"), needs) == group


TORCH = {"cpu", "a100", "shapes"}


def _needs(item: pytest.Item) -> set[str]:
    """The fixtures of a test, and those that its parameters name."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return {*getattr(item, "fixturenames", ()), *(one for one in parameters if isinstance(one, str))}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """CI frees what no later test of the group needs: a run takes the space of its largest part, not of their sum."""
    yield
    if not CI:
        return
    if "a100" in _needs(item) and (nextitem is None or "a100" not in _needs(nextitem)):
        run("docker", "image", "rm", "--force", "envbuilder/a100:latest")
        for path in (ROOT / "build").glob("a100.*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if item.config.getoption("--group") in (None, "docker") and (
        nextitem is None or item.path != nextitem.path
    ):
        run("docker", "builder", "prune", "--all", "--force")


@pytest.fixture
def slack(request: pytest.FixtureRequest) -> int:
    """How many times the promised time something may take where other groups run as well."""
    return 1 if request.config.getoption("--group") == ALONE else 10


@pytest.fixture(scope="session")
def cpu() -> Iterator[Built]:
    """The groups of one run share the artifacts: one builds them, the others wait for it."""
    if tiers.RUN in os.environ:
        yield build("cpu", Path(os.environ[tiers.RUN], "cpu"))
        return
    with open_folder() as folder:
        yield build("cpu", folder)


@pytest.fixture(scope="session")
def tiny() -> Iterator[Built]:
    """An environment without torch that builds in seconds, for what is about no library."""
    with contextlib.ExitStack() as stack:
        shared = os.environ.get(tiers.RUN)
        folder = Path(shared) if shared else stack.enter_context(open_folder())
        recipe = folder / "tiny-recipe/tiny.yaml"
        recipe.parent.mkdir(exist_ok=True)
        with held(recipe.parent):
            if not recipe.with_suffix(".lock").exists():
                make_tiny(recipe.parent)
            built = build(str(recipe), folder / "tiny")
        yield dataclasses.replace(built, name="tiny", recipe=recipe)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """One group at a time is in the block for this folder."""
    with (folder / "held").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def a100() -> Built:
    """Built where no Docker engine answers, then loaded: CI frees the unpacked layers between, 6 GB that it would lack."""
    without_engine = build("a100", ROOT / "build", env=NO_ENGINE)
    if CI:
        run(ENVBUILDER, "cache", "--gc", "trees")
    built = build("a100", ROOT / "build")
    assert built.digests == without_engine.digests
    return built


@pytest.fixture(scope="session", params=["cpu", "a100"])
def built(request: pytest.FixtureRequest) -> Built:
    """Each of both."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def bench() -> Iterator[faults.Bench]:
    """An environment that builds in seconds, for what is done many times. The groups of one run share its set-up."""
    with open_folder() as folder:
        if tiers.RUN not in os.environ:
            yield faults.set_up(folder)
            return
        shared = Path(os.environ[tiers.RUN], "bench")
        shared.mkdir(exist_ok=True)
        with held(shared):
            kept = shared / "kept"
            if not kept.exists():
                (shared / "made").mkdir()
                kept.write_bytes(pickle.dumps(faults.set_up(shared / "made")))
            bench = pickle.loads(kept.read_bytes())
        yield faults.copied(bench, folder / "bench")


@pytest.fixture
def spacious() -> Iterator[Path]:
    """A temporary folder on disk; `tmp_path` may be in memory."""
    with open_folder() as folder:
        yield folder
