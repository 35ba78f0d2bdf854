"""Programs of another processor: what the machine has registered, and what a namespace of their own shows."""

import os
import subprocess
from pathlib import Path

import pytest

from envbuilder.core.process import Command, ProcessRunner
from envbuilder.core.processor import AARCH64
from envbuilder.runners import enter_sandbox

QEMU = """\
{state}
interpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P
flags: {flags}
offset 0
magic 7f454c460201010000000000000000000200b700
mask ffffffffffffff00fffffffffffffffffeffffff
"""


@pytest.mark.parametrize(
    ("state", "flags", "has"), [("enabled", "POCF", True), ("enabled", "P", False), ("disabled", "PF", False)]
)
def test_an_emulator_of_the_machine_counts_if_no_root_needs_it(
    tmp_path: Path, state: str, flags: str, *, has: bool
):
    (tmp_path / "status").write_text("enabled\n")
    (tmp_path / "qemu-aarch64").write_text(QEMU.format(state=state, flags=flags))
    assert enter_sandbox.machine_has(AARCH64.elf, tmp_path) is has
    assert not enter_sandbox.machine_has(243, tmp_path)


@pytest.mark.programs
def test_a_program_keeps_its_user_and_sees_a_folder_over_another(tmp_path: Path):
    over, below = tmp_path / "o,v:er", tmp_path / "below"
    for folder, names in ((over, ("both", "new")), (below, ("both", "old"))):
        folder.mkdir()
        for name in names:
            (folder / name).write_text(folder.name)
    show = ("sh", "-c", 'id -u; cat "$0"/both "$0"/new "$0"/old', str(below))
    argv = enter_sandbox.emulated(
        (str(AARCH64.elf), os.path.realpath("/bin/true"), str(over), str(below)), show
    )
    found = ProcessRunner(os.environ).run(Command(argv=argv, why="look"))
    assert found == f"{os.getuid()}\no,v:ero,v:erbelow"
    assert sorted(path.name for path in below.iterdir()) == ["both", "old"]
    assert not list(enter_sandbox.FORMATS.glob("envbuilder-*"))


@pytest.mark.programs
def test_a_program_that_is_not_there_is_named():
    argv = enter_sandbox.emulated((str(AARCH64.elf), os.path.realpath("/bin/true")), ("no-such-program",))
    ended = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert ended.returncode == enter_sandbox.REFUSED
    assert "no-such-program" in ended.stderr
