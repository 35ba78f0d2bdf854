"""Settings of all tests. Costly tests need an option, and a test may start programs only with a marker."""

import difflib
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden"
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn")

# No deadline, since other builds may slow the machine. Each run takes the same examples, so only a change makes a test fail.
hypothesis.settings.register_profile("envbuilder", deadline=None, derandomize=True, database=None)
# `scripts/test --release`: other examples each time, and more of them.
hypothesis.settings.register_profile("release", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("envbuilder")

_unmarked: list[str] = []  # the running test, unless it may start programs


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--run-builds", action="store_true", help="also run the tests that build environments (minutes)"
    )
    parser.addoption("--group", help="of the end-to-end tests those of this group (tests/support/tiers.py)")
    parser.addoption("--middle", action="store_true", help="leave out what needs torch, and what is slow")
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden texts anew; review them as a diff"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Watch every start of a program. An audit hook also sees those of libraries, and cannot be removed."""

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event in STARTS and _unmarked:
            # Not an Exception, so that code that goes on without a program cannot hide it.
            pytest.fail(
                f"{_unmarked[-1]} starts a program ({event} {arguments[:2]}); mark it `programs` or `builds`"
            )

    sys.addaudithook(watch)
    # On a code host envbuilder folds its log, and Typer draws boxes. Tests judge what a person sees.
    for name in ("GITHUB_ACTIONS", "GITLAB_CI"):
        os.environ.pop(name, None)
    # A shell that starts pytest in the background makes it and its children ignore Ctrl-C, which tests send.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Spare the garbage collector the modules and tests, which live until the end: it took a tenth of the CPU time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--run-builds"):
        return
    costly = [item for item in items if item.get_closest_marker("builds")]
    if costly:
        config.hook.pytest_deselected(items=costly)
        items[:] = [item for item in items if item not in costly]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Apply the test's markers to its fixtures too: those of the first test that needs a fixture count."""
    if not any(item.get_closest_marker(name) for name in ("programs", "builds")):
        _unmarked.append(item.nodeid)
    try:
        return (yield)
    finally:
        _unmarked.clear()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compare a whole text with the file of that name in `tests/golden`; `--update-golden` writes it instead.

    With `before`, the file holds the difference from that text alone, without line numbers, which any edit would move.
    """

    def compare(name: str, text: str, before: str = "") -> None:
        path = GOLDEN / name
        if before:
            lines = difflib.unified_diff(before.splitlines(), text.splitlines(), n=0, lineterm="")
            text = "".join(f"{'@@' if line.startswith('@@') else line}\n" for line in list(lines)[2:])
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), (
            f"{path} differs; `pytest --update-golden` writes it anew"
        )

    return compare


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Remove the user's settings, and use a fresh cache and the repository as working folder."""
    for name in list(os.environ):
        if name.startswith("ENVBUILDER_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(ROOT)
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of an `envbuilder` that starts at once, for what only shows text."""
    from tests.support.warm import warm_envbuilder  # noqa: PLC0415 - it imports every command

    with warm_envbuilder(tmp_path_factory.mktemp("warm")) as folder:
        yield folder
