"""The parts of the runner `sandbox`: what is asked of outside programs, and the files it lays out itself."""

import ast
import compileall
import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import uv

from envbuilder import runtime as image
from envbuilder import steps
from envbuilder.builder.job import BuildJob, prepare_run, progress, run_outside, tools
from envbuilder.builder.sandbox.layer_folders import LayerFolder
from envbuilder.builder.sandbox.root import SandboxRoot, program_command, sandboxed
from envbuilder.builder.sandbox.runner import SandboxRunner, make_root, minimal_python, unpack_minimal
from envbuilder.builder.slots import compilers
from envbuilder.core import console as console_module
from envbuilder.core.cache import Store, sha256_file, sha256_text
from envbuilder.core.console import Console
from envbuilder.core.process import ProcessRunner
from envbuilder.core.system import Limits
from envbuilder.layers.layer import read_manifest, write_layer
from envbuilder.lock.model import Artifact
from envbuilder.plan.contents import LOGIN, runtime_files, runtime_program
from envbuilder.plan.model import (
    SYSTEM_PATH,
    ExtensionsStep,
    InterpreterStep,
    OsStep,
    Plan,
    PythonStep,
    RuntimeStep,
    StartStep,
)
from envbuilder.runners.sandbox import Mount
from tests.support.debs import write_package
from tests.support.plans import INTERPRETER_ARCHIVE, make_extension
from tests.support.runner import FakeRunner, one_a_line

KEY = sha256_text("key")
EPOCH = 1_700_000_000
FULL = SandboxRoot(
    os=LayerFolder(place=Path("/store/os")),
    environment=(LayerFolder(place=Path("/store/python")),),
    cuda=LayerFolder(place=Path("/store/cuda")),
    cuda_version="12.4",
)
runs_programs = pytest.mark.programs


EXTENSION = make_extension()
PYTHON = PythonStep(python="3.11", artifacts=())


def artifact(kind: str, name: str, version: str, filename: str) -> Artifact:
    return Artifact(
        kind=kind,
        name=name,
        version=version,
        sha256=sha256_text(filename),
        size=1,
        source="s",
        path=f"{name}/{filename}",
    )


DEBS = (artifact("deb", "libc6", "2.36", "libc6.deb"), artifact("deb", "gcc-12", "12.2", "gcc-12.deb"))
OS = OsStep(suite="bookworm", gcc="12", artifacts=DEBS)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file()
    }


# The sandbox


def test_the_sandbox_of_a_plain_program(golden):
    golden(
        "sandbox-plain.txt",
        one_a_line(
            sandboxed(SandboxRoot(os=LayerFolder(place=Path("/store/os"))), ("true",), why="do nothing")
        ),
    )


def test_the_sandbox_has_no_network():
    argv = sandboxed(FULL, ("true",), why="x").argv
    assert ("--unshare-all" in argv, "--share-net" in argv) == (True, False)


def test_only_the_mount_that_asks_for_it_can_be_written():
    mounts = (Mount(source=Path("/a"), target="/x", writable=True), Mount(source=Path("/b"), target="/y"))
    argv = sandboxed(FULL, ("true",), why="x", mounts=mounts).argv
    assert [argv[at + 1 : at + 3] for at, word in enumerate(argv) if word == "--bind"] == [("/a", "/x")]


def test_the_program_comes_after_every_option():
    argv = sandboxed(FULL, ("--unshare-net", "x"), why="x").argv
    assert argv[-3:] == ("--", "--unshare-net", "x")


@pytest.fixture
def machine() -> SandboxRoot:
    """This machine's own folders as the root of a sandbox."""
    if not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed")
    return SandboxRoot(os=LayerFolder(place=Path("/")))


def in_sandbox(root: SandboxRoot, script: str, **options: object) -> str:
    return ProcessRunner(os.environ).run(
        sandboxed(root, ("sh", "-c", script), why="try the sandbox", **options)
    )


@runs_programs
def test_a_real_sandbox_sees_one_network_interface_that_leads_nowhere(machine):
    assert in_sandbox(machine, "ls /sys/class/net 2>/dev/null; cat /proc/net/dev").count(":") == 1


