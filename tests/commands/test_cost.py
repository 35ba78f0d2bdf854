"""What a command costs that has nothing to do: no library that it does not need, and little CPU time."""

from collections.abc import Mapping

import pytest

from envbuilder.commands import COMMANDS
from tests.support.cost import LOADED, Idle, measure, reference

pytestmark = pytest.mark.programs

IDLE = (
    "--version", "--help", "list", "show a100", "check a100", "lock cpu --check",
    "render cpu", "show a100 --extensions", "detect", "cache",
)  # fmt: skip
HELP = tuple(f"{name} --help" for name in COMMANDS)
LIGHT = ("add --help", "doctor --help", "exec --help")
# Libraries for networks, engines, keys, SIFs, ELF files and terminals: the slow ones take as long as the rest of such a command.
HEAVY = frozenset(
    {
        "cryptography",
        "docker",
        "elftools.elf",
        "requests",
        "rich",
        "spython",
        "sqlite3",
        "urllib3",
        "zstandard",
    }
)
TIMES_REFERENCE = 3.5  # 0.35 s where the reference takes 0.1 s


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"ENVBUILDER_CACHE": str(tmp_path_factory.mktemp("idle") / "cache")}


@pytest.fixture(scope="module")
def idle(cache: dict[str, str]) -> dict[str, Idle]:
    return measure((*IDLE, *HELP), cache)


@pytest.mark.parametrize("command", [*IDLE, *LIGHT])
def test_a_command_imports_no_library_that_it_does_not_need(command: str, idle: dict[str, Idle]):
    assert "typer" in idle[command].modules
    assert idle[command].modules & HEAVY == set()


@pytest.mark.parametrize("command", [f"{name} --help" for name in ("push", "pull", "sign", "verify")])
def test_cryptography_is_imported_for_a_key_alone(command: str, idle: dict[str, Idle]):
    assert "cryptography" not in idle[command].modules


def test_a_command_with_nothing_to_do_takes_little_cpu_time(cache: dict[str, str], idle: dict[str, Idle]):
    """One that took too much is measured again, beside the reference, since other load on the machine only ever adds."""
    slow = too_slow(idle)
    for _ in range(2):
        slow = too_slow(measure(slow, cache)) if slow else {}
    assert slow == {}


def too_slow(measured: Mapping[str, Idle]) -> dict[str, tuple[float, float]]:
    """Return the commands that took more CPU time than the limit: how much they took, and the limit."""
    limit = LOADED * TIMES_REFERENCE * min(reference() for _ in range(3))
    return {command: (one.seconds, limit) for command, one in measured.items() if one.seconds > limit}
