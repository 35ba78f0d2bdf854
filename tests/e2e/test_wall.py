"""Hostile packages in a recipe's tests, in both artifacts, and hostile projects on machines without namespaces.

`tests/attacks/test_wall.py` attacks the sandboxes of builds.
"""

import ast
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envbuilder.builder.sandbox.root import sandboxed
from envbuilder.core.cache import Store
from envbuilder.core.errors import CommandError
from envbuilder.core.process import ProcessRunner
from envbuilder.runners.sandbox import Mount
from envbuilder.runners.toolbox import open_sandbox
from envbuilder.sources.fetch import Fetcher
from tests.support.cluster import wait_until
from tests.support.conditions import USER, Conditions
from tests.support.hosts import CONTAINER_WITHOUT_NAMESPACES, WITHOUT_NAMESPACES
from tests.support.sdists import HOST
from tests.support.tiny import make_tiny
from tests.support.workbench import (
    NO_ENGINE,
    ROOT,
    Built,
    attempt,
    build,
    build_command,
    cache_with_artifacts,
    cache_with_toolbox,
    open_folder,
    resolve_context,
)

pytestmark = pytest.mark.builds
BREACH = ROOT / "tests/support/breach.py"
SECRET = "a-password-of-the-proxy"
# What Apptainer leaves to every program, as the kernel leaves it to every user. It changes nothing of the machine.
OF_USERS = (
    "a user namespace", "a user namespace by clone", "a user namespace by clone3", "calls of the kernel",
    "other sockets",
)  # fmt: skip


@pytest.fixture
def place() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


def hostile_test(hidden: Path) -> str:
    """Return `tests` of a recipe that fail if they reach anything, or see a file of the user."""
    head, ends, _ = BREACH.read_text().rpartition("print(json.dumps(reached))")
    assert ends
    code = head.replace("sys.argv[1], sys.argv[2:]", f"{SECRET!r}, ['/usr/bin/env']")
    code += f"""
if os.path.exists({str(hidden)!r}) or os.path.exists({str(ROOT)!r}):
    reached["files of the user"] = "seen"
if "APPTAINER_CONTAINER" in os.environ:
    reached = {{name: what for name, what in reached.items() if name not in {OF_USERS}}}
if "\\nTracerPid:\\t0\\n" not in open("/proc/self/status").read():
    # Below proot: the names of the interfaces, which no socket reaches, and the times of files.
    reached.pop("a network", None)
    if reached.get("a file that is shown read-only") == "['utime /usr/bin/env']":
        del reached["a file that is shown read-only"]
if reached:
    raise SystemExit("reached " + json.dumps(reached))
open("/tmp/here", "w").close()
"""
    line = f"""python -c 'exec(bytes.fromhex("{code.encode().hex()}"), dict(__name__="breach"))'"""
    return f"tests:\n  - {line}\n"


def variables() -> dict[str, str]:
    return {"https_proxy": f"http://me:{SECRET}@proxy", "APPTAINERENV_MINE": SECRET, "SSH_AUTH_SOCK": SECRET}


def test_the_tests_of_a_recipe_reach_nothing_in_the_image_and_the_sif(place: Path):
    (place / "hidden").write_text("of the user")
    recipe, _ = make_tiny(place / "recipe", more=hostile_test(place / "hidden"))
    built = build(str(recipe), place / "out", env=variables())
    log = built.sif.with_suffix(".log").read_text()
    assert ("test in the image" in log, "test in the SIF" in log) == (True, True)


@pytest.mark.parametrize("machine", ["user", pytest.param("without namespaces", marks=pytest.mark.release)])
def test_the_tests_of_a_recipe_reach_nothing_elsewhere(place: Path, machine: str):
    """Without namespaces only before a release: `test_any_linux.py` builds and tests there for every change."""
    (place / "hidden").write_text("of the user")
    recipe, _ = make_tiny(place / "recipe", more=hostile_test(place / "hidden"))
    cache = cache_with_toolbox(cache_with_artifacts(place, recipe))
    command = build_command(recipe, place / "out", "--offline")
    if machine == "user":
        for path in (place, *place.rglob("*")):
            if (
                path.is_file() and path.stat().st_nlink > 1
            ):  # another name of a file in this machine's own cache
                content = path.read_bytes()
                path.unlink()
                path.write_bytes(content)
            os.chown(path, USER, USER, follow_symlinks=False)
        argv = Conditions(name="user", folder="user", user=USER).command(*command, place=place)
    else:
        argv = tuple(map(str, (*CONTAINER_WITHOUT_NAMESPACES, *command)))
    ended = attempt(*argv, env=NO_ENGINE | variables() | {"ENVBUILDER_CACHE": str(cache)})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads(ended.stdout)["findings"] == []
    assert Built("tiny", place / "out", json.loads(ended.stdout)["data"][0]).sif.exists()


