"""What NCCL is told inside the image, on a node that has two GPUs across the sockets: a driver's device file and its `nvidia-smi`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.workbench import ENVBUILDER, Built, attempt, open_folder, run

pytestmark = pytest.mark.builds

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
def node(cpu: Built):
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
def test_a_python_that_imports_torch_gets_what_its_node_needs(node: Node, user: str):
    variables, said = node("python", "-c", SHOW, user=user)
    assert variables == {"NCCL_P2P_DISABLE": "1"}
    assert said.startswith("envbuilder: NCCL_P2P_DISABLE=1: every pair of GPUs crosses the CPU interconnect")


def test_the_users_own_value_stays(node: Node):
    assert node("python", "-c", SHOW, NCCL_P2P_DISABLE="0") == ({"NCCL_P2P_DISABLE": "0"}, "")
    assert node("python", "-c", SHOW, ENVBUILDER_NCCL="off") == ({}, "")


def test_it_explains_itself(node: Node):
    said = node("python", "-c", SHOW, ENVBUILDER_NCCL="explain")[1]
    assert "2 Tesla T4" in said
    assert "because every pair of GPUs crosses the CPU interconnect" in said


def test_a_program_that_is_no_python_gets_the_same_from_the_entry_point(node: Node):
    assert "no CUDA" in node("env", ENVBUILDER_NCCL="explain")[1]  # the image's own torch is asked here
    assert node("env")[0] == {}


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
