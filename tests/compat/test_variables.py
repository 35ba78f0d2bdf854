"""Variables in a recipe's `env`: which are refused, which are warned of, and which are its own affair."""

import dataclasses

import pytest

from envbuilder.compat.check import examine
from envbuilder.core.findings import Finding, Severity
from tests.support.locks import RECIPE, TABLES

GOOD = {
    "PATH": ("/opt/tool/bin:$PATH", "$PATH:/usr/games", "/opt/a/bin:${PATH}:/opt/b/bin"),
    "CUDA_HOME": ("/usr/local/cuda", "/usr/local/cuda/"),
    "LD_LIBRARY_PATH": ("",),
    "PYTHONPATH": ("",),
    "CUDACXX": ("/usr/local/cuda/bin/nvcc",),
    "CC": ("gcc", "/usr/bin/gcc"),
    "NVIDIA_DRIVER_CAPABILITIES": ("all", "compute,utility,video", "$NVIDIA_DRIVER_CAPABILITIES,video"),
    "NVIDIA_VISIBLE_DEVICES": ("void",),
    "LD_PRELOAD": ("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2",),
    "LDFLAGS": ("-Wl,-rpath,$ORIGIN/lib", "$LDFLAGS -s"),
    "OMPI_MCA_btl": ("tcp,self",),
    "OMPI_ALLOW_RUN_AS_ROOT": ("1",),
    "PMIX_MCA_gds": ("hash",),
    "PATTERN": ("^a$", "price: 5$ or ~ 6", "a~b"),
    "OMP_NUM_THREADS": ("8", ""),
}
REFUSED = {
    "PATH": ("/opt/tool/bin", "", "bin:$PATH", ":$PATH", "~/bin:$PATH", "/usr/bin:$PATH", "/usr//bin:$PATH", "/opt/../usr/bin:$PATH", "//usr/bin/:$PATH", "$HOME/bin:$PATH", "/opt/env/bin:/usr/bin"),
    "LD_LIBRARY_PATH": ("lib", "/opt/lib:", "$HOME/lib"),
    "PYTHONPATH": (".", "/usr/lib/python3/dist-packages", "/opt/conda/lib/python3.9/site-packages/x"),
    "CUDA_HOME": ("/usr/local/cuda-11.8",),
    "CUDA_PATH": ("/opt/cuda",),
    "NVIDIA_DRIVER_CAPABILITIES": ("utility", ""),
} | dict.fromkeys(
    (
        "HOME", "USER", "SHELL", "PWD", "UID", "IFS", "BASH_ENV", "PYTHONHOME", "LD_AUDIT", "VIRTUAL_ENV", "CONDA_PREFIX",
        "APPTAINER_BIND", "APPTAINERENV_X", "SINGULARITY_BIND", "CUDA_VISIBLE_DEVICES", "RANK", "MASTER_ADDR", "SLURM_JOB_ID",
        "PMIX_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_UNIVERSE_SIZE",
    ),
    ("/x",),
)  # fmt: skip
WARNED = {
    "LD_LIBRARY_PATH": ("/opt/lib", "/opt/lib:$LD_LIBRARY_PATH"),
    "PYTHONPATH": ("/opt/project",),
    "TMPDIR": ("/scratch", "$SCRATCH/tmp", "~/tmp"),
    "HF_HOME": ("~/hf", "~", "$HOME/hf", "${HOME}/hf"),
    "OMP_NUM_THREADS": ("$(nproc)", "`nproc`", "$SLURM_CPUS_PER_TASK"),
    "PS1": (r"\u$PROMPT ",),
    "FORMAT": ("$time", "cost $5", r"\$HOME"),
    "TORCH_CUDA_ARCH_LIST": ("8.0",),
    "CC": ("gcc-13", "/opt/conda/bin/gcc", "clang"),
}


def cases(table: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    return [(name, value) for name, values in table.items() for value in values]


def judged(name: str, value: str) -> list[Finding]:
    recipe = dataclasses.replace(RECIPE, env=((name, value),))
    return [one for one in examine(recipe, TABLES).findings if one.code == "EB124"]


@pytest.mark.parametrize(("name", "value"), cases(GOOD))
def test_what_harms_nothing_is_the_recipes_own_affair(name: str, value: str) -> None:
    assert judged(name, value) == []


@pytest.mark.parametrize(("name", "value"), cases(REFUSED))
def test_what_breaks_the_environment_is_refused_with_what_to_write(name: str, value: str) -> None:
    (found,) = judged(name, value)
    assert (found.severity, bool(found.hint)) == (Severity.ERROR, True)
    assert found.message.startswith(f"$.env.{name}: ")


@pytest.mark.parametrize(("name", "value"), cases(WARNED))
def test_what_may_be_meant_is_warned_of(name: str, value: str) -> None:
    (found,) = judged(name, value)
    assert (found.severity, bool(found.hint)) == (Severity.WARNING, True)
