"""Starts on a node with GPUs, with stand-ins for the driver: what finds it, what says that it was not passed on, what NCCL is told."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import driver
from tests.support.workbench import ENVBUILDER, Built, as_nobody, attempt, open_folder, run

pytestmark = pytest.mark.builds
LOADS = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0), ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2())"


@pytest.fixture(scope="module")
def node() -> Iterator[driver.Driver]:
    with open_folder() as folder:
        yield driver.Driver(folder / "driver")


def test_exec_passes_the_driver_by_itself(node: driver.Driver, tiny: Built):
    """The SIF's LD_LIBRARY_PATH names the folder of `--nv`."""
    inside = f'nvidia-smi -L && python -c "{LOADS}"'
    command = (ENVBUILDER, "exec", "tiny", "--artifacts", tiny.output, "--in", "sif", "--", "sh", "-c", inside)  # fmt: skip
    shown = run(*node.command(*command)).splitlines()
    assert shown == [f"GPU 0: {driver.GPU} (UUID: GPU-11111111-1111-1111-1111-111111111111)", "0 0"]


def test_a_user_reaches_the_driver_by_nv(node: driver.Driver, tiny: Built):
    command = ("apptainer", "exec", "--nv", tiny.sif, "python", "-c", LOADS)
    assert run(*node.command(*as_nobody(*command)), cwd=Path("/")) == "0 0\n"


def test_doctor_sees_the_gpu_and_where_nv_looks_for_its_libraries(node: driver.Driver):
    answer = json.loads(run(*node.command(ENVBUILDER, "doctor", "--for", "run", "--json")))
    shown = {item["name"]: item for item in answer["data"]["looks"]}
    assert shown["driver"]["found"] == f"{driver.VERSION}, 1 GPU"
    assert shown["driver libraries"]["found"] == "in the cache of ldconfig"


@pytest.fixture(scope="module")
def cuda_torch() -> Iterator[Path]:
    """What makes `tiny` look like a CUDA environment: a module `torch`, and the file of a driver floor."""
    with open_folder() as folder:
        (folder / "torch").mkdir()
        (folder / "torch/__init__.py").touch()
        (folder / "needs.json").write_text('{"driver": "525.60.13"}')
        (folder / "module/nvidia").mkdir(parents=True)
        yield folder


LOST = "envbuilder: this node has GPUs, but this container was started without `{}`: torch sees none\n"


def test_a_sif_that_was_started_without_nv_says_so(node: driver.Driver, tiny: Built, cuda_torch: Path):
    binds = f"{cuda_torch}:/code,{cuda_torch}/needs.json:/opt/envbuilder/needs.json"

    def warnings(*options: str, on_node: bool = True, as_user: bool = False) -> str:
        inside = ("env", "PYTHONPATH=/code", "python", "-c", "import torch")
        command: tuple[object, ...] = ("apptainer", "exec", "--bind", binds, *options, tiny.sif, *inside)
        command = as_nobody(*command) if as_user else command
        ended = attempt(*(node.command(*command) if on_node else command), cwd=Path("/"))
        assert ended.returncode == 0, ended.stderr
        ours = (line for line in ended.stderr.splitlines(keepends=True) if "envbuilder" in line)
        # Another test may run a container, whose bridge NCCL must not use.
        return "".join(line for line in ours if "ENVBUILDER_NCCL=explain" not in line)

    line = LOST.format("--nv")
    assert [warnings(), warnings(as_user=True), warnings("--containall", as_user=True)] == [line] * 3
    assert [warnings("--nv"), warnings("--env", "CUDA_VISIBLE_DEVICES=")] == [""] * 2
    has_gpu = Path("/dev/nvidiactl").exists()
    assert warnings(on_node=has_gpu) == (line if has_gpu else "")


def test_an_image_that_was_started_without_gpus_says_so(tiny: Built, cuda_torch: Path):
    files = (
        f"{cuda_torch}:/code",
        f"{cuda_torch}/needs.json:/opt/envbuilder/needs.json",
        f"{cuda_torch}/module:/sys/module:ro",
    )
    volumes = [word for file in files for word in ("--volume", file)]
    start = (
        "docker", "run", "--rm", *volumes, "--env", "PYTHONPATH=/code", tiny.image, "python",
        "-c", "import torch",
    )  # fmt: skip
    assert attempt(*start).stderr == LOST.format("--gpus all")


def test_the_torch_of_a_cuda_environment_says_so_too(node: driver.Driver, a100: Built):
    script = "import torch; print(torch.version.cuda, torch.cuda.is_available())"
    ended = attempt(*node.command("apptainer", "exec", a100.sif, "python", "-c", script))
    assert (ended.stdout, ended.stderr.count(LOST.format("--nv"))) == ("12.4 False\n", 1)


SMI = """#!/bin/sh
case "$*" in
*query-gpu*) printf '0, Tesla T4, 00000000:3B:00.0, 535.104.05\\n1, Tesla T4, 00000000:AF:00.0, 535.104.05\\n' ;;
*"topo -m"*) printf '\\tGPU0\\tGPU1\\tCPU Affinity\\nGPU0\\t X \\tSYS\\t0-7\\nGPU1\\tSYS\\t X \\t8-15\\n' ;;
*) exit 1 ;;
esac
"""
# A torch with CUDA stands before the image's own, which has none.
SHOW = "import json, os, torch; print(json.dumps({k: v for k, v in os.environ.items() if 'NCCL' in k or 'GLOO' in k}))"
Node = Callable[..., tuple[dict[str, str], str]]


