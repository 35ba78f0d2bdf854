"""Hostile code in each sandbox: packages' scripts, wheels, projects, source distributions, other processors.

The same tests run for root and, in a second run of this module, for an ordinary user. `tests/e2e/test_wall.py` has the
tests of a recipe in both artifacts, and machines without namespaces.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.builder.extensions.built_wheels import built_wheels
from envbuilder.builder.job import prepare_run
from envbuilder.builder.sandbox.distribution import make_places, root_command
from envbuilder.builder.sandbox.layer_folders import LayerFolder
from envbuilder.builder.sandbox.root import Emulation, SandboxRoot, program_command, sandboxed
from envbuilder.core.cache import Store
from envbuilder.core.errors import BuildError, CompileError
from envbuilder.core.process import Command, ProcessRunner
from envbuilder.core.processor import AARCH64
from envbuilder.plan.model import OsStep, PythonStep
from envbuilder.runners.sandbox import Mount, take_over
from envbuilder.steps import distribution
from tests.support.package_sources import write_wheel
from tests.support.plans import LOCK, RECIPE, make_plan
from tests.support.sdists import HOST, locked, sdist_job, sdist_step
from tests.support.stranger import STRANGER, as_user, reachable_folder

pytestmark = pytest.mark.programs
ROOT = Path(__file__).parents[2]
BREACH = ROOT / "tests/support/breach.py"
SECRET = "a-password-of-the-proxy"
SYSTEM = "/usr/bin/python3"
MINOR = Path(SYSTEM).resolve().name.removeprefix("python")


def run(command: Command) -> str:
    """Run a command as a build does, of a user whose variables hold a secret."""
    secrets = {"https_proxy": f"http://me:{SECRET}@proxy", "SSH_AUTH_SOCK": SECRET}
    return ProcessRunner(os.environ | secrets).run(command)


def shown(folder: Path) -> tuple[Path, Mount, Mount]:
    """Return a file of the cache that a sandbox may read, its mount, and that of the hostile program."""
    header = folder / "shared/header.h"
    header.parent.mkdir()
    header.write_text("as it was")
    return header, Mount(source=header.parent, target="/shared"), Mount(source=BREACH, target="/breach.py")


def attack(argv: Sequence[str] = (SYSTEM,)) -> tuple[str, ...]:
    return (*argv, "/breach.py", SECRET, "/shared/header.h")


@pytest.mark.parametrize("emulated", [False, True], ids=["own processor", "emulated"])
def test_a_project_reaches_nothing_beyond_its_sandbox(tmp_path: Path, emulated: bool):
    header, *mounts = shown(tmp_path)
    by = Emulation(processor=AARCH64, program=Path("/bin/true").resolve()) if emulated else None
    command = sandboxed(replace(HOST, emulation=by), attack(), why="build a project", mounts=mounts)
    assert json.loads(run(command)) == {}
    assert header.read_text() == "as it was"


@pytest.mark.parametrize(
    ("part", "name"),
    [("os", "etc"), ("os", "usr"), ("os", "usr/local"), ("python", "opt"), ("python", "opt/env")],
)
def test_a_link_in_place_of_a_folder_of_a_tree_shows_nothing_of_the_machine(
    tmp_path: Path, part: str, name: str
):
    trees = {"os": tmp_path / "os", "python": tmp_path / "python"}
    for folder in ("os/usr/local/bin", "os/etc", "os/var", "python/opt/env", "home"):
        (tmp_path / folder).mkdir(parents=True)
    place = trees[part] / name
    shutil.rmtree(place)
    place.symlink_to(tmp_path / "home")
    system, python = (LayerFolder(place=tree) for tree in trees.values())
    with pytest.raises(BuildError, match=f"`/{name}` of the environment is a link"):
        sandboxed(SandboxRoot(os=system, environment=(python,)), ("true",), why="look")


def test_a_packages_script_reaches_nothing_beyond_its_root_folder(tmp_path: Path):
    root = tmp_path / "root"
    distribution.Root(str(root))
    header, *mounts = shown(tmp_path)
    usr = Mount(source=Path("/usr"), target="/usr")
    script = f"mkdir -p /tmp; exec {' '.join(attack())}"
    command = root_command(("/bin/sh", "-c", script), root, why="try it", epoch=0, mounts=(usr, *mounts))
    assert json.loads(run(command)) == {}
    assert header.read_text() == "as it was"


def install(folder: Path, line: str) -> Path:
    """Install such a wheel as a build does. Returns the folder that becomes the layer's tree."""
    # Byte code is made of the module.
    files = {"innocent.pth": f"import sys; {line}\n", "innocent.py": ""}
    wheel = locked(write_wheel(folder, "innocent", "1.0", files=files), "innocent", "1.0")
    wheel = replace(wheel, kind="wheel")
    store = Store(folder / "cache")
    store.add_artifact(wheel.sha256, folder / wheel.filename)
    step = PythonStep(python=MINOR, artifacts=(wheel,))
    program = step.made_by(make_plan(replace(RECIPE, python=MINOR), LOCK))
    tree = prepare_run(program, folder, store)
    run(program_command(program, HOST, folder))
    return tree


