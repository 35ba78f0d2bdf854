"""The builds that the end-to-end tests look at: each is made once, and only when a test needs it.

Both use the user's own cache, so that what `make a100` has fetched and built is not fetched and built again; `a100` is
built into `build/` as well, where `make a100` puts it.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import faults
from tests.support.workbench import CI, ENVBUILDER, NO_ENGINE, ROOT, Built, build, open_folder, run


@pytest.hookimpl(trylast=True)  # after pytest has put those together that share a fixture's parameter
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What looks at `a100` comes first, so that CI can give its disk space to the others."""
    items.sort(key=lambda item: not _uses_a100(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """CI frees what no later test needs: the space that a run takes is what its largest part does, not their sum."""
    yield
    if not CI or nextitem is None:
        return
    if _uses_a100(item) and not _uses_a100(nextitem):
        run("docker", "image", "rm", "--force", "envbuilder/a100:latest")
        shutil.rmtree(ROOT / "build", ignore_errors=True)  # a build that failed has made none
    if item.path != nextitem.path:
        run("docker", "builder", "prune", "--all", "--force")


def _uses_a100(item: pytest.Item) -> bool:
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "a100" in [*getattr(item, "fixturenames", ()), *parameters]


@pytest.fixture(scope="session")
def cpu() -> Iterator[Built]:
    with open_folder() as folder:
        yield build("cpu", folder)


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
    """An environment that builds in seconds, for what is done many times."""
    with open_folder() as folder:
        yield faults.set_up(folder)


@pytest.fixture
def spacious() -> Iterator[Path]:
    """A temporary folder on disk; `tmp_path` may be in memory."""
    with open_folder() as folder:
        yield folder
