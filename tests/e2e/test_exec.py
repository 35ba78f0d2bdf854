"""`exec` and `shell` in the real SIF and the real image: input, output, signals, exit codes, and a real terminal."""

import ensurepip
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import hostile
from tests.support.tiny import edit_tiny, make_tiny
from tests.support.tmux import terminal
from tests.support.workbench import ENVBUILDER, Built, attempt, build, open_folder, run

pytestmark = pytest.mark.builds

HANDLER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def project() -> Iterator[Path]:
    """A checkout outside of what Apptainer shares by itself, with a folder inside it."""
    with open_folder() as folder:
        (folder / ".git").mkdir()
        (folder / "data").write_text("of the project\n")
        (folder / "src").mkdir()
        yield folder / "src"


@pytest.fixture(params=["sif", "image"])
def line(request: pytest.FixtureRequest, tiny: Built) -> Callable[..., list[str]]:
    """A command line in one of the two forms."""

    def make(verb: str, *words: str) -> list[str]:
        return [ENVBUILDER, verb, "tiny", "--artifacts", str(tiny.output), "--in", request.param, *words]

    return make


def test_the_project_is_where_it_was_and_output_and_code_pass_through(line, project):
    ended = attempt(*line("exec", "--", "sh", "-c", "pwd; cat ../data; echo why >&2; exit 7"), cwd=project)
    assert (ended.returncode, ended.stdout) == (7, f"{project}\nof the project\n")
    assert ended.stderr.endswith("why\n")