def test_a_wheels_start_file_reaches_nothing_when_byte_code_is_made(tmp_path: Path):
    text = BREACH.read_text().replace("sys.argv[1], sys.argv[2:]", f"{SECRET!r}, ['/step/spec.json']")
    text = text.replace("print(json.dumps(reached))", "open('/out/reached', 'w').write(json.dumps(reached))")
    line = f"exec(bytes.fromhex('{text.encode().hex()}').decode(), dict(__name__='breach'))"
    tree = install(tmp_path, line)
    assert json.loads((tree / "reached").read_text()) == {}


def test_a_wheels_start_file_cannot_change_the_wheels_of_the_cache(tmp_path: Path):
    change = "open(sys.prefix + '/ran', 'w'); [open(path, 'r+b').write(b'changed') for path in __import__('glob').glob('/step/inputs/*.whl')]"
    tree = install(tmp_path, change)
    assert (tree / "opt/env/ran").exists()
    (cached,) = (path for path in (tmp_path / "cache/artifacts").rglob("*") if path.is_file())
    assert cached.read_bytes()[:2] == b"PK"


def test_a_link_in_place_of_a_tree_does_not_enter_the_cache(tmp_path: Path):
    secret = tmp_path / "home"
    secret.mkdir()
    (tmp_path / "tree").symlink_to(secret)
    with pytest.raises(BuildError, match="replaced the folder `tree`"):
        take_over(tmp_path / "tree")


def test_what_a_sandbox_wrote_is_the_users_own_without_rights_for_others(tmp_path: Path):
    space = tmp_path / "space"
    space.mkdir()
    script = "import os; open('/work/tool', 'w'); os.chmod('/work/tool', 0o6755); os.symlink('/etc/passwd', '/work/link')"
    mount = Mount(source=space, target="/work", writable=True)
    run(sandboxed(HOST, (SYSTEM, "-c", script), why="write", mounts=(mount,)))
    before = Path("/etc/passwd").stat()
    take_over(space)
    for path in (space, space / "tool", space / "link"):
        assert path.lstat().st_uid == os.geteuid()
    assert (space / "tool").stat().st_mode & 0o7777 == 0o755
    assert Path("/etc/passwd").stat() == before


def test_a_setup_py_reaches_nothing_beyond_its_sandbox(tmp_path: Path):
    backend = BREACH.read_text().replace("sys.argv[1], sys.argv[2:]", f"{SECRET!r}, ['/steps/uv']")
    answer = "raise SystemExit('reached ' + json.dumps(reached))"
    backend = backend.replace("print(json.dumps(reached))", answer)
    project = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n',
        "own.py": backend,
    }
    runner = ProcessRunner({"PATH": "/usr/bin:/bin", "HOME": SECRET})
    job = replace(sdist_job(tmp_path, project), runner=runner)
    with pytest.raises(CompileError) as failed:
        built_wheels(sdist_step(job.plan), job, lambda _: HOST)
    assert "reached {}" in failed.value.message, failed.value.message


def test_a_program_that_was_installed_under_a_closed_umask_runs_in_a_sandbox(tmp_path: Path):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho done\n")
    program.chmod(0o700)
    mounts = (Mount(source=program, target="/program"),)
    assert run(sandboxed(HOST, ("/program",), why="run it", mounts=mounts)) == "done\n"
    assert program.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="this run is an ordinary user's")
def test_the_wall_holds_for_an_ordinary_user():
    with reachable_folder() as folder:
        os.chown(folder, STRANGER, STRANGER)
        words = ("-q", "-p", "no:cacheprovider", f"--basetemp={folder}/tests", "tests/attacks/test_wall.py")
        argv = as_user(STRANGER, sys.executable, "-m", "pytest", *words)
        ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout


@pytest.mark.parametrize("name", ["steps", "step"])
def test_nothing_of_a_package_stands_where_programs_are_mounted(tmp_path: Path, name: str):
    """bubblewrap follows a link there, while the machine lies at /oldroot."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / name).symlink_to(outside)
    step = OsStep(suite="bookworm", gcc="12", artifacts=())
    with pytest.raises(BuildError, match="where a build mounts its programs"):
        make_places(step.made_by(make_plan()), root)
    assert list(outside.iterdir()) == []
