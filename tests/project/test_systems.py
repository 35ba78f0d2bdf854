"""macOS and Windows by shape: this Linux without the modules and calls that they lack, and no name that they cannot have."""

import json
import os
import platform
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from envbuilder.core.cache import Store
from envbuilder.core.errors import ToolError
from envbuilder.core.toolbox import make_toolbox

ROOT = Path(__file__).parents[2]

# What other packages need is imported before: they have code of their own for these systems.
STUBS = """
import errno, importlib, json, os, signal, sys, types
for name in OTHERS:
    importlib.import_module(name)
real = importlib.import_module("fcntl")
for name in MODULES:
    sys.modules[name] = None
for owner, names in ((os, CALLS), (signal, SIGNALS)):
    for name in names:
        if hasattr(owner, name):
            delattr(owner, name)
if not hasattr(os, "O_NONBLOCK"):  # Windows: no path there is relative to an open folder
    os.supports_dir_fd.clear()
    shutil = importlib.reload(importlib.import_module("shutil"))
    shutil.disk_usage = lambda path: types.SimpleNamespace(free=1 << 40)  # Windows has one without statvfs
tries = []
def locking(descriptor, how, size):
    tries.append(how)
    if how == 1 and tries.count(1) == 1:  # as Windows does after ten seconds
        raise OSError(errno.EDEADLK, "Resource deadlock avoided")
    real.flock(descriptor, real.LOCK_EX | (real.LOCK_NB if how == 2 else 0))
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_LOCK=1, LK_NBLCK=2)
"""
OTHERS = (
    "bs4", "cryptography.hazmat.primitives.asymmetric.ed25519", "docker", "dockerfile_parse", "elftools.elf.elffile", "getpass",
    "jinja2", "license_expression", "multiprocessing.synchronize", "concurrent.futures.process", "pydantic.fields", "pypi_simple", "re2", "requests", "rich.console", "rich.progress",
    "spython.main.parse.parsers", "subprocess", "tarfile", "tempfile", "typer", "uv", "venv", "yaml", "zipfile", "zstandard",
)  # fmt: skip
LINUX_ALONE = (
    "getxattr", "listxattr", "memfd_create", "posix_fadvise", "posix_fallocate", "removexattr", "sched_getaffinity", "setxattr", "unshare",
    "O_PATH", "copy_file_range", "splice", "sched_setaffinity",
)  # fmt: skip
UNIX_ALONE = (
    "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "chown", "chroot", "fchown", "fork", "forkpty", "getegid", "geteuid", "getgid",
    "getgroups", "getloadavg", "getpgid", "getsid", "getuid", "killpg", "lchown", "major", "makedev", "minor", "mkfifo", "mknod", "nice",
    "pread", "preadv", "pwrite", "setegid", "seteuid", "setgid", "setgroups", "setsid", "setuid", "statvfs", "sysconf", "uname", "wait", "wait4",
)  # fmt: skip
SYSTEMS = {
    "macOS": ((), LINUX_ALONE, ()),
    "Windows": (
        ("fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "curses", "syslog", "readline"),
        (*LINUX_ALONE, *UNIX_ALONE),
        ("SIGKILL", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGCHLD", "SIGALRM", "SIGPIPE", "pthread_sigmask", "setitimer"),
    ),
}  # fmt: skip


def on(system: str, code: str, folder: Path) -> str:
    modules, calls, signals = SYSTEMS[system]
    given = {"OTHERS": OTHERS, "MODULES": modules, "CALLS": calls, "SIGNALS": signals}
    head = "".join(f"{name} = {value!r}\n" for name, value in given.items())
    ended = subprocess.run(
        [sys.executable, "-c", head + STUBS + code], cwd=folder, check=False, capture_output=True, text=True,
        env={"HOME": str(folder), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "USERNAME": "me"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


# Programs of Linux that a build starts there: they are read as text, or by their path.
THERE = ("envbuilder.runtime.", "envbuilder.build.assemble.record_owners", "envbuilder.core.plain_sandbox")
IMPORTS = """
import pkgutil, envbuilder
from envbuilder import cli
broken = {}
for one in pkgutil.walk_packages(envbuilder.__path__, "envbuilder.", onerror=lambda name: None):
    if not one.name.startswith(THERE) and not one.name.endswith("__main__"):
        try:
            importlib.import_module(one.name)
        except (ImportError, AttributeError) as error:
            broken[one.name] = str(error)
print(json.dumps(broken))
"""


@pytest.mark.programs
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_module_can_be_imported(system: str, tmp_path: Path):
    assert json.loads(on(system, f"THERE = {THERE}\n{IMPORTS}", tmp_path)) == {}


COMMANDS = """
from pathlib import Path
from envbuilder import cli
for words in (
    ("init", "--example", "cpu"), ("list",), ("check", "cpu"), ("show", "cpu"), ("render", "cpu"), ("cache",),
    ("build", "cpu", "--engine", "docker", "--dry-run"), ("render", "cpu", "--as", "apptainer"),
):
    code = cli.run(list(words))
    assert code == 0, (words, code)
code = cli.run(["pull", "localhost:1/nobody/answers:1"])
assert code == 5, code
"""
STORE = """
from pathlib import Path
from envbuilder.core.cache import Store, beside, sha256_text
from envbuilder.core.limits import usable_cores, usable_memory
from envbuilder.core.process import Command, ProcessRunner
from envbuilder.core.system import read_at, user_name
store = Store(Path("store"))
with store.in_use(), store.lock("one"), store.workspace() as work:
    assert not store.leftovers() and work.is_dir()
    store.sweep()
    assert work.is_dir()
(store.root / "work/work-left").mkdir()
(store.root / "locks/work-left").touch()
assert [path.name for path in store.leftovers()] == ["work-left"]
store.sweep()
assert not store.leftovers()
store.clear(["layers"])
with beside(Path("out/a")) as folder:
    (folder / "x").touch()
assert list(Path("out").iterdir()) == []
assert usable_cores() >= 1 and usable_memory() > 0 and user_name()
echo = Command(argv=(sys.executable, "-c", "print(input())"), why="say it", input=b"hello")
assert ProcessRunner(os.environ).run(echo) == "hello\\n"
Path("bytes").write_bytes(b"0123456789")
from envbuilder.artifacts.parts import Assembly, cut
with open("bytes", "rb") as stream:
    made = Assembly("copy", [(size, name) for _, size, name in cut(stream)])
made.take("bytes")
assert not made.missing and made.finish() and Path("copy").read_bytes() == b"0123456789"
made.close()
with open("bytes", "rb") as stream:
    assert read_at(stream.fileno(), 3, 4) == b"456"
"""


@pytest.mark.programs
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_commands_that_need_no_linux_run(system: str, tmp_path: Path):
    on(system, STORE + COMMANDS, tmp_path)
    assert (tmp_path / "recipes/cpu.lock").read_bytes() == (ROOT / "recipes/cpu.lock").read_bytes()


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_lock_elsewhere_is_refused_with_what_to_do(system: str, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: system)
    with pytest.raises(ToolError, match=f"does not run on {system}") as caught:
        make_toolbox(Store(tmp_path), None, None)
    assert "commit the lock" in caught.value.hint


def test_the_toolbox_is_refused_on_another_processor(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("envbuilder.core.processor.machine_name", lambda: "aarch64")
    with pytest.raises(ToolError, match="for x86-64, and this machine is 64-bit Arm") as caught:
        make_toolbox(Store(tmp_path), None, None)
    assert "run `envbuilder lock` on x86-64" in caught.value.hint


def tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--stage"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    rows = (row.split("\t", 1) for row in listed.stdout.split("\0") if row)
    assert [name for head, name in rows if head.startswith("120000")] == [], "a clone on Windows has no links"
    return [row.split("\t", 1)[1] for row in listed.stdout.split("\0") if row]


@pytest.mark.programs
def test_a_clone_has_no_name_that_windows_or_macos_cannot_keep():
    names = tracked()
    parts = {"/".join(name.split("/")[:depth]) for name in names for depth in range(1, name.count("/") + 2)}
    folded = Counter(part.casefold() for part in parts)
    assert [name for name, count in folded.items() if count > 1] == []
    reserved = re.compile(
        r'[<>:"\\|?*\x00-\x1f]|(^|/)(con|prn|aux|nul|com\d|lpt\d)(\.|/|$)|[. ](/|$)', re.IGNORECASE
    )
    assert [name for name in names if reserved.search(name)] == []


@pytest.mark.programs
def test_a_clone_has_the_same_bytes_whatever_git_makes_of_line_ends_elsewhere(tmp_path: Path):
    for name in ("repository", "clone"):
        (tmp_path / name).mkdir()
    source = tmp_path / "repository"
    (source / ".gitattributes").write_bytes((ROOT / ".gitattributes").read_bytes())
    (source / "a.cpp").write_bytes(b"int a;\n")
    (source / "a.bin").write_bytes(b"\x00\r\n\x00")

    def git(*words: object) -> None:
        user = ("-c", "user.name=a", "-c", "user.email=a", "-c", "core.autocrlf=true")
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
        subprocess.run(["git", *user, *map(str, words)], cwd=source, env=env, check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "All of it")
    git("clone", source, tmp_path / "clone")
    for name in ("a.cpp", "a.bin"):
        assert (tmp_path / "clone" / name).read_bytes() == (source / name).read_bytes()
