"""A node of a job runs from its own copy of the SIF, which has the digest that the job expects."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from envbuilder.artifacts.outputs import Outputs
from envbuilder.core.cache import sha256_file
from envbuilder.core.errors import LaunchError
from envbuilder.run.launch import start
from envbuilder.run.launch.job import Environment, LaunchJob, LaunchOptions, make_job
from envbuilder.run.launch.site import Site
from tests.support.toys import make_pair

pytestmark = pytest.mark.programs
# In place of Apptainer: notes the SIF.
APPTAINER = """#!/bin/bash
while [[ $1 != *.sif ]]; do shift; done
echo "$1" >>"$NODE/used"
"""
HOUR = 3600


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outputs, Outputs]:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The disk of a node."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/apptainer").write_text(APPTAINER)
    (tmp_path / "bin/apptainer").chmod(0o755)
    (tmp_path / "train.py").touch()
    (tmp_path / "node").mkdir()
    return tmp_path / "node"


def make(outputs: Outputs, node: Path, sif: Path | None = None) -> LaunchJob:
    """A job whose shared SIF is `sif`."""
    environment = Environment(
        name="toy", location=str(outputs.sif), size=outputs.sif.stat().st_size, sha256=sha256_file(outputs.sif),
        torch="2.6.0", cuda="",
    )  # fmt: skip
    options = LaunchOptions(
        name="toy", program=("train.py",), where="local", folder=node.parent, logs=Path("logs"),
        output=Path("build"), grace=5, smoke=False, local_copy=True,
    )  # fmt: skip
    made = make_job(options, environment, Site(node_scratch=str(node)), node.parent)
    script = start.script_of(made)
    whole = script.text.replace(str(outputs.sif), str(sif or outputs.sif))
    text = whole[: whole.index("\nhosts=(localhost)")] + "\nMASTER_ADDR=127.0.0.1 MASTER_PORT=1\n"
    (node.parent / "look.sh").write_text(f'{text}this_node() {{ echo n1; }}\njob=1\n"$@"\n')
    return made


def begin(node: Path, function: str = "preflight") -> "subprocess.Popen[str]":
    env = {"PATH": f"{node.parent}/bin:{os.environ['PATH']}", "NODE": str(node)}
    return subprocess.Popen(
        ["bash", str(node.parent / "look.sh"), function], env=env, stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run(node: Path, function: str = "preflight") -> tuple[int, str]:
    running = begin(node, function)
    said = running.communicate(timeout=60)[1]
    return running.returncode, said


def copies(node: Path) -> dict[str, str]:
    """The digests of the copies, by name."""
    return {path.name: sha256_file(path) for path in (node / f"envbuilder-{os.getuid()}/sifs").glob("*.sif")}


def copy_of(outputs: Outputs) -> dict[str, str]:
    digest = sha256_file(outputs.sif)
    return {f"toy-{digest}.sif": digest}


def used(node: Path) -> str:
    """The SIF of the last container."""
    return (node / "used").read_text().splitlines()[-1]


def place(outputs: Outputs, node: Path) -> Path:
    return node / f"envbuilder-{os.getuid()}/sifs" / next(iter(copy_of(outputs)))


def test_a_node_copies_the_sif_and_the_ranks_run_from_the_copy(pair: tuple[Outputs, Outputs], node: Path):
    make(pair[0], node)
    assert run(node) == (0, "")
    assert copies(node) == copy_of(pair[0])
    assert os.access(place(pair[0], node), os.X_OK)
    assert run(node, "ranks") == (0, "")
    assert used(node) == str(place(pair[0], node))


def test_a_second_job_reads_neither_file(pair: tuple[Outputs, Outputs], node: Path, tmp_path: Path):
    make(pair[0], node, shutil.copy(pair[0].sif, tmp_path / "shared.sif"))
    assert run(node) == (0, "")
    (tmp_path / "shared.sif").write_bytes(b"")
    (tmp_path / "bin/sha256sum").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin/sha256sum").chmod(0o755)
    assert run(node) == (0, "")
    assert used(node) == str(place(pair[0], node))


@pytest.mark.parametrize("change", ["size", "bytes"])
def test_another_file_under_the_shared_name_leaves_no_copy(
    pair: tuple[Outputs, Outputs], node: Path, tmp_path: Path, change: str
):
    content = bytearray(pair[0].sif.read_bytes())
    content[-5000] ^= 1
    shared = tmp_path / "shared.sif"
    shared.write_bytes(content if change == "bytes" else content[:-1])
    make(pair[0], node, shared)
    code, said = run(node)
    assert code == LaunchError.exit_code
    assert f"this node has no copy, so it reads {shared}" in said
    assert f"this script was written for another file: {shared}" in said
    assert copies(node) == {}


@pytest.mark.parametrize("damage", [b"x", b""])
def test_a_damaged_copy_is_made_again(pair: tuple[Outputs, Outputs], node: Path, damage: bytes):
    make(pair[0], node)
    run(node)
    copy = place(pair[0], node)
    copy.write_bytes(copy.read_bytes()[: -len(damage)] + damage if damage else b"")
    assert run(node) == (0, "")
    assert copies(node) == copy_of(pair[0])


def test_a_node_without_room_reads_the_shared_file(pair: tuple[Outputs, Outputs], node: Path, tmp_path: Path):
    make(pair[0], node)
    (tmp_path / "bin/cp").write_text(
        '#!/bin/bash\nulimit -f 100\ntrap "" XFSZ\nPATH=${PATH#*:} exec cp "$@"\n'
    )
    (tmp_path / "bin/cp").chmod(0o755)
    code, said = run(node)
    assert (code, "File too large" in said, "this node has no copy" in said) == (0, True, True), said
    assert copies(node) == {}
    assert used(node) == str(pair[0].sif)


def test_jobs_that_start_at_once_share_one_copy(pair: tuple[Outputs, Outputs], node: Path):
    make(pair[0], node)
    running = [begin(node) for _ in range(4)]
    assert [(one.communicate(timeout=60)[1], one.returncode) for one in running] == [("", 0)] * 4
    assert copies(node) == copy_of(pair[0])


def test_a_new_copy_removes_what_no_job_started_from(
    pair: tuple[Outputs, Outputs], node: Path, tmp_path: Path
):
    folder = place(pair[0], node).parent
    make(pair[0], node)
    run(node)
    now = time.time()
    for name, age in (("toy-aa", 2), ("toy-bb", 2), ("other-cc", 2), ("other-dd", 31 * 24), ("to-ee", 2)):
        for path in (folder / f"{name}.sif", folder / f"{name}.sif.checked"):
            path.write_bytes(b"old")
            os.utime(path, (now - age * HOUR,) * 2)
    os.utime(folder / "toy-bb.sif.checked")  # a job starts from it
    (folder / "toy-ff.sif.part").write_bytes(b"of a killed job")
    make(pair[1], node)
    assert run(node) == (0, "")
    kept = {"toy-bb.sif", "other-cc.sif", "to-ee.sif", *copy_of(pair[0]), *copy_of(pair[1])}
    assert {path.name for path in folder.iterdir()} == kept | {f"{name}.checked" for name in kept} | {"lock"}
