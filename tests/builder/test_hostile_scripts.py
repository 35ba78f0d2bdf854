"""What a package's scripts do to this machine, in the sandbox that they run in. `tests/e2e/test_os_layer.py` has whole packages."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuilder.builder.sandbox.distribution import root_command
from envbuilder.core.errors import CommandError, EnvbuilderError
from envbuilder.core.process import Command, ProcessRunner
from envbuilder.runners.sandbox import Mount
from envbuilder.steps.distribution import Root
from tests.support.runner import one_a_line

pytestmark = pytest.mark.programs
ROOT = Path(__file__).parents[2]
# Runs a script on a file system of 8 MB, and says how it ended.
SMALL = f"""
mount -t tmpfs -o size=8m none "$1"
exec '{sys.executable}' -c 'import sys; from tests.builder import test_hostile_scripts as t; t.say(*sys.argv[1:])' "$1" "$2"
"""


def command(folder: Path, script: str) -> Command:
    """Return the command that runs a script as the scripts of packages run, in a root with the programs of this machine."""
    root, usr = folder / "root", Mount(source=Path("/usr"), target="/usr")
    Root(str(root))
    return root_command(
        ("/bin/sh", "-c", script), root, why="install the distribution's packages", epoch=0, mounts=(usr,)
    )


def configure(folder: Path, script: str) -> str:
    """Run a script so. Returns what it says."""
    return ProcessRunner(os.environ).run(command(folder, script))


def say(folder: str, script: str) -> None:
    try:
        sys.stdout.write(configure(Path(folder), script))
    except EnvbuilderError as error:
        sys.stdout.write(f"{error.exit_code}\n{error.message}\n{error.hint}\n")


@pytest.mark.parametrize(
    "script", ["cat /dev/zero >/fill", "cat /dev/zero >/fill 2>/dev/null; cp /usr/bin/env /more"]
)
def test_a_script_that_fills_the_disk_is_named_with_what_to_do(tmp_path: Path, script: str):
    argv = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-euc", SMALL, "sh", tmp_path, script)
    said = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.splitlines()[0] == "6"
    assert "could not install the distribution's packages" in said
    assert "No space left on device" in said
    hint = "free space there, or point ENVBUILDER_CACHE and the folder of artifacts at a larger disk; then run it again"
    assert said.splitlines()[-1] == hint


def test_a_script_that_starts_too_many_processes_is_ended(tmp_path: Path):
    # It ends by itself, so that a limit that fails does not take the machine with it.
    bomb = "echo Setting up bomb; n=0; while [ $n -lt 5000 ]; do sleep 617 & n=$((n + 1)); done"
    with pytest.raises(CommandError) as failed:
        configure(tmp_path, bomb)
    assert "Cannot fork" in failed.value.message
    assert "Setting up bomb" in failed.value.message
    still = subprocess.run(("pgrep", "-fx", "sleep 617"), capture_output=True, text=True, check=False)
    assert still.stdout == ""


def test_a_change_of_an_owner_succeeds_and_does_nothing(tmp_path: Path):
    script = """
    mkdir /d; touch /d/a; ln -s a /d/l
    chown 5:42 /d/a; chown -R 9:9 /d; chown -h 3 /d/l; install -o 7 -g 7 -m 640 /d/a /d/b; cp -p /d/b /d/c
    setpriv --reuid 5 --regid 6 --clear-groups true
    stat -c '%n %u:%g %a' /d/*
    """
    assert configure(tmp_path, script) == "/d/a 0:0 644\n/d/b 0:0 640\n/d/c 0:0 640\n/d/l 0:0 777\n"


def test_a_file_gets_no_capability(tmp_path: Path):
    python = "import os; os.setxattr('/x', 'security.capability', bytes(20))"
    with pytest.raises(CommandError, match="Operation not supported"):
        configure(tmp_path, f'touch /x; /usr/bin/python3 -c "{python}"')


def test_the_packages_are_configured_in_a_namespace(golden: Callable[[str, str], None]):
    words = root_command(("/bin/sh", "/steps/x.sh"), Path("/work/root"), why="x", epoch=1_700_000_000)
    golden("configure.txt", one_a_line(words))
