"""Shells that clusters and laptops really have: what modules, conda, Spack, MPI, job scripts and users export.

HOME is a folder that is mounted in the container and holds another environment; PROJECT is the checkout in which the program
starts. What is below /opt, /apps or /scratch is not mounted.
"""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.hostile import OWN, PREFIX, make_home

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
    said = {name for one in names for name in SHELLS[one].said.split(", ") if name}
    return Shell(
        variables={key: value for one in names for key, value in SHELLS[one].variables.items()},
        said=", ".join(sorted(said)),
        stay={key: value for one in names for key, value in SHELLS[one].stay.items()},
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
