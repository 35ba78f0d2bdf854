"""Owners that nobody could give are recorded, file by file, and nothing else changes for a program."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envbuilder.runners.sandbox import sandbox_words
from tests.support.hosts import WITHOUT_NOTIFICATION

pytestmark = pytest.mark.programs
RECORDER = Path(__file__).parents[2] / "envbuilder/builder/assemble/record_owners.py"
BEFORE: tuple[str, ...] = ()


@pytest.fixture(params=["Linux 5.5", "an older kernel"], autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test as a kernel asks about calls, and as one stops a program at them."""
    monkeypatch.setattr(f"{__name__}.BEFORE", WITHOUT_NOTIFICATION if "older" in request.param else ())


def record(
    folder: Path, script: str, known: tuple[tuple[str, int, int], ...] = ()
) -> tuple[int, dict[str, tuple[object, ...]]]:
    """Run a shell script in a folder; returns the exit code, and the owners by path."""
    kept = folder / "owners.json"
    kept.write_text(json.dumps([(str(folder / name), uid, gid) for name, uid, gid in known]))
    enter = folder / "enter.py"  # in place of `enter_sandbox.py`: it starts the words as they are
    enter.write_text(
        "def prepare(words): return ['/usr/bin/env', 'PATH=/usr/sbin:/usr/bin:/sbin:/bin', *words]"
    )
    argv = (*BEFORE, sys.executable, "-I", RECORDER, kept, enter, "sh", "-euc", script)
    code = subprocess.run(argv, cwd=folder, check=False).returncode
    rows = {(device, inode): tuple(rest) for device, inode, *rest in json.loads(kept.read_text())}
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        if (row := rows.pop((status.st_dev, status.st_ino), None)) is not None:
            found[str(path.relative_to(folder))] = row
    assert not rows, "owners of files that are gone"
    return code, found


def test_owners_are_recorded_by_every_call(tmp_path: Path):
    script = """
    mkdir d; touch d/a d/b c; ln -s c l; cd d
    chown 5:42 a; chown 7 "$PWD/b"; chown -R 9:9 ../d; chown 6 b; chown -h 3 ../l; chown :4 ../l
    """
    found = {"d": (9, 9, ""), "d/a": (9, 9, ""), "d/b": (6, 9, ""), "l": (3, 0, ""), "c": (0, 4, "")}
    assert record(tmp_path, script) == (0, found)


def test_a_file_that_is_gone_leaves_no_owner_to_the_next_one(tmp_path: Path):
    script = "for n in 1 2 3 4 5 6 7 8; do touch a$n; chown $n a$n; rm a$n; touch b$n; done"
    assert record(tmp_path, script) == (0, {})


def test_owners_known_before_count_until_they_change(tmp_path: Path):
    for name in ("kept", "changed", "removed"):
        (tmp_path / name).touch()
    known = (("kept", 1, 2), ("changed", 3, 4), ("removed", 5, 6))
    code, found = record(tmp_path, "chown 8 changed; rm removed; touch removed", known)
    assert (code, found) == (0, {"kept": (1, 2, ""), "changed": (8, 4, "")})


def test_a_capability_is_recorded_and_goes_with_the_owner(tmp_path: Path):
    script = f"""
    cp /bin/true a; cp a b
    "{sys.executable}" -c 'import os
for name in "ab": os.setxattr(name, "security.capability", bytes.fromhex("0100000200200000000000000000000000000000"))
os.setxattr("a", "user.mine", b"x")' && chown 5 b
    """
    code, found = record(tmp_path, script)
    assert (code, found) == (0, {"a": (0, 0, "0100000200200000000000000000000000000000"), "b": (5, 0, "")})
    assert os.getxattr(tmp_path / "a", "user.mine") == b"x"


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 7", 7),
        ("kill -9 $$", 137),
        ("chown 5 nowhere", 1),
        ("touch f && ln -s loop loop && chown 5 loop", 1),
    ],
)
def test_the_exit_code_is_the_programs(tmp_path: Path, script: str, code: int):
    assert record(tmp_path, script)[0] == code


def test_a_program_of_another_user_is_not_needed(tmp_path: Path):
    script = f"""exec "{sys.executable}" -c 'import os; os.setgroups([7]); os.setgid(8); os.setuid(9); print(os.getuid())'"""
    assert record(tmp_path, script)[0] == 0


def test_a_program_that_is_not_there_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    (tmp_path / "r").write_text("[]")
    argv = (*BEFORE, sys.executable, "-I", RECORDER, tmp_path / "r", "/no/such/program")
    ended = subprocess.run(argv, check=False)
    assert (ended.returncode, "/no/such/program" in capfd.readouterr().err) == (1, True)


# All processes that it starts stay, so that only the limit ends them.
BOMB = """
import os, signal
while True:
    if os.fork() == 0:
        signal.pause()
"""


def test_a_fork_bomb_is_ended_with_all_its_processes(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    mark, kept = f"bomb-{os.getpid()}", tmp_path / "owners.json"
    kept.write_text("[]")
    options = ("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev")
    words = sandbox_words(options, ("/usr/bin/python3", "-c", BOMB, mark), env=())
    argv = (*BEFORE, sys.executable, "-I", RECORDER, kept, *words)
    assert subprocess.run(argv, check=False).returncode in (137, 143)
    assert "a script started more than 1000 processes" in capfd.readouterr().err
    assert subprocess.run(("pgrep", "-f", mark), check=False, stdout=subprocess.DEVNULL).returncode == 1