# Ends the tracer that shows it other files, then looks for what is the user's.
FREE = """
import os, signal, socket, sys, time
home, work = sys.argv[1:]
tracer = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("TracerPid"))
if os.fork() == 0:
    open("/work/ready", "w").close()
    while not os.path.exists("/work/go"):
        time.sleep(0.01)
    os.kill(tracer, signal.SIGKILL)
    while os.path.exists("/work/go"):
        pass
    reached = []
    for name, change in {
        "read": lambda: open(home + "/secret").read(),
        "write": lambda: open(home + "/secret", "a").write("x"),
        "add": lambda: open(home + "/new", "w"),
        "remove": lambda: os.unlink(home + "/secret"),
        "connect": lambda: socket.socket(socket.AF_UNIX).connect(home + "/service"),
        "chmod": lambda: os.chmod(home + "/secret", 0o777),
        "utime": lambda: os.utime(home + "/secret"),
    }.items():
        try:
            change()
            reached.append(name)
        except OSError:
            pass
    with open(work + "/part", "w") as out:
        out.write(" ".join(["tried", *reached]))
    os.rename(work + "/part", work + "/reached")
    os._exit(0)
os.wait()
"""


def attack_without_namespaces(cache: str, folder: str) -> None:
    """Run both attacks in the sandbox of a machine without namespaces, and print what they reached."""
    runner, store = ProcessRunner(os.environ | variables()), Store(Path(cache))
    context = resolve_context()
    assert open_sandbox(store, Fetcher(store, context.sources, offline=True), runner, context.transfer)
    home, work, shared = (Path(folder, name) for name in ("home", "work", "shared"))
    mounts = (
        Mount(source=BREACH, target="/breach.py"),
        Mount(source=work, target="/work", writable=True),
        Mount(source=shared, target="/shared"),
    )
    breach = ("/usr/bin/python3", "/breach.py", SECRET, "/shared/file")
    reached = json.loads(runner.run(sandboxed(HOST, breach, why="attack", mounts=mounts)))
    argv = ("/usr/bin/python3", "-c", FREE, str(home), str(work))
    free = sandboxed(HOST, argv, why="attack", mounts=mounts)
    with ThreadPoolExecutor(1) as pool:
        attacked = pool.submit(runner.run, free)
        wait_until("the program is free", (work / "ready").exists, 60)
        # It would end the program some milliseconds after its tracer, and hide what the program may do.
        (supervisor,) = runner.programs(and_no_more=False)
        supervisor.send_signal(signal.SIGSTOP)
        (work / "go").touch()
        wait_until("it has attacked", (work / "reached").exists, 60)
        supervisor.send_signal(signal.SIGCONT)
        with contextlib.suppress(CommandError):  # its tracer was ended
            attacked.result()
    print(json.dumps([reached, (work / "reached").read_text().split()]))


# What docs/explain/security.md says of such a machine: the modes and times of files are open to a user's build, times to root's.
@pytest.mark.parametrize(
    ("machine", "open_to_it"),
    [(WITHOUT_NAMESPACES, {"chmod", "utime"}), (CONTAINER_WITHOUT_NAMESPACES, {"utime"})],
    ids=["user", "root"],
)
def test_a_project_that_ends_its_tracer_reaches_no_file_and_no_service(
    place: Path, tmp_path: Path, machine: tuple[str, ...], open_to_it: set[str]
):
    for name in ("home", "work", "shared"):
        (tmp_path / name).mkdir()
    secret, shared = tmp_path / "home/secret", tmp_path / "shared/file"
    for path in (secret, shared):
        path.write_text("of the user")
    call = f"from tests.e2e import test_wall as t; t.attack_without_namespaces({str(cache_with_toolbox(place / 'cache'))!r}, {str(tmp_path)!r})"
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(tmp_path / "home/service"))
        service.listen()
        ended = attempt(*machine, sys.executable, "-c", call)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    breached, (tried, *reached) = json.loads(ended.stdout.splitlines()[-1])
    assert tried == "tried"
    breached.pop("a network", None)  # the names of the interfaces; no socket reaches them
    changed = breached.pop("a file that is shown read-only", "[]")
    assert breached == {}
    assert {change.split()[0] for change in ast.literal_eval(changed)} | set(reached) <= open_to_it
    assert (secret.read_text(), shared.read_text()) == ("of the user", "of the user")
