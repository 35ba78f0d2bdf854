"""Machines that are not Debian: the same locks as on Debian, and a sandbox, out of the toolbox."""

import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.core.cache import Store
from envbuilder.core.process import Command, ProcessRunner
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.runners.toolbox import LIBRARIES, LOADER, make_toolbox, open_sandbox
from envbuilder.sources.fetch import Fetcher
from envbuilder.sources.names import Sources
from tests.support import package_sources
from tests.support.hosts import CONTAINER_WITHOUT_NAMESPACES, WITHOUT_NAMESPACES, on_rocky
from tests.support.tiny import make_tiny
from tests.support.workbench import (
    ENVBUILDER,
    NO_ENGINE,
    ROOT,
    Built,
    attempt,
    build_command,
    cache_with_artifacts,
    cache_with_toolbox,
    resolve_context,
    run,
)

pytestmark = pytest.mark.builds
world = package_sources.world
RECIPE = """\
base: debian/bookworm
python: "3.11"
gcc: "12"
libxcrypt: "4.4"
pytorch: "2.13.0"
apt: [git]
"""


def test_lock_without_apt_on_the_machine(spacious: Path, world: Sources):
    place = spacious / "a folder é"
    place.mkdir()
    recipe = place / "test.yaml"
    recipe.write_text(RECIPE)
    environment = {
        "ENVBUILDER_DEBIAN_MIRROR": world.debian[0], "ENVBUILDER_DEBIAN_SECURITY": world.security[0],
        "ENVBUILDER_DEBIAN_KEYRING": str(world.keyring), "ENVBUILDER_INDEX": world.indexes[0],
        "ENVBUILDER_FOLDERS": str(world.folders[0]),
    }  # fmt: skip
    locks = []
    for name, machine in (("here", ()), ("there", on_rocky(spacious / "rocky"))):
        cache = cache_with_toolbox(place / f"the cache {name}")
        run(*machine, ENVBUILDER, "lock", recipe, env={**environment, "ENVBUILDER_CACHE": str(cache)})
        locks.append(load_lock(recipe.with_suffix(".lock")))
        recipe.with_suffix(".lock").unlink()
    assert locks[0] == locks[1]
    assert {"git", "libc6"} <= {deb.name for deb in locks[0].debs}


def test_a_machine_without_bubblewrap_takes_the_toolboxs(spacious: Path):
    (spacious / "programs").mkdir()
    runner = ProcessRunner({"PATH": str(spacious / "programs")})
    store = Store(cache_with_toolbox(spacious / "cache"))
    context = resolve_context()
    open_sandbox(store, Fetcher(store, context.sources, offline=True), runner, context.transfer)
    argv = ("bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--", "/bin/echo", "inside")
    assert runner.run(Command(argv=argv, why="run a program in the sandbox")) == "inside\n"


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(WITHOUT_NAMESPACES, id="user"),
        pytest.param(CONTAINER_WITHOUT_NAMESPACES, id="container", marks=pytest.mark.release),
    ],
)
def test_a_machine_that_refuses_namespaces_builds_the_same_files(
    spacious: Path, tiny: Built, machine: tuple[str, ...]
):
    """In a container only before a release: the user's machine refuses the same calls."""
    code = 'import markupsafe._speedups, os; assert os.environ["WHICH"] == "tiny"'
    tests = f"tests:\n  - python -c '{code}'\n"
    recipe, _ = make_tiny(spacious / "recipe", more=tests)
    cache = cache_with_toolbox(cache_with_artifacts(spacious, recipe))
    env = NO_ENGINE | {"ENVBUILDER_CACHE": str(cache)}
    assert attempt(*machine, "bwrap", "--unshare-all", "--ro-bind", "/", "/", "true").returncode != 0
    command = build_command(recipe, spacious / "out", "--offline")
    ended = attempt(*machine, *command, env=env)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    built = Built("tiny", spacious / "out", json.loads(ended.stdout)["data"][0])
    assert built.digests == tiny.digests
    assert ended.stderr.count("✓ build with proot") == 1
    assert (ended.stderr.count("✓ test in the SIF"), json.loads(ended.stdout)["findings"]) == (1, [])
    assert list((cache / "work").iterdir()) == []