@runs_programs
def test_a_real_sandbox_sees_no_setting_of_ours(machine):
    names = in_sandbox(machine, "env | cut -d= -f1").split()
    assert sorted(names) == [
        "HOME",
        "LANG",
        "LC_ALL",
        "PATH",
        "PWD",
        "PYTHONHASHSEED",
        "PYTHONWARNINGS",
        "TZ",
    ]


@runs_programs
def test_a_real_sandbox_writes_only_where_it_was_allowed_to(machine, tmp_path):
    mounts = []
    for name in ("read", "write"):
        (tmp_path / name).mkdir()
        mounts.append(Mount(source=tmp_path / name, target=f"/{name}", writable=name == "write"))
    script = "for place in /usr /etc /var /usr/local/bin /read /write; do touch $place/x 2>/dev/null && echo $place; done"
    assert in_sandbox(machine, f"{script}; true", mounts=mounts) == "/write\n"


def test_the_lines_of_a_program_are_shown_as_its_progress(capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setattr(console_module, "LINE_EVERY", -1.0)
    notes = []
    with Console().step("install") as step:
        read = progress(step)
        for line in ("0/2 unpacking", "1/2 unpacking", "a word/2 of a wheel", "2/2 compiling byte code"):
            read(line)
            notes.append(step.note)
    counted = [line.partition(",")[0] for line in capsys.readouterr().err.splitlines() if " of 2" in line]
    assert counted == ["  install: 1 of 2", "  install: 2 of 2"]
    assert notes == ["unpacking"] * 3 + ["compiling byte code"]


# The Python layer


@pytest.mark.programs
def test_byte_code_that_could_not_be_written_is_missed(tmp_path: Path):
    """A compiler of many files passes over a full disk; what is no Python has none."""
    (tmp_path / "template.py").write_text("{{ name }} = }")
    (tmp_path / "module.py").write_text("one = 1")
    compileall.compile_dir(tmp_path, quiet=2)
    check = (sys.executable, steps.FOLDER / "byte_code.py", "check", tmp_path)
    assert subprocess.run(check, check=False).returncode == 0
    next(tmp_path.rglob("module.*.pyc")).unlink()
    ended = subprocess.run(check, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "module.py: its byte code was not written" in ended.stderr


def test_wheels_are_installed_beside_the_packages_that_a_standalone_python_needs(store: Store):
    step = InterpreterStep(python="3.10", archive=INTERPRETER_ARCHIVE)
    environment = dataclasses.replace(PYTHON, python="3.10", interpreter=step.program)
    job = make_runner(store).job
    job = dataclasses.replace(
        job, plan=dataclasses.replace(PLAN, steps=(OS, step, environment, *PLAN.steps[2:]))
    )
    _, _, unpacking, installing, *_ = SandboxRunner(job=job).commands()
    assert "--ro-bind WORK/os/usr /usr" in shlex.join(unpacking.argv)
    assert unpacking.argv[-5:-3] == ("/bin/sh", "/steps/interpreter.sh")
    assert "--ro-bind WORK/root/usr /usr" in shlex.join(installing.argv)
    assert f"--ro-bind WORK/{step.name}/opt/python /opt/python" in shlex.join(installing.argv)
    assert installing.argv[-5:-3] == ("/opt/python/bin/python3.10", "/steps/wheels.py")


@runs_programs
def test_pythons_own_view_of_an_empty_environment(tmp_path):
    system = Path("/usr/bin/python3")
    if not system.exists():
        pytest.skip("the distribution has no Python")
    making = "import sys, wheels; wheels.make_environment(sys.argv[1]); print(wheels.MINOR)"
    make = [system, "-B", "-c", making, tmp_path / "opt/env"]
    env = {"PYTHONPATH": str(steps.FOLDER)}
    minor = subprocess.run(make, check=True, capture_output=True, text=True, env=env).stdout.strip()
    code = "import sys; print(sys.prefix); print([path for path in sys.path if path.endswith('-packages')])"
    said = subprocess.run(
        [tmp_path / "opt/env/bin/python", "-c", code], check=True, capture_output=True, text=True, env={}
    ).stdout
    assert said == f"{tmp_path}/opt/env\n['{tmp_path}/opt/env/lib/python{minor}/site-packages']\n"


def test_the_wheels_are_asked_for_by_version_and_hash():
    wheel = artifact("wheel", "numpy", "2.2.0", "numpy-2.2.0-py3-none-any.whl")
    program = PythonStep(python="3.11", artifacts=(wheel,)).made_by(PLAN)
    assert json.loads(program.spec)["requirements"] == [f"numpy==2.2.0 --hash=sha256:{wheel.sha256}"]
    assert program.inputs == (("numpy-2.2.0-py3-none-any.whl", wheel),)


def with_debs(store: Store, *debs: Artifact) -> BuildJob:
    plan = dataclasses.replace(PLAN, steps=(dataclasses.replace(OS, artifacts=debs), *PLAN.steps[1:]))
    return dataclasses.replace(make_runner(store).job, plan=plan)


@pytest.mark.programs
def test_a_bare_python_is_unpacked_out_of_the_locked_packages(store, tmp_path):
    names = ("gcc-12", "libc6", "libc6-dev", "python3.11-minimal", "python3.11-dev", "libpython3.9-minimal")
    locked = [artifact("deb", name, "1", f"{name}.deb") for name in names]
    job = with_debs(store, *locked)
    assert [deb.name for deb in minimal_python(job)] == ["libc6", "python3.11-minimal"]
    debs = []
    for name in ("libc6", "python3.11-minimal"):
        path = write_package(tmp_path / f"{name}.deb", [(f"./lib/{name}", name, 0o644)])
        debs.append(Artifact(**dataclasses.asdict(locked[0]) | {"name": name, "sha256": sha256_file(path)}))
        store.add_artifact(debs[-1].sha256, path)
    root = tmp_path / "root"
    job = dataclasses.replace(with_debs(store, *debs), runner=ProcessRunner(os.environ))
    unpack_minimal(job, root)
    assert sorted(one.name for one in (root / "usr/lib").iterdir()) == ["libc6", "python3.11-minimal"]
    assert all((root / name).is_dir() for name in ("etc", "var", "usr/local/bin", "usr/lib64"))


# The start layer

START = StartStep(
    python="3.11",
    files=(
        ("opt/env/lib/python3.11/site-packages/started/__init__.py", "KNOWN = {'b', 'a'}\n"),
        ("opt/env/lib/python3.11/site-packages/x.pth", "import started\n"),
        ("opt/envbuilder/lib/deep/tool.py", "VALUE = 1\n"),
        ("opt/envbuilder/lib/run", "#!/bin/sh\n"),
    ),
)


def test_the_sandbox_of_a_program(golden):
    command = program_command(START.made_by(PLAN), FULL, Path("/work"))
    golden("sandbox-start.txt", one_a_line(command, UV=uv.find_uv_bin(), STEPS=steps.FOLDER))


@runs_programs
def test_the_paths_of_a_start_layer_and_what_its_byte_code_says_of_itself(tmp_path):
    """With this machine as the root, for its Python is the only one that is there."""
    (tmp_path / "layer").mkdir()
    python = f"python3.{sys.version_info.minor}"
    program = dataclasses.replace(START.made_by(PLAN), interpreter=f"/usr/bin/{python}")
    tree = prepare_run(program, tmp_path, Store(tmp_path / "cache"))
    ProcessRunner(os.environ).run(
        program_command(program, SandboxRoot(os=LayerFolder(place=Path("/"))), tmp_path)
    )
    layer = write_layer(
        name="start", tree=tree, folder=tmp_path / "layer", epoch=EPOCH, threads=1, omit=PLAN.shared_folders(START)
    )  # fmt: skip
    tag = f"cpython-3{sys.version_info.minor}"
    site = "opt/env/lib/python3.11/site-packages"
    assert {entry.path: oct(entry.mode) for entry in read_manifest(layer) if entry.kind == "file"} == {
        f"{site}/started/__init__.py": "0o644",
        f"{site}/started/__pycache__/__init__.{tag}.pyc": "0o644",
        f"{site}/x.pth": "0o644",
        "opt/envbuilder/lib/deep/tool.py": "0o644",
        f"opt/envbuilder/lib/deep/__pycache__/tool.{tag}.pyc": "0o644",
        "opt/envbuilder/lib/run": "0o755",
    }
    compiled = (tree / f"opt/envbuilder/lib/deep/__pycache__/tool.{tag}.pyc").read_bytes()
    assert int.from_bytes(compiled[4:8], "little") == 1  # by hash, and unchecked (PEP 552)
    assert b"/opt/envbuilder/lib/deep/tool.py" in compiled
    assert os.fsencode(tmp_path) not in compiled


@pytest.mark.parametrize("name", [name for name, _ in image.files(".") if name.endswith(".py")])
def test_what_runs_in_the_image_is_written_for_its_oldest_python(name):
    ast.parse(image.path(name).read_text(encoding="utf-8"), feature_version=(3, 8))


# The runtime layer

HOSTILE = (
    ("PLAIN", "8"),
    ("EMPTY", ""),
    ("BLANKS", "  two  words  "),
    ("QUOTES", """it's "quoted" and `ticked`"""),
    ("DOLLARS", "$HOME ${HOME} $(echo no) $((1+1))"),
    ("BACKSLASHES", "a\\b\\n\\"),
    ("TWO_LINES", "one\ntwo\n"),
    ("SIGNS", "*?[a]~!#&;|<>()%"),
    ("DASH", "-n -e"),
    ("UNICODE", "räksmörgås ☃"),
    ("NEXT", "$PLAIN"),
)


def make_runtime(**change: object) -> RuntimeStep:
    step = RuntimeStep(
        env=(("PATH", "/opt/env/bin:/usr/bin:/bin"), ("OMP_NUM_THREADS", "8")),
        labels=(("b", "2"), ("a", "räksmörgås")),
        files=(("opt/envbuilder/recipe.yaml", "name: räksmörgås\n"),),
    )
    return dataclasses.replace(step, **change)


def test_the_files_of_a_runtime_layer(golden):
    text = "".join(f"== {path}\n{content}" for path, content in runtime_files(make_runtime()).items())
    golden("runtime.txt", text)


def test_no_file_of_a_runtime_layer_says_which_gpus_a_program_has():
    asks = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    step = make_runtime(env=(*asks.items(), ("NVIDIA_TF32_OVERRIDE", "0")))
    files = runtime_files(step)
    assert [path for path, text in files.items() if any(name in text for name in asks)] == []
    named = [path for path, text in files.items() if "NVIDIA_TF32_OVERRIDE" in text]
    assert named == [".singularity.d/env/10-docker2singularity.sh", LOGIN]


@runs_programs
@pytest.mark.parametrize("shell", ["dash", "bash", "zsh"])
@pytest.mark.parametrize("path", [".singularity.d/env/10-docker2singularity.sh", LOGIN])
def test_a_real_shell_reads_back_every_value_of_the_environment(tmp_path, path, shell):
    text = runtime_files(make_runtime(env=HOSTILE))[path]
    (tmp_path / "env.sh").write_text(text, encoding="utf-8")
    seen = sourced(shell, tmp_path / "env.sh", {})
    assert {name: seen.get(name) for name, _ in HOSTILE} == dict(HOSTILE)


def sourced(shell, file, variables):
    """Return the variables after a shell has read a file. `variables` are those before."""
    said = subprocess.run(
        [shutil.which(shell), "-euc", f". {file}; exec /usr/bin/env -0"],
        env=variables,
        check=True,
        capture_output=True,
    ).stdout
    return dict(line.split("=", 1) for line in said.decode().split("\0") if line)


OF_DEBIAN = "/usr/local/bin:/usr/bin:/bin"  # as its /etc/profile sets it


@runs_programs
@pytest.mark.parametrize(
    ("variables", "path", "threads"),
    [
        ({"PATH": OF_DEBIAN}, f"/opt/env/bin:/base/bin:{OF_DEBIAN}", "8"),  # `su -`, `ssh`
        ({"PATH": OF_DEBIAN, "OMP_NUM_THREADS": "2"}, f"/opt/env/bin:/base/bin:{OF_DEBIAN}", "2"),
        ({"PATH": f"/mine:/opt/env/bin:{OF_DEBIAN}"}, f"/mine:/opt/env/bin:{OF_DEBIAN}", "8"),
    ],
    ids=["all are lost", "PATH is lost", "a profile that keeps PATH"],
)
def test_a_login_shell_gets_back_what_it_has_lost(tmp_path, variables, path, threads):
    own = f"/opt/env/bin:/usr/local/bin:/base/bin:{SYSTEM_PATH}:/base/bin"
    text = runtime_files(make_runtime(env=(("PATH", own), ("OMP_NUM_THREADS", "8"))))[LOGIN]
    (tmp_path / "envbuilder.sh").write_text(text, encoding="utf-8")
    seen = sourced("sh", tmp_path / "envbuilder.sh", variables)
    assert (seen["PATH"], seen["OMP_NUM_THREADS"]) == (path, threads)


def write_runscript(folder):
    """The runscript, with the entry point where a test can have it."""
    (folder / "start").write_text(image.path("entry/start").read_text())
    (folder / "start").chmod(0o755)
    text = runtime_files(make_runtime())[".singularity.d/runscript"]
    (folder / "runscript").write_text(text.replace("/opt/envbuilder/start", f"{folder}/start"))


@runs_programs
def test_the_runscript_hands_its_words_on_as_they_are(tmp_path):
    write_runscript(tmp_path)
    said = subprocess.run(
        ["/bin/sh", tmp_path / "runscript", "printf", "<%s>", "two words", "", "$HOME"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert said == "<two words><><$HOME>"


@runs_programs
def test_the_runscript_without_words_is_a_shell(tmp_path):
    write_runscript(tmp_path)
    said = subprocess.run(
        ["/bin/sh", tmp_path / "runscript"], input="echo $BASH", check=True, capture_output=True, text=True
    ).stdout
    assert said == "/bin/bash\n"


@runs_programs
def test_the_paths_of_a_runtime_layer(tmp_path, golden):
    (tmp_path / "layer").mkdir()
    program = runtime_program(make_runtime(), {"opt/envbuilder/sbom.spdx.json": "{}"})
    tree = run_outside(program, tmp_path / "work", Store(tmp_path / "cache"), ProcessRunner(os.environ))
    layer = write_layer(
        name="runtime", tree=tree, folder=tmp_path / "layer", epoch=EPOCH, threads=1,
        omit=PLAN.shared_folders(make_runtime()),
    )  # fmt: skip
    golden("runtime-paths.txt", "".join(f"{entry.mode:o} {entry.path}\n" for entry in read_manifest(layer)))


@runs_programs
def test_the_texts_of_a_layer_do_not_depend_on_the_users_locale(tmp_path):
    """Python warns where a text would be written in the encoding of the user's locale."""
    script = (
        "import sys, warnings; from pathlib import Path; from tests.builder import test_sandbox as t\n"
        "warnings.simplefilter('error', EncodingWarning)\n"
        "place = Path(sys.argv[1])\n"
        "t.prepare_run(t.runtime_program(t.make_runtime(), {}), place, t.Store(place / 'cache'))\n"
    )
    subprocess.run(
        [sys.executable, "-B", "-X", "warn_default_encoding", "-c", script, tmp_path],
        cwd=Path(__file__).parents[2],
        check=True,
    )
    recipe = tmp_path / "step/inputs/opt/envbuilder/recipe.yaml"
    assert recipe.read_bytes() == "name: räksmörgås\n".encode()


# The runner


def make_runner(store: Store) -> SandboxRunner:
    limits = Limits(threads=2, memory=64 << 30, root=True)
    return SandboxRunner(
        job=BuildJob(
            plan=PLAN, store=store, runner=FakeRunner(), console=Console(quiet=True), limits=limits
        )
    )  # fmt: skip


PLAN = Plan(
    name="x",
    platform="linux/amd64",
    epoch=EPOCH,
    steps=(OS, PYTHON, ExtensionsStep(architectures=(), extensions=(EXTENSION,)), make_runtime()),
)


def test_an_empty_store_lacks_every_layer(store):
    assert make_runner(store).job.missing() == PLAN.steps


def test_a_layer_in_the_store_is_not_missing(store):
    folder = store.layer(make_runner(store).job.keys[PLAN.runtime])
    folder.mkdir()
    write_layer(name="runtime", tree=store.root / "work", folder=folder, epoch=EPOCH, threads=1)
    assert make_runner(store).job.missing() == PLAN.steps[:-1]


@pytest.mark.parametrize("has_folder", [True, False])
def test_the_folder_for_login_shells_is_in_one_layer_whether_a_base_has_it_or_not(store, has_folder):
    job = make_runner(store).job
    (store.root / "work/etc" / ("profile.d" if has_folder else "")).mkdir(parents=True)
    folder = store.layer(job.keys[OS])
    folder.mkdir()
    write_layer(name="os", tree=store.root / "work", folder=folder, epoch=EPOCH, threads=1)
    assert ("etc/profile.d" in job.shared_folders(PLAN.runtime)) == has_folder
    assert "etc" in job.shared_folders(PLAN.runtime)


def test_the_inputs_of_a_python_layer_are_its_wheels_and_a_bare_python(store):
    """Also where the os layer is there already, and its packages may no longer be."""
    folder = store.layer(make_runner(store).job.keys[OS])
    folder.mkdir()
    write_layer(name="os", tree=store.root / "work", folder=folder, epoch=EPOCH, threads=1)
    needed = make_runner(store).artifacts()
    assert OS not in make_runner(store).job.missing()
    assert [one.name for one in needed] == [one.name for one in PYTHON.artifacts] + ["libc6"]


def test_the_commands_of_a_build_say_why_in_their_order(store):
    assert [command.why for command in make_runner(store).commands()] == [
        "unpack the distribution's packages",
        "install the distribution's packages",
        "install 0 Python packages",
        "compile the extension `fused`",
        "join the extensions",
    ]


def test_the_commands_are_those_that_a_build_would_run_again(store):
    runner = make_runner(store)
    assert runner.commands() == runner.commands()


@pytest.mark.parametrize(
    ("threads", "gigabytes", "count"), [(8, 64, 8), (8, 12, 4), (8, 1, 1), (1, 64, 1)], ids=str
)
def test_as_many_compilers_run_at_once_as_cores_and_memory_allow(threads, gigabytes, count):
    assert compilers(Limits(threads=threads, memory=gigabytes << 30, root=True)) == count


def test_a_root_without_cuda_names_no_toolkit(store):
    system, python = LayerFolder(place=Path("/os")), LayerFolder(place=Path("/python"))
    folders = {OsStep.name: system, PythonStep.name: python}
    assert make_root(make_runner(store).job, folders) == SandboxRoot(os=system, environment=(python,))


def test_the_tools_of_a_layers_key_name_their_versions():
    words = " ".join(tools()).split()
    assert (words[0::2], [word for word in words[1::2] if not word[0].isdigit()]) == (["zstd", "uv"], [])


def test_the_layers_of_wheels_are_mounted_as_one_environment(tmp_path):
    trees = {"os": ["usr/local/bin"], "a": ["nvidia/a", "torch"], "b": ["nvidia/b"]}
    for tree, folders in trees.items():
        for folder in folders:
            place = tmp_path / tree / ("" if tree == "os" else "opt/env") / folder
            place.mkdir(parents=True)
            (place / "file").write_text(tree)
    for name in ("a", "b"):
        (tmp_path / name / "opt/env/nvidia/__init__.py").write_text(name)
    (tmp_path / "b/opt/env/lib64").symlink_to("lib")
    system, *environment = (LayerFolder(place=tmp_path / name) for name in trees)
    root = SandboxRoot(os=system, environment=tuple(environment))
    argv = sandboxed(root, ("true",), why="try").argv
    at = argv.index("/opt/env")
    a, b = f"{tmp_path}/a/opt/env", f"{tmp_path}/b/opt/env"
    assert argv[at - 1 : argv.index("--remount-ro") + 2] == (
        "--tmpfs", "/opt/env",
        "--dir", "/opt/env/nvidia",
        "--ro-bind", f"{b}/nvidia/__init__.py", "/opt/env/nvidia/__init__.py",
        "--ro-bind", f"{a}/nvidia/a", "/opt/env/nvidia/a",
        "--ro-bind", f"{b}/nvidia/b", "/opt/env/nvidia/b",
        "--ro-bind", f"{a}/torch", "/opt/env/torch",
        "--symlink", "lib", "/opt/env/lib64",
        "--remount-ro", "/opt/env",
    )  # fmt: skip
