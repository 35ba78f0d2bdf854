"""What happens when torch is imported on a node: decided once, saved safely, applied where nothing is set, and never in the way."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from envbuilder import runtime as image
from envbuilder.node.nccl.decide import decide
from envbuilder.node.nccl.facts import Facts, Gpu, Measured
from envbuilder.node.nccl.profile import Profile, profile_data
from tests.support import nccl_in_image

TORCH, NCCL = "torch-2.6.0+cu124.dist-info", "nvidia_nccl_cu12-2.21.5.dist-info"
HOST = Path(__file__).parents[2] / "envbuilder/node/nccl"
TOPO = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t{0}\t0-7\nGPU1\t{0}\t X \t8-15\n"
SMI = """#!/bin/sh
case "$*" in
*query-gpu*) printf '0, Tesla T4, 00000000:3B:00.0, {driver}\\n1, Tesla T4, 00000000:AF:00.0, {driver}\\n' ;;
*"topo -m"*) printf '{topo}' ;;
*) exit 1 ;;
esac
"""
programs = pytest.mark.programs
nccl, kept = nccl_in_image.nccl, nccl_in_image.kept


@pytest.fixture
def lib(tmp_path: Path) -> Path:
    """The folder as the image has it."""
    folder = tmp_path / "lib"
    (folder / "envbuilder/node").mkdir(parents=True)
    (folder / "envbuilder/node/nccl").symlink_to(HOST)
    (folder / "envbuilder_nccl").symlink_to(image.path("lib/envbuilder_nccl"))
    return folder


class Node:
    """A node made of files, and a Python that starts there."""

    def __init__(self, folder: Path, lib: Path) -> None:
        self.lib, self.root, self.run = lib, folder / "root", folder / "run"
        self.site, self.bin, self.home = folder / "site", folder / "bin", folder / "home"
        for place in (
            self.root / "dev",
            self.root / "proc",
            self.site / TORCH,
            self.bin,
            self.run,
            self.home,
        ):
            place.mkdir(parents=True)
        (self.site / NCCL).mkdir()
        (self.root / "dev/nvidiactl").touch()
        (self.bin / "libcuda.so.1").write_text("no library\n")  # hides that of a machine with a driver
        self.smi("SYS")

    def smi(self, link: str, driver: str = "535.104.05") -> None:
        self.program(
            SMI.format(topo=TOPO.format(link).replace("\n", "\\n").replace("\t", "\\t"), driver=driver)
        )

    def program(self, text: str) -> None:
        (self.bin / "nvidia-smi").write_text(text)
        (self.bin / "nvidia-smi").chmod(0o755)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def start(self, python: str = sys.executable, **environment: str) -> "Started":
        code = (
            "import sys, os, json, time\n"
            f"sys.path.insert(0, {str(self.lib)!r})\n"
            "begun = time.perf_counter()\n"
            "import envbuilder_nccl as nccl\n"
            f"nccl.prepare(nccl.Node({str(self.root)!r}, [{str(self.site)!r}]))\n"
            "took = time.perf_counter() - begun\n"
            "print(json.dumps([took, {name: value for name, value in os.environ.items() if 'NCCL' in name or 'GLOO' in name}]))\n"
        )
        base = {"PATH": f"{self.bin}:/usr/bin:/bin", "XDG_RUNTIME_DIR": str(self.run), "HOME": str(self.home)}
        base["LD_LIBRARY_PATH"] = str(self.bin)
        done = subprocess.run(
            [python, "-c", code], env=base | environment, capture_output=True, text=True, check=True
        )
        took, variables = json.loads(done.stdout)
        return Started(took, variables, done.stderr)

    def saved(self) -> list[Path]:
        return sorted(self.run.rglob("nccl-*.json"))


class Started:
    def __init__(self, took: float, variables: dict[str, str], said: str) -> None:
        self.took, self.said = took, said
        self.mark = variables.pop("_ENVBUILDER_NCCL", None)
        variables.pop("ENVBUILDER_NCCL", None)
        self.variables = variables


@pytest.fixture
def node(tmp_path: Path, lib: Path) -> Node:
    return Node(tmp_path, lib)


OFF = {"NCCL_P2P_DISABLE": "1"}


@programs
def test_it_decides_says_so_saves_and_is_quick_from_then_on(node: Node):
    first = node.start()
    assert (first.variables, first.mark) == (OFF, "NCCL_P2P_DISABLE=1")
    assert first.said.startswith(
        "envbuilder: NCCL_P2P_DISABLE=1: every pair of GPUs crosses the CPU interconnect"
    )
    assert first.said.count("\n") == 1
    (saved,) = node.saved()
    assert saved.stat().st_mode & 0o777 == 0o600
    assert saved.parent.stat().st_mode & 0o777 == 0o700
    node.program("#!/bin/sh\nsleep 60\n")
    again = min((node.start() for _ in range(3)), key=lambda one: one.took)
    assert again.variables == OFF
    assert again.took < 0.03


def copy_rules(node: Node) -> None:
    """Put other rules into the image."""
    folder = node.lib / "envbuilder/node/nccl"
    folder.unlink()
    folder.mkdir()
    for path in HOST.glob("*.py"):
        (folder / path.name).write_text(path.read_text() + "\n")


CHANGES: dict[str, Callable[[Node], object]] = {
    "driver": lambda node: node.write("sys/module/nvidia/version", "570.1\n"),
    "boot": lambda node: node.write("proc/sys/kernel/random/boot_id", "another\n"),
    "interface": lambda node: node.write("sys/class/net/eth0/operstate", "up\n"),
    "torch": lambda node: (node.site / NCCL).rename(node.site / NCCL.replace("2.21.5", "2.26.2")),
    "job": lambda node: None,
    "rules": copy_rules,
}


@programs
@pytest.mark.parametrize("change", CHANGES)
def test_a_saved_decision_is_for_this_boot_driver_network_environment_and_job_alone(node: Node, change: str):
    node.start()
    node.smi("PIX")
    CHANGES[change](node)
    assert node.start(**({"SLURM_JOB_ID": "7"} if change == "job" else {})).variables == {}
    assert len(node.saved()) == 2


@programs
@pytest.mark.parametrize(
    "environment", [{"NCCL_P2P_DISABLE": "0"}, {"NCCL_P2P_DISABLE": ""}, {"NCCL_P2P_LEVEL": "SYS"}]
)
def test_the_users_own_variable_wins_an_empty_one_among_them(node: Node, environment: dict[str, str]):
    started = node.start(**environment)
    assert started.variables == environment
    assert started.said == ""


@programs
def test_a_file_of_the_users_wins_too_for_nccl_would_take_the_environment_before_it(node: Node):
    node.write(str(node.home)[1:] + "/.nccl.conf", "# mine\nNCCL_P2P_LEVEL=SYS\n")
    assert node.start().variables == {}
    node.write("etc/nccl.conf", "NCCL_P2P_DISABLE=0\n")
    assert node.start(HOME="/nonexistent").variables == {}
    assert node.start(NCCL_CONF_FILE="/none", HOME="/nonexistent").variables == {"NCCL_CONF_FILE": "/none"}


UNUSED: dict[str, Callable[[Node], object]] = {
    "no driver": lambda node: (node.root / "dev/nvidiactl").unlink(),
    "cpu": lambda node: (node.site / TORCH).rename(node.site / "torch-2.13.0+cpu.dist-info"),
    "recipe off": lambda node: node.write("opt/envbuilder/nccl.json", '{"mode": "off"}'),
    "CUDA_VISIBLE_DEVICES=": lambda node: None,
    "CUDA_VISIBLE_DEVICES=-1": lambda node: None,
    "ENVBUILDER_NCCL=off": lambda node: None,
}


@programs
@pytest.mark.parametrize("case", UNUSED)
def test_nothing_is_done_in_a_process_that_uses_no_gpus(node: Node, case: str):
    UNUSED[case](node)
    name, is_set, value = case.partition("=")
    started = node.start(**({name: value} if is_set else {}))
    assert (started.variables, started.mark, started.said, node.saved()) == ({}, None, "", [])
    if case == "no driver":
        assert "there is no NVIDIA driver here" in node.start(ENVBUILDER_NCCL="explain").said


@programs
def test_a_driver_that_hangs_costs_two_seconds_once_and_its_late_answer_is_kept(node: Node):
    slow = SMI.format(topo=TOPO.format("SYS").replace("\n", "\\n").replace("\t", "\\t"), driver="535.1")
    node.program(slow.replace("printf '0", "sleep 2; printf '0"))
    started = node.start()
    assert started.took < 2
    undecided = "envbuilder: NCCL defaults were not decided: no answer within 2 s\n"
    assert (started.variables, started.said) == ({}, undecided)
    again = node.start()
    assert again.took < 0.5
    assert again.variables == {}
    for _ in range(100):
        time.sleep(0.1)
        if "P2P_DISABLE" in node.saved()[0].read_text():
            break
    assert node.start().variables == OFF


@programs
@pytest.mark.parametrize(
    "text", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\nprintf '\\377\\376nonsense'\n", "#!/bin/sh\nkill -9 $$\n"]
)
def test_a_driver_that_fails_leaves_everything_unset(node: Node, text: str):
    node.program(text)
    assert node.start().variables == {}


@programs
def test_a_crash_of_the_child_is_one_line_and_no_more(node: Node):
    (node.lib / "envbuilder/node/nccl").unlink()
    started = node.start()
    assert started.variables == {}
    assert started.said == "envbuilder: NCCL defaults were not decided: no answer\n"


@programs
def test_it_explains_on_demand(node: Node):
    node.start()
    said = node.start(ENVBUILDER_NCCL="explain").said
    for part in ("facts", "2 Tesla T4", "NCCL_P2P_DISABLE=1", "because every pair", "left unset"):
        assert part in said
    assert node.start(ENVBUILDER_NCCL="explain", LOCAL_RANK="1").said == ""


@programs
def test_children_say_nothing_again_and_ranks_of_a_node_speak_once(node: Node):
    assert node.start(_ENVBUILDER_NCCL="NCCL_P2P_DISABLE=1", NCCL_P2P_DISABLE="1").said == ""
    assert node.start(LOCAL_RANK="3").said == ""
    assert node.start(LOCAL_RANK="0").said != ""


@programs
def test_a_profile_that_fits_is_used_and_one_that_does_not_is_said_and_not_used(node: Node):
    node.smi("PIX")
    captured = Facts(gpus=(Gpu("Tesla T4"),) * 2, driver="535.104.05", links=(("X", "PIX"), ("PIX", "X")))
    captured = replace(captured, measured=Measured(False, True, "535.104.05", None, None, ("Tesla T4",) * 2))
    profile = Profile(captured, decide(captured).settings)
    assert profile.settings
    node.write("opt/envbuilder/nccl.json", json.dumps({"mode": "profile", "profile": profile_data(profile)}))
    assert node.start().variables == OFF
    node.smi("PIX", driver="570.1")
    node.write("sys/module/nvidia/version", "570.1\n")
    started = node.start()
    assert started.variables == {}
    assert started.said == (
        "envbuilder: the site's NCCL profile is not used, for it does not fit this node: driver: 535.104.05 in the profile, 570.1 here\n"
    )


@programs
def test_the_verdict_of_a_test_on_this_node_beats_every_rule(node: Node, kept: ModuleType):
    kernel = Path("/proc/sys/kernel/osrelease").read_text().strip()
    node.write("proc/sys/kernel/osrelease", kernel)
    versions = {"driver": "535.104.05", "kernel": kernel, "nccl": "2.21.5", "gpus": ["Tesla T4"] * 2}
    verdict = {"passed": True, "passed_without": True, **versions}
    place = Path(kept.measured_path({"HOME": str(node.home)}))
    place.parent.mkdir(parents=True, mode=0o700)
    place.write_text(json.dumps(verdict))
    assert node.start().variables == {}
    place.write_text(json.dumps(verdict | {"driver": "470.1"}))
    assert node.start().variables == OFF


@programs
def test_every_python_of_the_images_can_run_it(node: Node):
    found = [path for path in map(Path, _pythons()) if path.exists()]
    assert found
    for python in found:
        for saved in node.saved():
            saved.unlink()
        assert node.start(str(python)).variables == OFF, python


def _pythons() -> list[str]:
    """This one, and the oldest and the newest of those that uv and pyenv have on this machine."""
    roots = [Path.home() / ".local/share/uv/python", Path.home() / ".pyenv/versions"]
    found = [path for root in roots if root.is_dir() for path in root.glob("*3.*/bin/python3")]
    versions = {
        tuple(map(int, match[1].split("."))): str(path)
        for path in found
        if (match := re.search(r"(3\.\d+\.\d+)", str(path)))
    }
    known = [versions[key] for key in sorted(versions) if key[:2] >= (3, 8)]
    return [sys.executable, *known[:1], *known[-1:]]


@programs
def test_other_programs_get_the_same_from_the_entry_point(node: Node, tmp_path: Path):
    place = image.path("lib/envbuilder_nccl/__main__.py")
    source = f"import sys\nsys.argv = [{str(place)!r}, '--export']\n__file__ = {str(node.lib / 'envbuilder_nccl/__main__.py')!r}\n"
    source += f"sys.path.insert(0, {str(node.lib)!r})\nimport envbuilder_nccl\nmake = envbuilder_nccl.Node\n"
    source += f"envbuilder_nccl.Node = lambda *given: make({str(node.root)!r}, [{str(node.site)!r}])\nexec(open(__file__).read())\n"
    environment = {
        "PATH": f"{node.bin}:/usr/bin:/bin",
        "XDG_RUNTIME_DIR": str(node.run),
        "HOME": str(node.home),
    }
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "export NCCL_P2P_DISABLE=1",
        "export _ENVBUILDER_NCCL=NCCL_P2P_DISABLE=1",
    ]


@programs
def test_a_driver_that_is_too_old_is_named_before_cuda_is(node: Node):
    node.write("opt/envbuilder/needs.json", '{"driver": "525.60.13"}')
    node.write(".singularity.d/libs/libcuda.so.1", "")
    assert "older" not in node.start().said
    node.write("sys/module/nvidia/version", "470.82\n")
    line = "envbuilder: driver 470.82 is older than this environment needs (525.60.13)\n"
    assert node.start().said.startswith(line)
    assert node.start(ENVBUILDER_NCCL="off").said == line
    assert node.start(ENVBUILDER_NCCL="off", LOCAL_RANK="1").said == ""
    node.write("sys/module/nvidia/version", "525.60.13\n")
    assert node.start(ENVBUILDER_NCCL="off").said == ""


@programs
def test_gpus_that_the_container_lacks_are_told_once_and_only_to_cuda(node: Node):
    assert "without" not in node.start().said  # no CUDA environment
    node.write("opt/envbuilder/needs.json", '{"driver": "525.60.13"}')
    line = "envbuilder: this node has GPUs, but this container was started without `{}`: torch sees none\n"
    assert node.start().said == line.format("--gpus all")
    assert node.start(APPTAINER_CONTAINER="/a.sif").said == line.format("--nv")
    mark = node.start().mark
    assert mark == ""
    named = {"LOCAL_RANK": "1"}, {"SLURM_PROCID": "1"}, {"OMPI_COMM_WORLD_RANK": "1"}
    ranks = (*named, {"RANK": "8", "LOCAL_RANK": "0"})
    for silent in ({"CUDA_VISIBLE_DEVICES": ""}, {"_ENVBUILDER_NCCL": mark}, *ranks):
        assert node.start(**silent).said == ""
    (node.root / "dev/nvidiactl").unlink()
    assert node.start().said == ""  # no GPUs here
    node.write("sys/module/nvidia/version", "580.159.04\n")  # Docker gives no devices
    assert node.start().said == line.format("--gpus all")
    node.write(".singularity.d/libs/libcuda.so.1", "")
    assert node.start().said == ""


# What needs no other process.


def settings(**values: str) -> dict[str, object]:
    return {
        "settings": [
            {"name": name, "value": value, "reason": "r", "unless": [name]} for name, value in values.items()
        ]
    }


def test_what_a_parent_set_is_ours_to_change_and_what_the_user_set_is_not(nccl: ModuleType):
    environment = {"_ENVBUILDER_NCCL": "A=1;B=2", "A": "1", "B": "mine"}
    assert nccl.apply(settings(B="3", C="4"), environment, frozenset()) == settings(C="4")["settings"]
    assert environment == {"_ENVBUILDER_NCCL": "C=4", "B": "mine", "C": "4"}
    assert nccl.apply(settings(C="4"), environment, frozenset()) == []
    assert nccl.apply(settings(C="5"), environment, frozenset({"C"})) == []
    assert environment == {"_ENVBUILDER_NCCL": "", "B": "mine"}


@pytest.mark.parametrize(
    ("torch", "environment", "more"),
    [
        ("2.1.2", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, {"NCCL_ASYNC_ERROR_HANDLING": "1"}),
        ("1.13.1+cu117", {"TORCH_NCCL_BLOCKING_WAIT": "0", "NCCL_BLOCKING_WAIT": "1"}, {}),
        ("2.2.0", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, {}),
        ("", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, {}),
        ("2.1.2", {}, {}),
    ],
)
def test_what_the_user_set_by_its_new_name_reaches_an_old_torch(
    nccl: ModuleType, torch: str, environment: dict[str, str], more: dict[str, str]
):
    assert nccl.renamed(environment, torch) == more


@pytest.mark.parametrize("trap", ["link", "open to others", "a file"])
def test_a_folder_that_others_could_have_made_is_not_used(
    kept: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
):
    folder, elsewhere = tmp_path / "envbuilder", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    monkeypatch.setattr(kept, "_folders", lambda: [str(folder)])
    if trap == "link":
        folder.symlink_to(elsewhere)
    elif trap == "a file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777)
    kept.save("key", settings(A="1"))
    assert kept.load("key") is None
    assert [path for place in (folder, elsewhere) if place.is_dir() for path in place.iterdir()] == []


@pytest.mark.parametrize("trap", ["link", "hard link", "fifo", "nonsense", "another key", "old"])
def test_a_saved_decision_that_is_not_plainly_ours_is_not_used(
    kept: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
):
    folder = tmp_path / "envbuilder"
    monkeypatch.setattr(kept, "_folders", lambda: [str(folder)])
    kept.save("key", settings(A="1") | ({"until": time.time() - 1} if trap == "old" else {}))
    (saved,) = folder.iterdir()
    assert trap == "old" or kept.load("key") == settings(A="1")
    if trap == "link":
        saved.rename(tmp_path / "kept")
        saved.symlink_to(tmp_path / "kept")
    elif trap == "hard link":
        os.link(saved, tmp_path / "kept")
    elif trap == "fifo":
        saved.unlink()
        os.mkfifo(saved, 0o600)
    elif trap == "nonsense":
        saved.write_text("{")
    elif trap == "another key":
        saved.write_text(saved.read_text().replace('"key": "key"', '"key": "other"'))
    assert kept.load("key") is None


def test_old_decisions_go_when_there_are_many(
    kept: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kept, "_folders", lambda: [str(tmp_path / "envbuilder")])
    for number in range(70):
        kept.save(f"key {number}", settings())
    assert len(list((tmp_path / "envbuilder").iterdir())) == 64
    assert kept.load("key 69") == settings()
