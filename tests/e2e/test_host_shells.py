"""The shells that clusters have against an environment that is started without envbuilder."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.hostile import OWN, PREFIX, make_home
from tests.support.workbench import ENVBUILDER, Built, as_nobody, attempt, open_folder, run

pytestmark = pytest.mark.builds
PROGRAM = ("python", "probe.py")
LINE = "envbuilder: kept out of the environment: "
Machine = tuple[Path, Path]  # the other environment, and the project

# What a program sees of the environment. `markupsafe` is one of its packages.
PROBE = """
import json, os, sys, markupsafe
lines = open("/proc/self/maps").read().splitlines()
mapped = {line.split(None, 5)[5] for line in lines if line.count("/")}
print(json.dumps({
    "python": sys.executable, "prefix": sys.prefix, "evil": "evil" in sys.modules, "module": markupsafe.__file__,
    "mapped": sorted(mapped), "variables": dict(os.environ),
}))
"""


@dataclass(frozen=True, kw_only=True)
class Shell:
    """What a shell exports, and what must become of it."""

    said: str = ""  # the names on the line
    stay: dict[str, str] = field(default_factory=dict)  # what reaches the program
    variables: dict[str, str]  # what must not reach it, unless in `stay`


LIBRARY = "HOME/lib/libforeign.so"
MANY = {f"MANY_{n}": "x" for n in range(500)}
SHELLS = {
    "nothing": Shell(variables={}),
    "a module's gcc": Shell(variables={"CC": "/opt/gcc/bin/gcc", "CXX": "/opt/gcc/bin/g++"}, said="CC, CXX"),
    "a name of the machine's gcc": Shell(variables={"CC": "gcc-99", "CXX": "g++-99"}, said="CC, CXX"),
    "MPI's wrappers": Shell(variables={"CC": "mpicc", "CXX": "mpicxx"}, said="CC, CXX"),
    "Cray's wrappers": Shell(variables={"CXX": "CC", "LD": "cc -dynamic"}, said="CXX, LD"),
    "ccache": Shell(variables={"CC": "ccache gcc", "CXX": "  ccache g++"}, said="CC, CXX"),
    "an empty compiler": Shell(variables={"CC": "   "}, said="CC"),
    "oneAPI": Shell(
        variables={"CC": "icx", "CXX": "icpx", "CPATH": "/opt/intel/include", "MKLROOT": "/opt/intel/mkl"},
        said="CC, CXX", stay={"CPATH": "/opt/intel/include", "MKLROOT": "/opt/intel/mkl"},
    ),
    "conda's compilers": Shell(
        variables={
            "CC": "HOME/conda/bin/gcc", "CXX": "HOME/conda/bin/g++", "AR": "HOME/conda/bin/gcc", "CONDA_PREFIX": "HOME/conda",
            "CFLAGS": "-O2 -isystem HOME/include", "LDFLAGS": "-Wl,-O2 -Wl,-rpath,HOME/lib -LHOME/lib",
        }, said="AR, CC, CFLAGS, CXX, LDFLAGS",
    ),
    "flags that do no harm": Shell(
        variables={"CFLAGS": "-O3 -march=native -Iinclude", "NVCC_APPEND_FLAGS": "-lineinfo"},
        stay={"CFLAGS": "-O3 -march=native -Iinclude", "NVCC_APPEND_FLAGS": "-lineinfo"},
    ),
    "flags of the project": Shell(variables={"CFLAGS": "-O3 -IPROJECT/include"}, stay={"CFLAGS": "-O3 -IPROJECT/include"}),
    "a program of the image": Shell(variables={"CC": "perl -w", "LD": "/usr/bin/perl"}, stay={"CC": "perl -w", "LD": "/usr/bin/perl"}),
    "a way out of the image": Shell(variables={"CC": "/usr/../HOME/conda/bin/gcc"}, said="CC"),
    "the host compiler of CUDA": Shell(variables={"CUDAHOSTCXX": "/usr/bin/g++-4.8", "NVCC_CCBIN": "g++-99"}, said="CUDAHOSTCXX, NVCC_CCBIN"),
    "flags of conda's nvcc": Shell(
        variables={"NVCC_PREPEND_FLAGS": " -ccbin=HOME/conda/bin/g++", "NVCC_APPEND_FLAGS": "-O3 --compiler-bindir gcc-99"},
        said="NVCC_APPEND_FLAGS, NVCC_PREPEND_FLAGS",
    ),
    "a module of CUDA": Shell(
        variables=dict.fromkeys(("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"), "/opt/cuda-11") | {"CUDNN_PATH": "/opt/cudnn"},
        said="CUDA_HOME, CUDA_PATH, CUDA_ROOT, CUDNN_PATH",
    ),
    "a CUDA in the home": Shell(variables={"CUDA_PATH": "HOME/conda", "CUDACXX": "HOME/conda/bin/gcc"}, said="CUDACXX, CUDA_PATH"),
    "a ptxas for Triton": Shell(variables={"TRITON_PTXAS_PATH": "/opt/cuda/bin/ptxas", "PYTORCH_NVCC": "nvcc"}, said="PYTORCH_NVCC, TRITON_PTXAS_PATH"),
    "other GPUs": Shell(variables={"TORCH_CUDA_ARCH_LIST": "3.5;5.0+PTX"}, said="TORCH_CUDA_ARCH_LIST"),
    "Spack in the home": Shell(
        variables={"CPATH": "HOME/include:/opt/x/include", "LIBRARY_PATH": "HOME/lib", "C_INCLUDE_PATH": "PROJECT/include"},
        said="CPATH, LIBRARY_PATH", stay={"CPATH": "/opt/x/include", "C_INCLUDE_PATH": "PROJECT/include"},
    ),
    "parts of another gcc": Shell(variables={"GCC_EXEC_PREFIX": "/opt/gcc/lib/", "COMPILER_PATH": "HOME/conda/bin"}, said="COMPILER_PATH, GCC_EXEC_PREFIX"),
    "XALT": Shell(variables={"LD_PRELOAD": "/opt/xalt/lib64/libxalt_init.so"}, said="LD_PRELOAD"),
    "a preloaded library of the home": Shell(variables={"LD_PRELOAD": LIBRARY}, said="LD_PRELOAD"),
    "two preloaded libraries": Shell(variables={"LD_PRELOAD": f"libjemalloc.so.2:{LIBRARY}"}, said="LD_PRELOAD"),
    "an auditor": Shell(variables={"LD_AUDIT": LIBRARY}, said="LD_AUDIT"),
    "modules' libraries": Shell(variables={"LD_LIBRARY_PATH": "HOME/lib:/opt/cuda/lib64"}),
    "another Python's packages": Shell(variables={"PYTHONPATH": "HOME/.local/lib/python3.11/site-packages"}, said="PYTHONPATH"),
    "a folder of packages": Shell(variables={"PYTHONPATH": "HOME/evil"}, said="PYTHONPATH"),
    "the project and others": Shell(
        variables={"PYTHONPATH": "PROJECT/src:HOME/evil:/opt/python/lib:src"}, said="PYTHONPATH",
        stay={"PYTHONPATH": "PROJECT/src:/opt/python/lib:src"},
    ),
    "the project by a link": Shell(variables={"PYTHONPATH": "HOME/link/src"}, stay={"PYTHONPATH": "HOME/link/src"}),
    "the Python of the distribution": Shell(variables={"PYTHONHOME": "/usr"}, said="PYTHONHOME"),
    "a Python that is not there": Shell(variables={"PYTHONHOME": "/opt/anaconda3", "PYTHONPLATLIBDIR": "lib64"}, said="PYTHONHOME, PYTHONPLATLIBDIR"),
    "a start file of Python": Shell(variables={"PYTHONSTARTUP": "HOME/evil/usercustomize.py"}),
    "packages of the user": Shell(variables={"PYTHONUSERBASE": "HOME/.local"}),
    "start files of shells": Shell(variables={"BASH_ENV": "HOME/.bashrc", "ENV": "HOME/.bashrc"}),
    "a virtual environment": Shell(variables={"VIRTUAL_ENV": "HOME/conda", "PATH": "HOME/conda/bin:/usr/bin:/bin:/usr/local/bin"}),
    "conda": Shell(
        variables={
            "CONDA_PREFIX": "HOME/conda", "CONDA_DEFAULT_ENV": "base", "CONDA_SHLVL": "1", "_CE_CONDA": "x",
            "PATH": "HOME/conda/bin:/usr/bin:/bin:/usr/local/bin",
        },
    ),
    "pyenv": Shell(variables={"PATH": "HOME/.pyenv/shims:/usr/bin:/bin:/usr/local/bin", "PYENV_VERSION": "3.8"}, stay={"PYENV_VERSION": "3.8"}),
    "Lmod": Shell(
        variables={"BASH_ENV": "/opt/lmod/init/bash", "LOADEDMODULES": "gcc/12", "BASH_FUNC_module%%": "() { echo no; }"},
        stay={"LOADEDMODULES": "gcc/12"},
    ),
    "a prompt": Shell(variables={"PROMPT_COMMAND": "__conda_prompt"}),
    "settings of OpenMP": Shell(
        variables={"OMP_NUM_THREADS": "3", "OMP_PROC_BIND": "close", "KMP_AFFINITY": "compact", "GOMP_CPU_AFFINITY": "0"},
        stay={"OMP_NUM_THREADS": "3", "OMP_PROC_BIND": "close", "KMP_AFFINITY": "compact", "GOMP_CPU_AFFINITY": "0"},
    ),
    "salloc": Shell(
        variables={"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_NNODES": "2", "TMPDIR": "/scratch/job.7"}, said="TMPDIR",
        stay={"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_NNODES": "2"},
    ),
    "the first rank": Shell(
        variables={"RANK": "0", "SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "0", "CC": "mpicc"}, said="CC",
        stay={"RANK": "0", "SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "0"},
    ),
    "another rank": Shell(variables={"PMI_RANK": "3", "CC": "mpicc"}, stay={"PMI_RANK": "3"}),
    "certificates of conda": Shell(variables={"SSL_CERT_FILE": "/opt/conda/ssl/cacert.pem", "XDG_RUNTIME_DIR": "/run/user/77"}),
    "silence": Shell(variables={"CC": "mpicc", "ENVBUILDER_SHELL": "quiet"}, stay={"ENVBUILDER_SHELL": "quiet"}),
    "values that are no words": Shell(
        variables={
            "CC": "$(touch HOME/ran); `touch HOME/ran`\n'\"\\", "CONDA_Ü": "x", "CONDA_A": "\n\nCC=gcc\n", "QUOTES": "it's \"a\"\n$HOME *",
            "CFLAGS": "-DA='\"x\"' * ?", "LDFLAGS": "$(touch HOME/ran) -LHOME/lib",
        }, said="CC, LDFLAGS", stay={"QUOTES": "it's \"a\"\n$HOME *", "CFLAGS": "-DA='\"x\"' * ?"},
    ),
    "many variables": Shell(variables={"CC": "mpicc"} | MANY, said="CC", stay=MANY),
}  # fmt: skip


def _all() -> Shell:
    """What most of these export, at once."""
    names = ("conda's compilers", "a module of CUDA", "other GPUs", "parts of another gcc", "two preloaded libraries", "modules' libraries",
             "the project and others", "a Python that is not there", "start files of shells", "conda", "settings of OpenMP", "salloc")  # fmt: skip
    left_out = {name for name in names for name in SHELLS[name].said.split(", ") if name}
    return Shell(
        variables={key: value for name in names for key, value in SHELLS[name].variables.items()},
        said=", ".join(sorted(left_out)),
        stay={key: value for name in names for key, value in SHELLS[name].stay.items()},
    )


SHELLS["everything"] = _all()


def make_machine(folder: Path) -> tuple[Path, Path]:
    """Make the other environment, and a checkout with PROBE. Returns both."""
    home, project = make_home(folder / "home"), folder / "project"
    for path in (project / "src", project / "include", project / ".git", home / "include", home / "lib"):
        path.mkdir(parents=True)
    for name in ("gcc", "g++"):
        shutil.copy(home / "conda/bin/python", home / "conda/bin" / name)
    shutil.copy(next(Path("/usr/lib").rglob("libz.so.1")), home / "lib/libforeign.so")
    (home / "link").symlink_to(project)
    (home / "evil/markupsafe.py").write_text("")
    (project / "probe.py").write_text(PROBE)
    return home, project


def filled(texts: dict[str, str], home: Path, project: Path) -> dict[str, str]:
    return {
        name: text.replace("HOME", str(home)).replace("PROJECT", str(project)) for name, text in texts.items()
    }


def _is_name(name: str) -> bool:
    """Whether shells know it as a name. Apptainer passes others past its scripts, and bash and dash may drop them."""
    return name.isascii() and name.isidentifier()


def what_is_wrong(out: str, shell: Shell, home: Path, project: Path) -> list[str]:
    """Return what of the machine's shell reached a program, and what did not that should have."""
    if not out.startswith("{"):
        return [f"no answer: {out}"]
    seen = json.loads(out)
    variables = seen.pop("variables")
    stay, given = filled(shell.stay, home, project), filled(shell.variables, home, project)
    wrong = [
        f"{name}={variables[name]}"
        for name in given
        if _is_name(name) and name not in stay and variables.get(name) == given[name]
    ]
    wrong += [f"{name} is lost" for name, value in stay.items() if variables.get(name) != value]
    wrong += [
        f"loaded {path}" for path in seen.pop("mapped") if not path.startswith(("/usr/", "/opt/env", "/lib"))
    ]
    module = seen.pop("module")
    if not module.startswith(PREFIX):
        wrong.append(f"imported {module}")
    if seen != {"python": OWN, "prefix": PREFIX, "evil": False}:
        wrong.append(f"another Python: {seen}")
    return [*wrong, *(["a value was executed"] if (home / "ran").exists() else [])]


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
    lines = [line.split("environment: ")[1] for line in ended.stderr.splitlines() if "kept out" in line]
    assert [text.split(maxsplit=1)[0].rstrip(";") for text in lines] == ["CC", "CUDA_PATH"]


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
    ("program", "printed"),
    [(COMPILE, "compiled\n"), pytest.param(LOAD, "loaded 2\n", marks=pytest.mark.release)],
    ids=["compile", "load"],
)
def test_bare_apptainer_compiles_in_a_shell_with_a_modules_gcc(program, printed, cpu, tmp_path):
    """On a real H200 both ended with `CC=/opt/gcc/bin/gcc`."""
    shell = {"CC": "/opt/gcc/bin/gcc", "CXX": "/opt/gcc/bin/g++", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    ended = attempt("apptainer", "exec", cpu.sif, "python", "-c", program, env=shell, cwd=tmp_path)
    assert ended.stdout == printed, ended.stderr
    assert ended.stderr.count(f"{LINE}CC, CXX (") == 1
