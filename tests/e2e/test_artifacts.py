"""Image and SIF as their users have them: run by hand, as root and as an ordinary user, with what the recipe promised."""

import grp
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuilder.artifacts.oci.reader import read_image
from envbuilder.artifacts.sif import read_sif
from envbuilder.builder.recipe_tests import Import, import_in_sif
from envbuilder.core.cache import link_or_copy
from envbuilder.core.errors import BuildError
from envbuilder.recipe.load import load
from envbuilder.recipe.model import Recipe
from tests.support.cost import LOADED, cpu_seconds, reference
from tests.support.plans import make_job, said_to_runtimes
from tests.support.workbench import (
    ENVBUILDER,
    NOBODY,
    NUMBERS,
    ROOT,
    Built,
    Ended,
    as_nobody,
    attempt,
    findings,
    locked_artifacts,
    open_folder,
    resolve_context,
    run,
)

pytestmark = pytest.mark.builds

SMALL = Path("/")  # the working folder of the by-hand runs: every user can enter it
UNMODIFIED = """
import time
from torch.utils.cpp_extension import load
began = time.perf_counter()
fused = load(name="fused", sources=__SOURCES__, extra_cuda_cflags=["--use_fast_math"])
print(fused.__file__, fused.forward.__name__, time.perf_counter() - began < 0.05)
"""
# Wheels that bring second copies of CUPTI; libraries of torch and NVIDIA with run paths of their builders' machines.
KNOWN = {"EB715", "EB720"}
STATIC = {"libcudadevrt.a", "libcudart_static.a"}  # nvcc links both unless told otherwise, and they are small


@pytest.fixture(scope="module")
def reachable() -> Iterator[Callable[[Built], Path]]:
    """Gives a SIF a name that every user can reach."""
    with open_folder() as folder:

        def link(built: Built) -> Path:
            path = folder / built.sif.name
            if not path.exists():
                link_or_copy(built.sif, path)
                path.chmod(0o755)
            return path

        yield link


@pytest.fixture(scope="module")
def sif(built: Built, reachable: Callable[[Built], Path]) -> Path:
    return reachable(built)


IN_RELEASE = pytest.mark.release  # an image of `a100` in the Docker engine takes 9.4 GB of disk


@pytest.fixture(scope="module", params=["cpu", pytest.param("loaded_a100", marks=IN_RELEASE)])
def loaded(request: pytest.FixtureRequest) -> Built:
    """Each as an image of the Docker engine."""
    return request.getfixturevalue(request.param)


@dataclass(frozen=True)
class Inside:
    """Runs commands by hand in one form of a recipe, and returns what they print."""

    recipe: Recipe
    argv: tuple[object, ...]

    def attempt(self, *words: str) -> Ended:
        return attempt(*self.argv, *words, cwd=SMALL)

    def __call__(self, *words: str) -> str:
        return run(*self.argv, *words, cwd=SMALL)


@pytest.fixture(
    scope="module",
    params=[
        "apptainer cpu",
        "docker cpu",
        "apptainer a100",
        pytest.param("docker loaded_a100", marks=IN_RELEASE),
    ],
)
def inside(request: pytest.FixtureRequest, reachable: Callable[[Built], Path]) -> Inside:
    program, name = request.param.split()
    built: Built = request.getfixturevalue(name)
    if program == "apptainer":
        argv: tuple[object, ...] = ("apptainer", "exec", reachable(built))
    else:
        argv = ("docker", "run", "--rm", "--network", "none", built.image)
    return Inside(load(ROOT / f"recipes/{built.name}.yaml"), argv)


@pytest.fixture(scope="module")
def files(built: Built) -> dict[str, tuple[str, int]]:
    """Path → kind and size of everything in the SIF. `verify` says that the image has the same."""
    offset = read_sif(built.sif).system.offset
    listing = run("unsquashfs", "-lln", "-no-progress", "-offset", offset, "-dest", "", built.sif)
    rows = (line.split(maxsplit=5) for line in listing.splitlines() if line[:1] in "-dlcbps")
    return {row[5].partition(" -> ")[0]: (row[0][0], int(row[2])) for row in rows if len(row) == 6}


def test_envbuilder_runs_the_extension_in_the_sif(built: Built):
    command = ("exec", built.name, "--artifacts", built.output, "--in", "sif", "--", "python", "-c", NUMBERS)
    assert run(ENVBUILDER, *command) == "numbers agree\n"


def test_the_sif_alone_is_as_its_own_lists_say(cpu: Built, reachable: Callable[[Built], Path]):
    """Also where a package has copies of others with their lists, which name files that it left out (setuptools)."""
    answer = json.loads(run(ENVBUILDER, "verify", reachable(cpu), "--json"))["data"]
    assert answer["files"] > answer["listed"] > answer["files"] / 2


