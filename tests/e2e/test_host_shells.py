"""The shells that clusters have against an environment that is started without envbuilder."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.shells import SHELLS, Shell, filled, make_machine, what_is_wrong
from tests.support.workbench import ENVBUILDER, Built, as_nobody, attempt, open_folder, run

pytestmark = pytest.mark.builds
PROGRAM = ("python", "probe.py")
LINE = "envbuilder: kept out of the environment: "
Machine = tuple[Path, Path]  # the other environment, and the project


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with open_folder() as folder:
        yield make_machine(folder)


@pytest.fixture(scope="module")
def instance(tiny: Built) -> Iterator[str]:
    name = f"shells{os.getpid()}"
    run("apptainer", "instance", "start", tiny.sif, name)
    yield f"instance://{name}"
    run("apptainer", "instance", "stop", name)


def need_own(argv: tuple[object, ...], shell: Shell, machine: Machine) -> None:
    """Run the probe in this shell: it uses the environment alone, and one line names what was left out."""
    home, project = machine
    base = {name: value for name, value in os.environ.items() if name not in ("TMPDIR", "SSL_CERT_FILE")}
    ended = subprocess.run(
        [str(word) for word in argv], env=base | {"APPTAINER_HOME": str(home)} | filled(shell.variables, home, project),
        cwd=project, input="python probe.py", capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    answers = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    wrong = what_is_wrong("".join(answers) or ended.stdout + ended.stderr, shell, home, project)
    lines = [line for line in ended.stderr.splitlines() if line.startswith(LINE)]
    names = [sorted(line.removeprefix(LINE).partition(" (")[0].split(", ")) for line in lines]
    assert (wrong, names) == ([], [shell.said.split(", ")] if shell.said else []), ended.stderr


@pytest.mark.parametrize("name", SHELLS)
def test_bare_apptainer_uses_the_environment_alone(name, tiny, machine):
    need_own(("apptainer", "exec", tiny.sif, *PROGRAM), SHELLS[name], machine)


WAYS = {
    "run": "apptainer run SIF python probe.py",
    "shell": "apptainer shell SIF",
    "instance": "apptainer exec INSTANCE python probe.py",
    "bash": "apptainer exec SIF bash -c :;python<probe.py",
    "writable": "apptainer exec --writable-tmpfs SIF python probe.py",
    "no home": "apptainer exec --no-home --bind HOME SIF python probe.py",
}


def argv_of(way: str, tiny: Built, instance: str, machine: Machine) -> tuple[str, ...]:
    places = {"SIF": str(tiny.sif), "INSTANCE": instance, "HOME": str(machine[0])}
    return tuple(places.get(word, word) for word in WAYS[way].split())


@pytest.mark.parametrize("way", WAYS)
def test_every_way_into_a_sif_does_the_same(way, tiny, instance, machine):
    need_own(argv_of(way, tiny, instance, machine), SHELLS["everything"], machine)


@pytest.mark.release
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SHELLS)
def test_every_shell_in_every_way(name, way, tiny, instance, machine):
    need_own(argv_of(way, tiny, instance, machine), SHELLS[name], machine)


@pytest.mark.parametrize("option", ["--cleanenv", "--containall"])
def test_a_clean_environment_has_nothing_to_leave_out(option, tiny, machine):
    argv = ("apptainer", "exec", option, "--bind", machine[1], "--pwd", machine[1], tiny.sif, *PROGRAM)
    need_own(argv, Shell(variables=SHELLS["everything"].variables), machine)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_user_who_is_not_root_has_the_same(tiny, machine):
    argv = as_nobody(f"APPTAINER_HOME={machine[0]}", "apptainer", "exec", tiny.sif, *PROGRAM)
    need_own(argv, SHELLS["everything"], machine)


def docker_argv(tiny: Built, machine: Machine, *options: str) -> tuple[object, ...]:
    volumes = [f"--volume={folder}:{folder}" for folder in machine]
    return ("docker", "run", "--rm", "--network=none", f"--workdir={machine[1]}", *volumes, *options, tiny.image, *PROGRAM)  # fmt: skip


def test_docker_passes_nothing_of_the_shell(tiny, machine):
    need_own(docker_argv(tiny, machine), Shell(variables=SHELLS["everything"].variables), machine)


def test_an_image_drops_what_is_not_there_of_variables_that_it_is_given(tiny, machine):
    """As `launch` gives it those of the shell. What is there was mounted and named on purpose."""
    home = machine[0]
    given = {
        "CC": "/opt/gcc/bin/gcc",
        "CUDA_PATH": "/opt/cuda-11",
        "TMPDIR": "/gone",
        "CXX": f"{home}/conda/bin/g++",
    }
    shell = Shell(said="CC, CUDA_PATH, TMPDIR", stay={"CXX": given["CXX"]}, variables=given)
    need_own(docker_argv(tiny, machine, *(f"--env={name}" for name in given)), shell, machine)


def test_what_is_passed_on_purpose_arrives(tiny, machine):
    project = machine[1]
    words = ("--env", "CC=mpicc", tiny.sif, "sh", "-c", "echo $CC $PYTHONHOME $PYTHONNOUSERSITE")
    environment = {"CC": "other", "APPTAINERENV_PYTHONHOME": "/usr", "APPTAINERENV_PYTHONNOUSERSITE": ""}
    assert run("apptainer", "exec", *words, env=environment, cwd=project) == "mpicc /usr\n"
    words = (tiny.sif, "sh", "-c", "echo $CC $PYTHONPATH")
    off = {"CC": "mpicc", "PYTHONPATH": "/usr/lib", "ENVBUILDER_SHELL": "off"}
    assert run("apptainer", "exec", *words, env=off, cwd=project) == "mpicc /usr/lib\n"


def test_exec_names_what_it_leaves_out(tiny, machine):
    words = ("--artifacts", tiny.output, "--in", "sif", "--", "sh", "-c", "echo $CC $CUDA_PATH $CFLAGS")
    variables = {"CC": "mpicc", "CUDA_PATH": "/opt/cuda-11", "CFLAGS": "-O3"}
    ended = attempt(ENVBUILDER, "exec", "tiny", *words, env=variables, cwd=machine[1])
    assert ended.stdout == "-O3\n"
    said = [line.split("environment: ")[1] for line in ended.stderr.splitlines() if "kept out" in line]
    assert [text.split(maxsplit=1)[0].rstrip(";") for text in said] == ["CC", "CUDA_PATH"]


COMPILE = """
import torch
x = torch.randn(64)
assert torch.allclose(torch.compile(lambda x: x.sin() + 2 * x)(x), x.sin() + 2 * x)
print("compiled")
"""
LOAD = """
import tempfile
from torch.utils.cpp_extension import load_inline
module = load_inline("two", "int two() { return 2; }", functions=["two"], build_directory=tempfile.mkdtemp())
print("loaded", module.two())
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("program", "said"),
    [(COMPILE, "compiled\n"), pytest.param(LOAD, "loaded 2\n", marks=pytest.mark.release)],
    ids=["compile", "load"],
)
def test_bare_apptainer_compiles_in_a_shell_with_a_modules_gcc(program, said, cpu, tmp_path):
    """On a real H200 both ended with `CC=/opt/gcc/bin/gcc`."""
    shell = {"CC": "/opt/gcc/bin/gcc", "CXX": "/opt/gcc/bin/g++", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    ended = attempt("apptainer", "exec", cpu.sif, "python", "-c", program, env=shell, cwd=tmp_path)
    assert ended.stdout == said, ended.stderr
    assert ended.stderr.count(f"{LINE}CC, CXX (") == 1
