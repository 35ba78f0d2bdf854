"""What a package's scripts do to this machine, in the sandbox that they run in. `tests/e2e/test_os_layer.py` has whole packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envbuilder.builder.assemble.dpkg_root import make_merged_root
from envbuilder.builder.assemble.os import configure_command
from envbuilder.core.errors import CommandError, EnvbuilderError
from envbuilder.core.process import ProcessRunner
from envbuilder.runners.sandbox import Mount

pytestmark = pytest.mark.programs
ROOT = Path(__file__).parents[2]
# Runs a script on a file system of 8 MB, and says how it ended.
SMALL = f"""
mount -t tmpfs -o size=8m none "$1"
exec '{sys.executable}' -c 'import sys; from tests.builder import test_hostile_scripts as t; t.say(*sys.argv[1:])' "$1" "$2"
"""


def configure(folder: Path, script: str) -> str:
    """Run a script as the scripts of packages run, in a root with the programs of this machine. Returns what it says."""
    root, record = folder / "root", folder / "owners.json"
    make_merged_root(root)
    record.write_text("[]")
    usr = Mount(source=Path("/usr"), target="/usr")
    return ProcessRunner(os.environ).run(configure_command(script, root, record, epoch=0, native=(usr,)))


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
    hint = "free space there, or point ENVBUILDER_CACHE and --output at a larger disk; then run it again"
    assert said.splitlines()[-1] == hint


def test_a_script_that_starts_too_many_processes_is_ended(tmp_path: Path):
    # It ends by itself, so that a limit that fails does not take the machine with it.
    bomb = "echo Setting up bomb; n=0; while [ $n -lt 3000 ]; do sleep 617 & n=$((n + 1)); done"
    with pytest.raises(CommandError) as failed:
        configure(tmp_path, bomb)
    assert "a script started more than 1000 processes, and all were ended" in failed.value.message
    assert "Setting up bomb" in failed.value.message
    still = subprocess.run(("pgrep", "-fx", "sleep 617"), capture_output=True, text=True, check=False)
    assert still.stdout == ""