@pytest.fixture(scope="module")
def two_gpus(cpu: Built):
    """Run a program of the image on that node; returns its variables and what was said."""
    with open_folder() as folder:
        (folder / "nvidiactl").touch()
        (folder / "nvidia-smi").write_text(SMI)
        (folder / "nvidia-smi").chmod(0o755)
        site = folder / "site-packages"
        (site / "torch").mkdir(parents=True)
        (site / "torch/__init__.py").touch()
        for name in ("torch-2.6.0+cu124", "nvidia_nccl_cu12-2.21.5"):
            (site / f"{name}.dist-info").mkdir()

        def inside(*argv: str, user: str = "0", **environment: str) -> tuple[dict[str, str], str]:
            settings = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
            ended = attempt(
                "docker", "run", "--rm", "--network", "none", "--user", user, "--env", "PYTHONPATH=/node/site-packages", *settings,
                "--volume", f"{folder}:/node:ro", "--volume", f"{folder}/nvidiactl:/dev/nvidiactl:ro",
                "--volume", f"{folder}/nvidia-smi:/usr/local/bin/nvidia-smi:ro", cpu.image, *argv,
            )  # fmt: skip
            assert ended.returncode == 0, ended.stderr
            return _variables(ended.stdout), ended.stderr

        yield inside


def _variables(text: str) -> dict[str, str]:
    if text.startswith("{"):
        variables = json.loads(text)
    else:
        variables = dict(line.partition("=")[::2] for line in text.splitlines())
    return {name: value for name, value in variables.items() if name.startswith(("NCCL", "GLOO"))}


@pytest.mark.parametrize("user", ["0", "65534"])
def test_a_python_that_imports_torch_gets_what_its_node_needs(two_gpus: Node, user: str):
    variables, said = two_gpus("python", "-c", SHOW, user=user)
    assert variables == {"NCCL_P2P_DISABLE": "1"}
    assert said.startswith("envbuilder: NCCL_P2P_DISABLE=1: every pair of GPUs crosses the CPU interconnect")


def test_the_users_own_value_stays(two_gpus: Node):
    assert two_gpus("python", "-c", SHOW, NCCL_P2P_DISABLE="0") == ({"NCCL_P2P_DISABLE": "0"}, "")
    assert two_gpus("python", "-c", SHOW, ENVBUILDER_NCCL="off") == ({}, "")


def test_it_explains_itself(two_gpus: Node):
    said = two_gpus("python", "-c", SHOW, ENVBUILDER_NCCL="explain")[1]
    assert "2 Tesla T4" in said
    assert "because every pair of GPUs crosses the CPU interconnect" in said


def test_a_program_that_is_no_python_gets_the_same_from_the_entry_point(two_gpus: Node):
    assert "no CUDA" in two_gpus("env", ENVBUILDER_NCCL="explain")[1]  # the image's own torch is asked here
    assert two_gpus("env")[0] == {}


def test_on_a_machine_without_gpus_nothing_is_set_and_nothing_is_said(cpu: Built):
    variables = attempt("apptainer", "run", cpu.sif, "env")
    assert (_variables(variables.stdout), variables.returncode) == ({}, 0)
    assert run("apptainer", "exec", cpu.sif, "python", "-c", SHOW).strip() == "{}"


HARNESS = """
import os, sys
sys.path.insert(0, "/opt/envbuilder/lib")
from envbuilder.node.nccl.measure import Bench, all_reduce
print(all_reduce(Bench(sys.executable, sys.argv[1], "gloo", float(sys.argv[2])), 2, os.environ))
"""
RANK = "/opt/envbuilder/lib/envbuilder_nccl/rank.py"
HANGS = f"import os, runpy, time\nif os.environ['RANK'] == '1': time.sleep(600)\nrunpy.run_path({RANK!r}, run_name='__main__')\n"


def test_the_ranks_of_a_measurement_sum_with_the_torch_inside(cpu: Built):
    said = run("apptainer", "exec", cpu.sif, "python", "-c", HARNESS, RANK, 120)
    assert "ok=True, answer='ok " in said


def test_a_rank_of_a_measurement_that_hangs_is_killed(cpu: Built, spacious: Path):
    (spacious / "rank.py").write_text(HANGS)
    inside = ("apptainer", "exec", "--bind", spacious, cpu.sif, "python", "-c")
    printed = run(*inside, HARNESS, spacious / "rank.py", 20)
    assert "ok=False, answer='hangs: process 0, 1 of 2 did not end within 20 s'" in printed
    assert "rank.py reduce gloo" not in run("ps", "-eo", "args")


def test_a_node_without_gpus_has_nothing_to_measure(cpu: Built):
    ended = attempt(ENVBUILDER, "detect", "--measure", "--recipe", "cpu", "--artifacts", cpu.output)
    assert ended.returncode == 2
    assert "0 GPUs are visible to torch here" in ended.stderr
