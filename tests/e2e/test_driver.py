"""Starts on a node with GPUs, with a stand-in for the driver: what finds it, and what says that it was not passed on."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import driver
from tests.support.workbench import ENVBUILDER, Built, as_nobody, open_folder, run

pytestmark = pytest.mark.builds

LOADS = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0), ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2())"


@pytest.fixture(scope="module")
def node() -> Iterator[driver.Driver]:
    with open_folder() as folder:
        yield driver.Driver(folder / "driver")


def test_exec_passes_the_driver_by_itself(node: driver.Driver, tiny: Built):
    """The SIF's LD_LIBRARY_PATH names the folder of `--nv`."""
    inside = f'nvidia-smi -L && python -c "{LOADS}"'
    command = (ENVBUILDER, "exec", "tiny", "--output", tiny.output, "--in", "sif", "--", "sh", "-c", inside)
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
