"""A build as a person watches it: one live view of what runs at once, and Ctrl-C ends it within two seconds."""

import time
from pathlib import Path

import pytest

from tests.support.bounded import within
from tests.support.cluster import wait_until
from tests.support.serving import silent_server
from tests.support.tmux import Terminal, terminal
from tests.support.workbench import ENVBUILDER, NO_ENGINE, ROOT, Built, attempt, cache_with_artifacts

pytestmark = [pytest.mark.builds, pytest.mark.torch]
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@pytest.fixture
def cold(cpu: object, spacious: Path) -> dict[str, str]:
    """Everything is fetched, nothing is built."""
    return NO_ENGINE | {"ENVBUILDER_CACHE": str(cache_with_artifacts(spacious, "cpu"))}


def build(screen: Terminal, out: Path) -> None:
    screen.start(ENVBUILDER, "build", "cpu", "--offline", "--output", out)


def steps(lines: list[str]) -> list[str]:
    """Return the lines of the steps that the live view shows at once."""
    return [line for line in lines if line.strip() and line.lstrip()[0] in SPINNER]


@pytest.mark.parametrize("width", [80, pytest.param(200, marks=pytest.mark.release)])
def test_what_runs_at_once_is_in_one_live_view(width: int, cold: dict[str, str], spacious: Path):
    most = 0
    with terminal(ROOT, spacious, width=width, **cold) as screen:
        build(screen, spacious / "out")
        end = time.monotonic() + 120
        while most < 2 and time.monotonic() < end:
            shown = steps(screen.screen())
            most = max(most, len(shown))
            # What stands above them may be wider than the screen. What differs was drawn anew between two looks.
            assert shown == steps(screen.screen(joined=True)) or shown != steps(screen.screen())
            time.sleep(0.2)
        screen.type("C-c")
        assert screen.code(10) == 130
        assert screen.has_cursor()
    assert most >= 2


@pytest.mark.alone
@pytest.mark.parametrize(
    "moment", [0.1, 9.0, *(pytest.param(late, marks=pytest.mark.release) for late in (3.0, 16.0))]
)
def test_ctrl_c_ends_a_build_within_two_seconds_and_leaves_nothing_half_done(
    moment: float, cold: dict[str, str], spacious: Path, slack: int
):
    """While the OS layer is made, for every change: test_build_all.py."""
    with terminal(ROOT, spacious, width=80, **cold) as screen:
        build(screen, spacious / "out")
        screen.wait(lambda: steps(screen.screen()), 60)
        time.sleep(moment)
        with within(2 * slack):
            screen.type("C-c")
            assert screen.code(60) == 130
        assert any("interrupted" in line for line in screen.screen())
        assert screen.has_cursor()
    # What begins with a dot is nobody's result, and the next build sweeps it (test_tiny_faults.py).
    left = {path.suffix for path in (spacious / "out").glob("[!.]*")}
    assert left <= {".log"}
    cache = cold["ENVBUILDER_CACHE"]
    wait_until("no process is left", lambda: attempt("pgrep", "-f", cache).returncode, 10)


@pytest.mark.alone
@pytest.mark.parametrize("words", [("verify", "cpu"), ("push", "cpu", "{place}/x")])
def test_ctrl_c_ends_what_reads_or_sends_an_environment_within_two_seconds(
    words: tuple[str, ...], cpu: Built, tmp_path: Path, slack: int
):
    with silent_server() as (place, asked), terminal(ROOT, tmp_path, width=80) as screen:
        screen.start(ENVBUILDER, *(word.format(place=place) for word in words), "--artifacts", cpu.output)
        screen.wait(lambda: any("verify image" in line for line in screen.screen()) or asked.is_set(), 60)
        with within(2 * slack):
            screen.type("C-c")
            assert screen.code(60) == 130
        assert "interrupted" in screen.screen()
        assert screen.has_cursor()