def test_an_extension_that_cannot_be_imported_in_the_sif_is_named(cpu: Built, tmp_path: Path):
    """The build imported the recipe's own extension by the same program."""
    imports = (
        Import(of="fused", place="cpu.yaml:16:5", name="fused", module="fused"),
        Import(of="dw", place="cpu.yaml:20:5", name="dw.core", module="dw.core"),
    )
    job, fetcher = make_job(tmp_path), resolve_context().fetcher
    with pytest.raises(BuildError, match="1 of 2 imports") as caught:
        import_in_sif(imports, cpu.sif, job, fetcher=fetcher, environment=dict(os.environ))
    (finding,) = caught.value.findings
    assert (finding.code, finding.where) == ("EB651", "cpu.yaml:20:5")
    assert "the package `dw` is not there" in finding.message


def test_envbuilder_runs_the_extension_in_the_image(loaded: Built):
    command = ("exec", loaded.name, "--artifacts", loaded.output, "--in", "image", "--", "python", "-c", NUMBERS)  # fmt: skip
    assert run(ENVBUILDER, *command) == "numbers agree\n"


def test_apptainer_hands_variables_in(cpu: Built):
    """Those of `--env` and of APPTAINERENV_X, also in place of the image's own."""
    script = "import os; print(*(os.environ.get(name) for name in ('FIRST', 'SECOND', 'PYTORCH_VERSION')))"
    command = ("apptainer", "exec", "--env", "FIRST=1,PYTORCH_VERSION=mine", cpu.sif, "python", "-c", script)
    assert run(*command, env={"APPTAINERENV_SECOND": "2"}) == "1 2 mine\n"


def test_an_ordinary_user_imports_it_in_the_sif(sif: Path):
    assert run(*as_nobody("apptainer", "exec", sif, "python", "-c", NUMBERS), cwd=SMALL) == "numbers agree\n"


def test_an_ordinary_user_runs_the_sif_itself(sif: Path):
    assert run(*as_nobody(sif, "python", "-c", "print(6 * 7)"), cwd=SMALL) == "42\n"


def test_an_ordinary_user_imports_it_in_the_image(loaded: Built):
    group = str(grp.getgrnam("docker").gr_gid)
    command = ("docker", "run", "--rm", "--user", f"{NOBODY}:{NOBODY}", loaded.image, "python", "-c", NUMBERS)
    assert run(*as_nobody(*command, groups=group), cwd=SMALL) == "numbers agree\n"


def test_the_part_that_was_loaded_first_is_gone(loaded: Built):
    """And the whole image, which has its layers from it, runs: that is what the other tests see."""
    assert run("docker", "images", "--quiet", loaded.image.replace(":latest", ":part-*")) == ""


def test_importing_it_writes_nothing(loaded: Built):
    command = ("docker", "run", "--rm", "--read-only", "--user", f"{NOBODY}:{NOBODY}", loaded.image)
    assert run(*command, "python", "-W", "error::ImportWarning", "-c", "import torch, fused") == ""


def test_torch_is_the_one_of_the_recipe(inside: Inside):
    code = "import torch; print(torch.__version__, torch.version.cuda)"
    version, cuda = inside("python", "-c", code).split()
    assert version.partition("+")[0] == inside.recipe.pytorch
    assert cuda == (inside.recipe.cuda or "None")


def test_python_is_the_one_of_the_recipe(inside: Inside):
    said = inside("python", "-c", "import sys; print(sys.version, sys.prefix)")
    assert said.startswith(f"{inside.recipe.python}.")
    assert said.rstrip().endswith("/opt/env")


@pytest.mark.parametrize("program", ["gcc", "g++", "cc", "c++"])
def test_compilers_are_those_of_the_recipe(inside: Inside, program: str):
    assert inside(program, "-dumpversion").split(".")[0].strip() == inside.recipe.gcc


def test_crypt_h_is_libxcrypt_of_the_recipe(inside: Inside):
    macros = inside("sh", "-c", "echo '#include <crypt.h>' | gcc -E -dM -")
    assert f'XCRYPT_VERSION_STR "{inside.recipe.libxcrypt}' in macros


def test_nvcc_is_the_one_of_the_recipe(inside: Inside):
    if inside.recipe.cuda:
        assert f"release {inside.recipe.cuda}," in inside("nvcc", "--version")
        assert inside("sh", "-c", "echo $CUDA_HOME") == "/usr/local/cuda\n"
    else:
        assert inside.attempt("sh", "-c", "command -v nvcc").returncode != 0


