"""Caches where the home cannot be written: in the real SIF and the real image, as root and as an ordinary user."""

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.workbench import NOBODY, Built, as_nobody, open_folder, run

pytestmark = pytest.mark.builds

# torch.hub writes into the home where nothing else is said, and so does Triton, which `cpu` does not have.
USE = """
import json, os, torch
if {compiles}:
    os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "0"
    assert torch.compile(lambda x: x.sin() + 1)(torch.zeros(8)).sum() == 8
torch.save({{}}, "/tmp/weights.pth")
torch.hub.load_state_dict_from_url("file:///tmp/weights.pth", progress=False)
for name in ("TRITON_CACHE_DIR", "CUDA_CACHE_PATH"):
    if name in os.environ:
        os.makedirs(os.environ[name], exist_ok=True)
names = ("TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "TORCH_HOME", "MPLCONFIGDIR", "HF_HOME", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME")
print(json.dumps({{name: os.environ[name] for name in names if name in os.environ}}))
"""


@pytest.fixture
def tmp() -> Iterator[Path]:
    """The container's /tmp, and a home."""
    with open_folder() as folder:
        for name in ("tmp", "home"):
            (folder / name).mkdir()
            (folder / name).chmod(0o1777 if name == "tmp" else 0o755)
        yield folder


def used(*command: object, compiles: bool = False) -> dict[str, str]:
    """Return the variables of the caches that a Python used."""
    names = (
        "HF_HOME", "TORCH_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TMPDIR", "TRITON_CACHE_DIR",
        "MPLCONFIGDIR", "NUMBA_CACHE_DIR",
    )  # fmt: skip
    unset = [word for name in names for word in ("-u", name)]
    program = ("python", "-c", USE.format(compiles=compiles))
    shown = run("env", *unset, *command, *program, cwd=Path("/"), timeout=300)
    return dict(json.loads(shown.splitlines()[-1]))


def assert_placed(shown: dict[str, str], user: int, parent: str = "/tmp") -> None:
    assert shown["TRITON_CACHE_DIR"] == f"{parent}/envbuilder-{user}/triton"
    assert len(shown) == 7
    assert all(value.startswith(f"{parent}/envbuilder-{user}/") for value in shown.values())


@pytest.mark.release
def test_without_a_home_torch_compiles_in_the_private_folder(cpu: Built, tmp: Path):
    """Below, the places without a compile; `test_host_shells.py` compiles in a shell of a cluster."""
    start = ("apptainer", "exec", "--no-home", "--bind", f"{tmp}/tmp:/tmp", cpu.sif)
    assert_placed(used(*start, compiles=True), os.geteuid())
    (folder,) = (tmp / "tmp").glob("envbuilder-*")
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_user_without_a_home_has_caches(cpu: Built, tmp: Path):
    start = as_nobody("apptainer", "exec", "--no-home", "--bind", f"{tmp}/tmp:/tmp", cpu.sif)
    assert_placed(used(*start), int(NOBODY) if os.geteuid() == 0 else os.geteuid())


@pytest.mark.parametrize("user", [os.geteuid(), NOBODY])
def test_a_home_that_is_read_only_is_left_and_a_value_of_the_user_wins(cpu: Built, tmp: Path, user: int):
    binds = f"{tmp}/home:{tmp}/home:ro,{tmp}/tmp:/tmp"
    settings = f"TRITON_CACHE_DIR=/tmp/own,HOME={tmp}/home"
    start = ("apptainer", "exec", "--no-home", "--bind", binds, "--env", settings, cpu.sif)
    shown = used(*(start if user == os.geteuid() else as_nobody(*start)))
    assert shown.pop("TRITON_CACHE_DIR") == "/tmp/own"
    assert shown["TORCH_HOME"] == f"/tmp/envbuilder-{user}/torch"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a home that is full")
@pytest.mark.parametrize("user", [0, NOBODY])
def test_a_full_home_is_left(cpu: Built, tmp: Path, user: int):
    """A tmpfs of the test's own. An empty file can still be made in it."""
    start = ("apptainer", "exec", "--home", f"{tmp}/home", "--bind", f"{tmp}/tmp:/tmp", cpu.sif)
    command = shlex.join(map(str, start if user == 0 else as_nobody(*start)))
    full = f'mount -t tmpfs -o size=64k,uid={user} none {tmp}/home; head -c 100k /dev/zero >{tmp}/home/full || :; exec {command} "$@"'
    assert_placed(used("unshare", "--mount", "sh", "-c", full, "sh"), user)


def test_a_home_that_can_be_written_is_used(cpu: Built, tmp: Path):
    start = ("apptainer", "exec", "--home", f"{tmp}/home", "--bind", f"{tmp}/tmp:/tmp", cpu.sif)
    assert used(*start) == {}
    assert (tmp / "home/.cache/torch/hub/checkpoints/weights.pth").exists()
    assert used("apptainer", "exec", "--containall", cpu.sif) == {}  # its home is in memory


def test_an_image_that_is_read_only_has_caches_for_a_user_without_a_name(cpu: Built):
    options = ("--rm", "--read-only", "--tmpfs", "/tmp", "--user", "12345")
    assert_placed(used("docker", "run", *options, cpu.image), 12345)