def test_pip_installs_over_the_environment_and_moves_none_of_it(tiny: Built, project: Path):
    wheels = project / "wheels"
    wheels.mkdir()
    bundled = (Path(ensurepip.__file__).parent / "_bundled", Path("/usr/share/python-wheels"))
    (pip,) = (wheel for folder in bundled for wheel in folder.glob("pip-*.whl"))
    shutil.copy(pip, wheels)
    for name, version in (("tried", "1"), ("filelock", "1")):  # tiny has a newer filelock
        with zipfile.ZipFile(wheels / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            info = f"{name}-{version}.dist-info"
            wheel.writestr(f"{name}.py", "import filelock\n")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(
                f"{info}/entry_points.txt",
                "[console_scripts]\nsay-tried = tried:filelock.BaseFileLock.__class__\n",
            )
            wheel.writestr(f"{info}/RECORD", "")
    env = os.environ | {"ENVBUILDER_FOLDERS": str(wheels), "ENVBUILDER_INDEX": wheels.as_uri()}

    def inside(*words: str) -> subprocess.CompletedProcess[str]:
        return attempt(ENVBUILDER, "exec", "tiny", "--artifacts", tiny.output, *words, cwd=project, env=env)

    install = ("--writable", "--", "pip", "install", "--no-index", "--find-links", "wheels")
    assert inside(*install, "tried").returncode == 0
    seen = inside("--writable", "--", "python", "-c", "import tried; print(tried.filelock.__file__)")
    assert seen.stdout.startswith("/opt/env/"), seen.stderr
    assert "(constraint) filelock==" in inside(*install, "filelock==1").stdout
    assert "No module named 'tried'" in inside("--", "python", "-c", "import tried").stderr
    packed = ("add", tiny.recipe, "--output", tiny.output, "--installed", "--to-sif", "today.sif")
    done = attempt(ENVBUILDER, *packed, cwd=project, env=env)
    assert done.returncode == 0, done.stderr
    say = "import shutil, tried; print(tried.__file__, shutil.which('say-tried'))"
    alone = attempt(
        ENVBUILDER, "exec", "./today.sif", "--", "python", "-c", say, cwd=project.parent / "src", env=env
    )
    assert alone.stdout.split()[1] == "/opt/env/bin/say-tried", alone.stderr
    assert alone.stdout.startswith("/opt/env/lib/python3")
    refused = inside("--in", "image", "--writable", "--", "true")
    assert (refused.returncode, "envbuilder devcontainer tiny" in refused.stderr) == (2, True), refused.stderr


@pytest.mark.parametrize(("program", "code"), [("nothing-of-that-name", 127), ("./data", 126)])
def test_a_program_that_cannot_be_run_ends_as_in_a_shell(line, project, program, code):
    ended = attempt(*line("exec", "--", program), cwd=project.parent)
    assert (ended.returncode, program in ended.stderr) == (code, True), ended.stderr


def test_input_passes_through(line):
    ended = subprocess.run(
        line("exec", "--", "wc", "-c"), input=b"x" * 300_000, capture_output=True, timeout=60, check=True
    )
    assert ended.stdout.strip() == b"300000"


def test_the_user_packages_stay_out(line):
    shown = attempt(*line("exec", "--", "python", "-c", "import site; print(site.ENABLE_USER_SITE)"))
    assert shown.stdout == "False\n"


def test_a_signal_reaches_the_program_and_its_exit_code_comes_back(line):
    running = subprocess.Popen(
        line("exec", "--", "python", "-c", HANDLER),
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == 9
    running.stdout.close()


def test_what_is_printed_is_what_is_run(line, project):
    shown = attempt(*line("exec", "--print", "--", "cat", "../data"), cwd=project).stdout
    assert attempt("sh", "-c", shown, cwd=project).stdout == "of the project\n"


def test_a_shell_has_a_terminal(line, tmp_path):
    """The size of its window, Ctrl-C for what runs in it, and the shell's exit code."""
    with terminal(tmp_path, tmp_path, width=93, height=31, TERM="xterm") as screen:
        screen.start("env", "-u", "PS1", *line("exec"))
        screen.wait(lambda: re.fullmatch(r"(?!>$).*[>#$]", "".join(screen.screen()[-1:])), 60)
        screen.type("tty && stty size", "Enter")
        screen.wait(lambda: {"31 93", "30 93"} & set(screen.screen()), 30)
        assert re.search("/dev/(pts/|console)", "".join(screen.screen()))
        screen.type("sleep 100", "Enter")
        time.sleep(1)
        screen.type("C-c", "exit 4", "Enter")
        assert screen.code(30) == 4


@pytest.fixture(scope="module")
def ways(tiny: Built) -> Iterator[dict[str, list[str]]]:
    """The command lines that reach a Python of the environment, in a folder with `seen.py`."""
    with open_folder() as folder:
        run(ENVBUILDER, "module", tiny.sif, "--write", folder)
        lmod = f". /usr/share/lmod/lmod/init/bash; . ~/.bashrc; module use {folder}/modulefiles; module load tiny; "
        inside = [ENVBUILDER, "exec", "tiny", "--artifacts", str(tiny.output), "--in"]
        shell = shlex.join([ENVBUILDER, "exec", "tiny", "--artifacts", str(tiny.output), "--in"])
        yield {
            "exec": [*inside, "sif", "--", "python", "seen.py"],
            "exec bash": [*inside, "sif", "--", "bash", "-ilc", "python seen.py"],
            "shell": ["script", "-qec", f"{shell} sif", "/dev/null"],
            "module python": ["bash", "-c", f"{lmod} python seen.py"],
            "module bash": ["bash", "-c", f"{lmod} tiny-exec bash -ilc 'python seen.py'"],
            "image exec": [*inside, "image", "--", "python", "seen.py"],
            "image exec bash": [*inside, "image", "--", "bash", "-ilc", "python seen.py"],
            "image shell": ["script", "-qec", f"{shell} image", "/dev/null"],
        }  # fmt: skip


SIF_WAYS = ("exec", "exec bash", "shell", "module python", "module bash")
IMAGE_WAYS = ("image exec", "image exec bash", "image shell")


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with open_folder() as folder:
        yield hostile.make_home(folder / "home")


@pytest.mark.parametrize(
    ("way", "name"),
    [
        *((way, name) for way in SIF_WAYS for name in hostile.VARIABLES),
        *((way, "all") for way in IMAGE_WAYS),  # Docker passes no variable on, so once is enough
    ],
)
def test_the_environments_python_wins(ways, way, name, project, home):
    """Against the start files of conda and pyenv, and each variable that would bring another Python."""
    (project / "seen.py").write_text(hostile.SEEN)
    names = hostile.VARIABLES if name == "all" else [name]
    variables = {key: value for setting in names for key, value in hostile.variables(home, setting).items()}
    ended = subprocess.run(
        ways[way], input="python seen.py; exit\n", cwd=project, timeout=60, check=False, text=True, capture_output=True,
        env=os.environ | {"HOME": str(home), "APPTAINER_HOME": str(home)} | variables,
    )  # fmt: skip
    hostile.need_own(ended.stdout)


@pytest.mark.parametrize(
    ("form", "shell"),
    [("sif", "bash -lc"), ("sif", "sh -lc"), ("image", "bash -lc"), ("image", "sh -lc"), ("image", "su - vscode -c")],
)  # fmt: skip
def test_a_login_shell_without_envbuilder_has_the_environment(tiny, form, shell):
    """Debian's /etc/profile sets another PATH, and `su -` drops every variable."""
    sif, image = ("apptainer", "exec", "--no-home", tiny.sif), ("docker", "run", "--rm", tiny.image)
    said = run(*(sif if form == "sif" else image), *shell.split(), "command -v python; echo $WHICH")
    assert said == "/opt/env/bin/python\ntiny\n"


def test_folders_of_a_recipe_are_in_front_of_the_path_in_sif_and_image(spacious):
    recipe, _ = make_tiny(spacious, "ahead")
    edit_tiny(recipe, "env: {WHICH: ahead}", 'env: {PATH: "/opt/tool/bin:$PATH"}')
    built = build(str(recipe), spacious / "out")
    try:
        for start in (("apptainer", "exec", "--no-home", built.sif), ("docker", "run", "--rm", built.image)):
            script = "command -v python; echo $PATH; bash -lc 'echo $PATH'"
            lines = run(*start, "bash", "-c", script).splitlines()
            assert lines[0] == "/opt/env/bin/python"
            ahead = "/opt/tool/bin:/opt/env/bin:/usr/local/"
            assert [line.startswith(ahead) for line in lines] == [False, True, True]
    finally:
        run("docker", "image", "rm", "--force", built.image)


def test_what_a_person_sets_on_purpose_reaches_the_program(line, project):
    """The project's own folders of PYTHONPATH, what `--env` names, and the driver's libraries beside one's own."""
    (project / "own.py").write_text("import os; here = os.environ['LD_LIBRARY_PATH'].split(':')[0]\n")
    ended = attempt(
        *line("exec", "--env", "LD_LIBRARY_PATH=/mine", "--env", "CONDA_PREFIX", "--", "python", "-c",
              "import os, own; print(own.here, os.environ['CONDA_PREFIX'], os.environ['LD_LIBRARY_PATH'])"),
        cwd=project, env={"PYTHONPATH": f"/elsewhere:{project}", "CONDA_PREFIX": "/kept"},
    )  # fmt: skip
    driver = ":/.singularity.d/libs" if "sif" in line("exec") else ""
    assert ended.stdout == f"/mine /kept /mine{driver}\n", ended.stderr
    assert "kept out of the environment: PYTHONPATH; " in ended.stderr


@pytest.mark.parametrize("words", ["python", "bash -lc 'exec python'", "sh -c 'exec python'"])
@pytest.mark.parametrize("command", ["exec", "run"])
def test_programs_find_the_libraries_that_apptainer_binds(tiny, project, command, words):
    """As it binds those of NVIDIA's driver with `--nv`. Without them torch sees no GPU: seen on a machine with an H100."""
    run("cc", "-shared", "-x", "c", "-o", project / "libdriver.so.1", "/dev/null")
    ended = subprocess.run(
        ["apptainer", command, tiny.sif, *shlex.split(words)], input="import ctypes; ctypes.CDLL('libdriver.so.1')",
        env=os.environ | {"APPTAINER_CONTAINLIBS": str(project / "libdriver.so.1")}, check=False, text=True, capture_output=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


def test_a_user_without_an_account_is_told_that_apptainer_wants_one(tiny: Built, project: Path):
    """In a namespace where this user has an id that no account has. Apptainer then refuses each of its commands."""
    stranger = ("unshare", "--user", "--map-user=4242", ENVBUILDER)
    refusal = "user: unknown userid 4242"
    doctor = attempt(*stranger, "doctor", "--for", "run")
    assert re.search(rf"missing  Apptainer +is there, and does not start: .*{refusal}", doctor.stdout)
    assert doctor.stdout.splitlines()[-1].startswith("first: give user id 4242 an account on this machine")
    ended = attempt(*stranger, "exec", str(tiny.sif), "--", "true", cwd=project)
    assert (ended.returncode, refusal in ended.stderr) == (8, True), ended.stderr
    assert "\nhint: give user id 4242 an account" in ended.stderr


RANKS = """
import sys
import torch.distributed as dist
from envbuilder_smoke import StepMismatchError, assert_same_steps
dist.init_process_group("gloo")
assert_same_steps(7)
try:
    assert_same_steps(7 + dist.get_rank())
except StepMismatchError as error:
    # One write for the line and its end: two would be mixed with the other rank's where Python does not buffer.
    sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()}: {error}\\n")
    sys.stdout.flush()
dist.destroy_process_group()
"""


def test_ranks_that_made_different_numbers_of_steps_all_say_so(cpu, project):
    (project / "train.py").write_text(RANKS)
    words = ("torchrun", "--standalone", "--nproc_per_node", "2", "train.py")
    ended = attempt(ENVBUILDER, "exec", "cpu", "--artifacts", cpu.output, "--", *words, cwd=project)
    words = [line for line in ended.stdout.splitlines() if line.startswith("rank")]
    assert sorted(line[:11] for line in words) == ["rank 0 of 2", "rank 1 of 2"]
    assert all("ranks made different numbers of steps" in line for line in words)


def test_a_smoke_run_of_too_few_ranks_fails(cpu, project):
    words = ("torchrun", "--standalone", "--nproc_per_node", "2", "-m", "envbuilder_smoke", "--ranks", "3")
    ended = attempt(ENVBUILDER, "exec", "cpu", "--artifacts", cpu.output, "--", *words, cwd=project)
    assert ended.returncode != 0
    assert "WRONG: 2 ranks on 1 nodes, wanted 3" in ended.stdout
    assert "FAILED: rank 1: world size" in ended.stdout