def test_the_extension_holds_code_for_the_recipe_and_no_other(a100: Built):
    code = "import torch, fused; print(fused.__file__)"
    file = run("apptainer", "exec", a100.sif, "python", "-c", code).strip()
    listing = run("apptainer", "exec", a100.sif, "cuobjdump", "--list-elf", "--list-ptx", file)
    assert sorted(set(re.findall(r"\.(sm_\w+)\.cubin", listing))) == ["sm_80"]
    assert ".ptx" not in listing


def test_a_cuda_source_is_the_same_object_at_another_time_and_in_another_process(a100: Built, spacious: Path):
    """With the library that is loaded into compilers; nvcc alone names what is local after both."""
    source = (
        "namespace { __global__ void kernel(float *x) { *x = 1; } }\n"
        "template <class T> void launch(T *x) { kernel<<<1, 1>>>(x); }\n"
        "template void launch<float>(float *);\n"
    )
    script = (
        'cd /space; printf "%s" "$1" >one.cu; gcc -shared -fPIC -o steady.so /steps/steady.c\n'
        "for way in env 'env LD_PRELOAD=/space/steady.so'; do for time in 1 1000000000; do\n"
        "  touch -d @$time one.cu; $way nvcc --objdir-as-tempdir -lineinfo -arch=sm_80 -c -o one.o one.cu; sha256sum <one.o\n"
        "done; done"
    )
    binds = f"{spacious}:/space,{ROOT}/envbuilder/steps:/steps:ro"
    digests = run(
        "apptainer", "exec", "--bind", binds, a100.sif, "sh", "-euc", script, "sh", source
    ).splitlines()
    alone, steady = digests[:2], digests[2:]
    assert len(set(alone)) == 2
    assert len(steady) == 2
    assert len(set(steady)) == 1


def test_the_extension_can_be_compiled_again_inside(cpu: Built):
    """What `load()` needs is there: compiler, headers, ninja. Only the C++ files, for their time."""
    script = (
        "from torch.utils.cpp_extension import load\n"
        "print(load('again', ['/src/fused/fused_bias_act.cpp', '/src/fused/fused_bias_act_cpu.cpp']).forward.__name__)"
    )
    command = (
        "docker", "run", "--rm", "--network", "none", "-v", f"{ROOT}/recipes:/src:ro", "-e", "HOME=/tmp",
        cpu.image,
    )  # fmt: skip
    assert run(*command, "python", "-c", script).endswith("forward\n")


def test_unmodified_code_finds_what_a_build_has_compiled(built: Built, sif: Path, spacious: Path):
    """By the image's own index, with PyTorch 2.13 for the CPU and 2.6 for an A100, which is not there."""
    shutil.copytree(ROOT / "recipes/fused", spacious / "fused")  # other users cannot enter every checkout
    (extension,) = load(ROOT / f"recipes/{built.name}.yaml").extensions
    sources = [f"/src/{Path(source).name}" for source in extension.sources]
    outer = ("apptainer", "exec", "--bind", f"{spacious}/fused:/src:ro", sif)
    inner = (
        "/usr/bin/env", "-u", "CUDA_HOME", "PATH=/nowhere", "/opt/env/bin/python", "-c",
        UNMODIFIED.replace("__SOURCES__", repr(sources)),
    )  # fmt: skip
    tries = [run(*as_nobody(*outer, *inner), cwd=SMALL).split() for _ in range(3)]
    assert {name for _, name, _ in tries} == {"forward"}
    assert all(file.startswith("/opt/envbuilder/extensions/fused-") for file, _, _ in tries)
    assert "True" in {quick for _, _, quick in tries}  # other load on the machine only ever adds


def test_no_caches_and_no_build_leftovers(files: dict[str, tuple[str, int]]):
    unwanted = re.compile(
        r"/var/cache/apt/.|/var/lib/apt/lists/.|/var/cache/debconf/.|/root/\.cache|/home/(?!vscode$).|/tmp/.|/var/tmp/."
        r"|/opt/(env|envbuilder)/.*\.(o|d|ninja|ninja_log|ninja_deps)$|.*/(pip|uv)/cache/|/opt/env/.*\.whl$|.*\.deb$"
    )
    assert [path for path in files if unwanted.match(path)] == []


def test_no_static_cuda_libraries(files: dict[str, tuple[str, int]]):
    archives = [path for path in files if path.endswith(".a") and "/cuda" in path]
    assert [path for path in archives if Path(path).name not in STATIC] == []


def test_no_second_copy_of_a_library_that_the_wheels_carry(files: dict[str, tuple[str, int]]):
    shared = {
        path: size
        for path, (kind, size) in files.items()
        if kind == "-" and re.search(r"\.so(\.\d+)*$", path)
    }
    carried = {Path(path).name for path in shared if "/site-packages/nvidia/" in path}
    toolkit = {path: size for path, size in shared.items() if path.startswith("/usr/local/cuda")}
    assert [path for path in toolkit if Path(path).name in carried] == []


