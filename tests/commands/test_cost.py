"""What a command costs that has nothing to do: no library that it does not need, and few calls of functions."""

import pytest

from envbuilder.commands import COMMANDS
from tests.support.cost import Idle, measure

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
        "asyncio",
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
MOST_CALLS = 700_000  # of functions: 0.2 s, beside the 0.1 s in which every command imports its libraries


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


def test_a_command_with_nothing_to_do_does_little(idle: dict[str, Idle]):
    assert {command: cost.calls for command, cost in idle.items() if cost.calls > MOST_CALLS} == {}