def test_systemd_is_refused_before_anything_is_built_where_only_proot_runs(spacious: Path):
    recipe, lock = make_tiny(spacious / "recipe")
    systemd = replace(lock.debs[0], name="systemd", version="257.8-1~deb13u2")
    recipe.with_suffix(".lock").write_text(lock_text(replace(lock, debs=(*lock.debs, systemd))))
    env = NO_ENGINE | {"ENVBUILDER_CACHE": str(cache_with_toolbox(spacious / "cache"))}
    ended = attempt(*WITHOUT_NAMESPACES, *build_command(recipe, spacious / "out"), env=env)
    assert "the package systemd 257.8-1~deb13u2 cannot be configured here" in ended.stdout + ended.stderr
    assert "fetch" not in ended.stderr


@pytest.fixture
def plain(spacious: Path) -> tuple[str, ...]:
    """The beginning of a command in the sandbox without namespaces, as an ordinary build gives it."""
    store, context = Store(cache_with_toolbox(spacious / "cache")), resolve_context()
    toolbox = make_toolbox(store, Fetcher(store, context.sources, offline=True), context.transfer)
    (spacious / "box").mkdir()
    tools = (toolbox / LOADER, toolbox / LIBRARIES, toolbox / "usr/bin/proot.elf", store.root)
    options = ["--unshare-all", "--uid", "0", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for name in ("bin", "lib", "lib64"):
        options += ["--symlink", f"usr/{name}", f"/{name}"]
    options += ["--ro-bind", "/usr", "/usr", "--bind", str(spacious / "box"), "/box", "--chdir", "/box"]
    program = ROOT / "envbuilder/runners/plain_sandbox.py"
    words = (ROOT / ".venv/bin/python", "-I", program, *tools, *options, "--setenv", "PATH", "/usr/bin", "--")
    return tuple(map(str, words))


HOSTILE = """
import os, socket, sys
outside, other = sys.argv[1:]
done = []
def attempt(name, call):
    try:
        call()
    except OSError:
        return
    done.append(name)
attempt("read", lambda: open(outside).read())
attempt("write", lambda: open("/usr/mine", "w"))
attempt("other's files", lambda: open(f"/proc/{other}/root{outside}").read())
attempt("other's variables", lambda: open(f"/proc/{other}/environ").read())
attempt("signal", lambda: os.kill(int(other), 9))
attempt("network", lambda: socket.socket(socket.AF_INET))
attempt("abstract socket", lambda: socket.socket(socket.AF_UNIX).connect("\\0anylinux"))
attempt("device", lambda: os.mknod("/box/disk", 0o60666, os.makedev(7, 0)) or os.stat("/box/disk"))
print(os.getuid(), set(os.environ) - {"LC_CTYPE", "PATH", "PROOT_LOADER", "PWD"}, done)
"""


def test_the_sandbox_without_namespaces_keeps_a_hostile_program_in(spacious: Path, plain: tuple[str, ...]):
    secret = spacious / "secret"
    secret.write_text("mine")
    with subprocess.Popen(("sleep", "600")) as other:
        printed = run(*plain, "python3", "-c", HOSTILE, secret, other.pid)
        assert other.poll() is None
        other.kill()
    assert printed == "0 set() []\n"


def test_the_sandbox_without_namespaces_ends_with_its_program(spacious: Path, plain: tuple[str, ...]):
    mark = str(600 + os.getpid() / 1e7)
    ended = attempt(*plain, "sh", "-c", f"sleep {mark} & (setsid sleep {mark} &); echo here >file; exit 7")
    assert (ended.returncode, (spacious / "box/file").read_text()) == (7, "here\n")
    assert attempt("pgrep", "-f", f"sleep {mark}").returncode == 1
    with subprocess.Popen((*plain, "sh", "-c", f"echo ready >ready; sleep {mark}")) as running:
        while not (spacious / "box/ready").exists():
            time.sleep(0.05)
        running.terminate()
    assert attempt("pgrep", "-f", f"sleep {mark}").returncode == 1
    assert list((spacious / "cache/work").iterdir()) == []


SPAWN = """
import os, sys, threading
def work():
    for _ in range(15):
        pid = os.posix_spawn(sys.executable, [sys.executable, "-c", "[str(n) * 9 for n in range(10000)]"], {})
        codes.append(os.waitpid(pid, 0)[1])
codes = []
threads = [threading.Thread(target=work) for _ in range(4)]
[one.start() for one in threads], [one.join() for one in threads]
print(set(codes), len(codes))
"""


def test_programs_that_threads_start_at_once_keep_their_own_memory(plain: tuple[str, ...]):
    assert run(*plain, "python3", "-c", SPAWN) == "{0} 60\n"
