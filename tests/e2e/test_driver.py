"""Starts on a node with GPUs, with a stand-in for the driver: what finds it, and what says that it was not passed on."""

import json
from collections.abc import Iterator
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
        return "".join(line for line in ended.stderr.splitlines(keepends=True) if "envbuilder" in line)

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