def test_what_the_image_is_can_be_read_inside(inside: Inside):
    lock = inside("cat", "/opt/envbuilder/lock.json")
    assert lock == (ROOT / f"recipes/{inside.recipe.name}.lock").read_text()
    assert inside("cat", "/opt/envbuilder/plan.txt").startswith("envbuilder plan\n")


def test_image_and_sif_say_to_each_runtime_what_the_table_says(a100: Built):
    asked = set().union(*said_to_runtimes().values())
    assert asked <= set(read_image(a100.layout).config.env)
    # Debian's folder for the driver's libraries, and what its linker needs to find them there.
    files = (
        "test -s /etc/debian_version && test -x /sbin/ldconfig && grep -F /etc/ld.so.conf.d/ /etc/ld.so.conf"
    )
    shell = {"NVIDIA_VISIBLE_DEVICES": "GPU-1"}
    printed = run("apptainer", "exec", a100.sif, "sh", "-euc", f"{files} >&2; env", env=shell)
    seen = {line for line in printed.splitlines() if line.startswith("NVIDIA_")}
    assert seen == {"NVIDIA_VISIBLE_DEVICES=GPU-1"}


def test_sizes_of_a100(a100: Built):
    assert a100.sif.stat().st_size <= 3.4e9
    assert int(str(a100.data["tree_bytes"])) <= 6.2e9
    assert sum(artifact.size for artifact in locked_artifacts("a100")) <= 3.6e9


def test_a_build_with_nothing_to_do_takes_little_cpu_time(loaded: Built):
    """0.6 s where the reference takes 0.1 s."""
    command = (ENVBUILDER, "build", loaded.name, "--output", loaded.output)
    assert "nothing to do" in run(*command)
    both = [(cpu_seconds(*command), reference()) for _ in range(3)]
    took, unit = (min(each) for each in zip(*both, strict=True))
    assert took < LOADED * 6 * unit


def test_verify_refuses_an_edited_lock_and_names_a_stale_one(tiny: Built, spacious: Path):
    lock = spacious / "tiny.lock"
    shutil.copy(tiny.recipe, spacious)
    whole = tiny.recipe.with_suffix(".lock").read_text()
    command = (ENVBUILDER, "verify", spacious / "tiny.yaml", "--artifacts", tiny.output, "--json")
    lock.write_text(whole)
    assert json.loads(run(*command))["findings"] == []
    lock.write_text(whole.replace('"size": 1', '"size": 2', 1))
    ended = attempt(*command)
    assert (ended.returncode, [finding["code"] for finding in findings(ended)]) == (4, ["EB414"])
    lock.write_text(whole)
    (spacious / "tiny.yaml").write_text(tiny.recipe.read_text().replace("WHICH: tiny", "WHICH: other"))
    (stale,) = json.loads(run(*command))["findings"]
    assert stale["severity"] == "warning"
    assert "no longer fits its recipe" in stale["message"]


def test_the_recipes_have_no_errors_and_only_known_warnings(built: Built):
    answer = json.loads(run(ENVBUILDER, "verify", built.name, "--artifacts", built.output, "--json"))
    assert {finding["severity"] for finding in answer["findings"]} <= {"warning"}
    assert {finding["code"] for finding in answer["findings"]} <= KNOWN
    assert answer["data"]["plan"]


def test_an_older_host_is_told_what_it_could_not_load(cpu: Built):
    answer = json.loads(run(ENVBUILDER, "verify", "cpu", "--artifacts", cpu.output, "--oldest-host", "debian/bullseye", "--json"))  # fmt: skip
    (finding,) = [one for one in answer["findings"] if one["code"] == "EB714"]
    assert "fused.so" in finding["where"]


def test_torch_without_a_toolkit_refuses_a_cuda_extension_as_check_says(cpu: Built, tmp_path: Path):
    text = "from torch.utils.cpp_extension import CUDAExtension\nfrom setuptools import setup\n"
    (tmp_path / "setup.py").write_text(f"{text}setup(ext_modules=[CUDAExtension('a', ['a.cpp'])])\n")
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("extends: cpu\nextensions: [{name: mine, path: .}]\n")
    shutil.copy(ROOT / "recipes/cpu.yaml", tmp_path)
    shutil.copytree(ROOT / "recipes/fused", tmp_path / "fused")
    (finding,) = findings(attempt(ENVBUILDER, "check", recipe, "--json"))
    assert (finding["code"], "CUDAExtension" in finding["message"]) == ("EB312", True)
    inside = ("apptainer", "exec", "--bind", f"{tmp_path}:/mine", cpu.sif)
    ended = attempt(*inside, "python", "/mine/setup.py", "--version")
    assert ended.returncode != 0
    assert "CUDA_HOME environment variable is not set" in ended.stderr
