"""What the doctor says of made-up machines, and of this one as root and as an ordinary user."""

import contextlib
import functools
import json
import os
import platform
import struct
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuilder import cli
from envbuilder.core.errors import EnvbuilderError
from envbuilder.core.process import ProcessRunner
from envbuilder.node.doctor import Purpose, as_text, examine, exit_code, run_checks
from envbuilder.node.doctor.build import check_python, check_sources
from envbuilder.node.doctor.machine import (
    DoctorCode,
    DoctorItem,
    Machine,
    State,
    forbids_programs,
    probe_clock,
    probe_machine,
)
from envbuilder.node.doctor.node import redirects
from envbuilder.node.nccl.facts import Facts, Gpu, RdmaPort
from envbuilder.recipe.load import load
from envbuilder.run.on_node import check_recipes, recipes_meant
from envbuilder.sources.http.reachable import Reached, reach
from tests.support.runner import SAYS
from tests.support.runner import Machine as FakePrograms
from tests.support.serving import Quiet, serving
from tests.support.stranger import STRANGER, as_user
from tests.support.toys import write_recipe_sif

ROOT = Path(__file__).parents[2]
ALL = SAYS | {
    "docker": "28.5.2 [[driver-type io.containerd.snapshotter.v1]]\n",
    "apptainer": "apptainer version 1.4.5\nLIBEXECDIR=/nowhere\n",
    "unshare": "",
    "sinfo": "slurm 23.11.4\n",
    "git": "git version 2.39.5\n",
}
SWITCHES = (
    ("kernel/unprivileged_userns_clone", "0"),
    ("user/max_user_namespaces", "0"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1"),
)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine on which everything is well, whose files are all below `tmp_path`."""
    root = tmp_path
    for folder in (
        "sys/bus/pci/devices",
        "proc/sys/kernel",
        "proc/sys/user",
        "dev/infiniband",
        "etc",
        "home",
        "bin",
    ):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "dev/fuse").touch()
    (tmp_path / "dev/fuse").chmod(0o666)
    for name in ("fusermount3", "squashfuse"):
        (tmp_path / "bin" / name).touch(mode=0o755)
    return Machine(
        root=root,
        environment={"PATH": str(tmp_path / "bin"), "TMPDIR": str(tmp_path)},
        runner=FakePrograms(ALL),
        facts=Facts(gpus=(), shm=8 << 30, rdma=(), virtual=""),
        cache=tmp_path / "cache",
        output=tmp_path / "build",
        recipes=functools.partial(
            check_recipes, [load(ROOT / f"recipes/{name}.yaml") for name in ("a100", "cpu", "t4")]
        ),
        uid=os.geteuid(),
        user="kim",
        home=tmp_path / "home",
        now=time.time(),
        memlock=None,
        clock=(True, 0.01),
        reach=lambda: (Reached(url="https://mirror.example/", trouble="", skew=0.2),),
        kernel="6.1.0-18-amd64",
    )


def items(machine: Machine, *purposes: Purpose) -> dict[str, DoctorItem]:
    """Return every item by its name."""
    return {item.subject.name: item for item in examine(machine, purposes or tuple(Purpose)).items}


def disk(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    for module in ("build", "node"):
        monkeypatch.setattr(f"envbuilder.node.doctor.{module}.free_bytes", lambda _path: free)


def test_on_a_sound_machine_all_is_well(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    disk(monkeypatch, 10**12)
    seen = examine(machine, list(Purpose))
    assert [item.subject.name for item in seen.items if item.state is not State.OK] in ([], ["Python"])
    assert exit_code(seen) == 0


@pytest.mark.parametrize(
    ("kernel", "programs", "state", "found"),
    [
        ("6.1.0", ALL, State.OK, "sandbox"),
        ("5.5.0", SAYS | {"unshare": ""}, State.OK, "sandbox"),
        ("6.1.0", {"unshare": ""}, State.OK, "sandbox"),  # with envbuilder's own bubblewrap
        ("6.1.0", {}, State.OK, "sandbox, with proot: slower than with user namespaces"),
        ("4.18.0-553.el8", {"docker": "28"}, State.WARNING, "buildkit alone"),
        ("4.18.0-553.el8", {"docker": ""}, State.MISSING, "none works here"),  # its engine does not answer
        ("4.18.0-553.el8", ALL, State.OK, "sandbox"),
        ("4.7.10", ALL, State.WARNING, "buildkit alone"),
        ("", ALL, State.WARNING, "buildkit alone"),
        ("4.7.10", SAYS, State.MISSING, "none works here"),
    ],
)
def test_the_runner_that_works_here_is_proposed(
    machine: Machine, kernel: str, programs: dict[str, str], state: State, found: str
):
    here = replace(machine, runner=FakePrograms(programs), kernel=kernel, uid=1000)
    seen = examine(here, [Purpose.BUILD])
    (engine,) = [item for item in seen.items if item.subject.code is DoctorCode.RUNNER]
    assert (engine.state, engine.found) == (state, found)
    assert bool(engine.repair) is (state is not State.OK)
    assert any(
        item.subject.code is DoctorCode.RUNNER for item in seen.items if item.state is State.MISSING
    ) is (state is State.MISSING)


def test_everything_that_is_missing_is_named_at_once_in_the_words_of_the_machine(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "rocky", "ID_LIKE": "rhel fedora"})
    monkeypatch.setattr("envbuilder.node.doctor.build.forbids_programs", lambda path: True)
    disk(monkeypatch, 10**9)
    (machine.root / "proc/sys/user/max_user_namespaces").write_text("0\n")
    silent = (Reached(url="https://mirror.example/", trouble="the connection was refused"),)
    bare = replace(
        machine, runner=FakePrograms({}), kernel="4.18.0-553.el8", uid=1000, reach=lambda: silent,
        environment={**machine.environment, "ENVBUILDER_DEBIAN_KEYRING": "/nowhere.gpg"},
    )  # fmt: skip
    seen = examine(bare, [Purpose.BUILD])
    rows = {item.subject.name: item for item in seen.items if item.state in (State.MISSING, State.WARNING)}
    assert set(rows) - {"Python"} == {
        "kernel", "user namespaces", "runner", "git", "cache noexec", "TMPDIR noexec", "keyring", "Docker engine",
        "cache space", "output space", "source",
    }  # fmt: skip
    assert rows["user namespaces"].repair == "sysctl -w user.max_user_namespaces=15000"
    assert rows["git"].repair == "dnf install git"
    assert "dnf install docker-ce docker-buildx-plugin" in rows["runner"].repair
    assert exit_code(seen) == 8
    assert all(item.repair for item in rows.values())


def test_a_folder_that_is_not_there_yet_is_judged_by_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = []

    def statvfs(path: Path) -> "os.statvfs_result":
        asked.append(Path(path))
        return types.SimpleNamespace(f_flag=os.ST_NOEXEC)

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert forbids_programs(tmp_path / "a/b") is True
    assert asked == [tmp_path]


def a100s(
    count: int, iommu: str | None = "identity", *, switch: str = "", groups: str = "same"
) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(
            name="NVIDIA A100-SXM4-80GB", bus=f"0000:{number}b:00.0", iommu=iommu, switch=switch,
            iommu_group=str(number) if groups == "apart" else "1",
        )
        for number in range(count)
    )  # fmt: skip


def changed(
    machine: Machine, *, says: dict[str, str] = ALL, files: Mapping[str, str] = {}, facts: Mapping[str, object] = {},
    environment: Mapping[str, str] = {}, **more: object,
) -> Machine:  # fmt: skip
    for name, text in files.items():
        (machine.root / name).parent.mkdir(parents=True, exist_ok=True)
        (machine.root / name).write_text(text)
    return replace(
        machine, runner=FakePrograms(says), environment={**machine.environment, **environment},
        facts=replace(machine.facts, **facts), **more,  # type: ignore[arg-type]
    )  # fmt: skip


def reached(trouble: str = "", skew: float | None = None) -> Callable[[], tuple[Reached, ...]]:
    return lambda: (Reached(url="https://mirror.example/", trouble=trouble, skew=skew),)


def without(*names: str) -> dict[str, str]:
    return {name: text for name, text in ALL.items() if name not in names}


PORT = RdmaPort("mlx5_0", 1, "ACTIVE", "InfiniBand")
DOWN = replace(PORT, state="DOWN")
SYNCED, UNSYNCED = (True, 0.01), (False, 16.0)
# What is changed of a machine on which all is well, the item, its state, and words of what was found and of the repair.
CASES: list[tuple[dict[str, Any], str, State, str]] = [
    ({"says": ALL | {"docker": "20.10.24 overlay2"}}, "Docker engine", State.WARNING, ""),
    ({"says": ALL | {"docker": "20.10.24 overlay2"}}, "image store", State.WARNING, "containerd-snapshotter"),
    ({"says": SAYS}, "Docker engine", State.WARNING, "systemctl start docker"),
    ({"says": {"unshare": ""}}, "Apptainer", State.MISSING, "module avail apptainer"),
    ({"files": {"cache/x": ""}, "uid": os.geteuid() + 1}, "cache", State.MISSING, "is not a folder of yours"),
    ({"reach": reached("no answer in time")}, "source", State.WARNING, "https://mirror.example/ no answer in time"),
    ({"clock": SYNCED, "reach": reached()}, "clock", State.OK, "synchronised, at most 0.010 s off"),
    ({"clock": UNSYNCED, "reach": reached()}, "clock", State.WARNING, "not synchronised"),
    ({"clock": UNSYNCED, "reach": reached(skew=0.5)}, "clock", State.WARNING, "not synchronised, says the kernel; within 2 s"),
    ({"clock": SYNCED, "reach": reached(skew=500.0)}, "clock", State.WARNING, "500 s ahead of"),
    ({"clock": SYNCED, "reach": reached(skew=-90.0)}, "clock", State.WARNING, "90 s behind"),
    ({"clock": None, "reach": reached()}, "clock", State.UNKNOWN, "neither"),
    ({"clock": None, "reach": reached(skew=1.0)}, "clock", State.OK, "within 2 s of a source's"),
    *(({"says": without("unshare"), "uid": 1000, "files": {f"proc/sys/{name}": f"{value}\n"}}, "user namespaces", State.MISSING,
       f"({name}); sysctl -w {name.replace('/', '.')}=") for name, value in SWITCHES),
    ({"facts": {"gpus": a100s(2)}}, "driver", State.WARNING, ""),
    ({"facts": {"gpus": None, "sources": (("gpus", "sysfs cannot be read"),)}}, "driver", State.UNKNOWN, "sysfs cannot be read"),
    ({"facts": {"gpus": a100s(1), "driver": "580.95.05"}}, "recipe a100", State.OK, ""),
    ({"facts": {"gpus": a100s(2, "DMA-FQ")}}, "IOMMU", State.WARNING, "boot with iommu=pt"),
    ({"facts": {"gpus": a100s(2, "DMA"), "virtual": "kvm"}}, "IOMMU", State.OK, ""),
    ({"facts": {"gpus": a100s(2, "identity")}}, "IOMMU", State.OK, ""),
    ({"facts": {"gpus": a100s(2, "off")}}, "IOMMU", State.OK, ""),
    ({"facts": {"gpus": a100s(2, None)}}, "IOMMU", State.UNKNOWN, ""),
    ({"facts": {"shm": 64 << 20}}, "/dev/shm", State.WARNING, "0.1 GB"),
    ({"facts": {"shm": None}}, "/dev/shm", State.UNKNOWN, ""),
    ({"facts": {"rdma": (DOWN,), "verbs": False}}, "RDMA", State.WARNING,
     "no port is active; /dev/infiniband/uverbs* is not there; libibverbs is not installed"),
    ({"facts": {"rdma": (PORT,), "verbs": True}, "files": {"dev/infiniband/uverbs0": ""}}, "RDMA", State.OK, "1 active ports: mlx5_0"),
    ({"facts": {"rdma": None}}, "RDMA", State.UNKNOWN, ""),
    ({"facts": {"rdma": (DOWN,)}, "memlock": 65536}, "locked memory", State.WARNING, "ulimit -l unlimited"),
    ({"environment": {"SLURM_JOB_ID": "77"}}, "Slurm", State.OK, "slurm 23.11.4, in job 77"),
    ({"files": {"etc/slurm/slurm.conf": ""}}, "Slurm", State.OK, "not in a job"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "name", "state", "words"), CASES)
def test_what_is_not_well_has_an_item_with_its_repair(
    machine: Machine, change: dict[str, Any], name: str, state: State, words: str
):
    item = items(changed(machine, **change))[name]
    assert (item.state, words in f"{item.found}; {item.repair}") == (state, True)
    assert item.repair or state in (State.OK, State.UNKNOWN)


@pytest.mark.parametrize(
    ("free", "state"), [(10**12, State.OK), (10**10, State.WARNING), (10**9, State.MISSING)]
)
def test_space_is_judged_by_what_an_environment_takes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, free: int, state: State
):
    disk(monkeypatch, free)
    assert items(machine, Purpose.BUILD)["cache space"].state is state


def test_a_node_needs_apptainer_and_no_tools_of_a_build(machine: Machine):
    says = {name: ALL[name] for name in ("apptainer", "unshare")}
    assert exit_code(examine(changed(machine, says=says), [Purpose.RUN])) == 0
    assert exit_code(examine(changed(machine, says={"unshare": ""}), [Purpose.RUN])) == 8
    assert "Slurm" not in items(machine, Purpose.RUN)


def test_a_cache_that_others_may_write_is_closed_by_fix(machine: Machine):
    machine.cache.mkdir(mode=0o777)
    machine.cache.chmod(0o777)
    assert items(machine, Purpose.BUILD)["cache"].state is State.MISSING
    assert run_checks(lambda: machine, list(Purpose), fix=False, report=pytest.fail).done == ()
    assert machine.cache.stat().st_mode & 0o777 == 0o777
    told: list[str] = []
    seen = run_checks(lambda: machine, [Purpose.BUILD], fix=True, report=told.append)
    assert told == [f"doctor: chmod go-w {machine.cache}"]
    assert seen.done == (f"chmod go-w {machine.cache}",)
    assert machine.cache.stat().st_mode & 0o777 == 0o755


def test_leftovers_of_killed_builds_are_swept_by_fix(machine: Machine):
    (machine.cache / "work/work-x").mkdir(parents=True, mode=0o700)
    machine.cache.chmod(0o700)
    assert items(machine, Purpose.BUILD)["leftovers"].state is State.WARNING
    run_checks(lambda: machine, [Purpose.BUILD], fix=True, report=lambda _: None)
    assert list((machine.cache / "work").iterdir()) == []


def test_an_apptainer_that_does_not_start_is_not_called_missing(machine: Machine):
    programs = FakePrograms(ALL, broken=("apptainer",))
    apptainer = items(replace(machine, runner=programs))["Apptainer"]
    assert (apptainer.state, apptainer.found) == (
        State.MISSING,
        "is there, and does not start: it does not run",
    )
    assert "`apptainer --version`" in apptainer.repair


def test_a_setuid_apptainer_needs_no_namespaces(machine: Machine):
    starter = machine.root / "libexec/apptainer/bin/starter-suid"
    starter.parent.mkdir(parents=True)
    starter.touch()
    starter.chmod(0o4755)
    says = {"apptainer": f"apptainer version 1.3.0\nLIBEXECDIR={machine.root}/libexec\n"}
    found = items(replace(machine, runner=FakePrograms(says), uid=1000), Purpose.RUN)
    assert found["user namespaces"].state is State.WARNING
    assert found["Apptainer"].found == "1.3.0, setuid"


def test_fuse_without_a_device_is_loaded_by_fix_only_as_root(machine: Machine):
    (machine.root / "dev/fuse").chmod(0o600)
    assert items(machine, Purpose.RUN)["FUSE"].repair == f"chmod 666 {machine.root}/dev/fuse"
    (machine.root / "dev/fuse").unlink()
    programs = FakePrograms(ALL | {"modprobe": ""})
    fix = items(replace(machine, uid=0, runner=programs), Purpose.RUN)["FUSE"].fix
    assert fix is not None
    fix.run()
    assert programs.commands[-1].argv == ("modprobe", "fuse")
    assert items(replace(machine, uid=1000), Purpose.RUN)["FUSE"].fix is None


def test_an_old_driver_is_compared_with_each_recipe(machine: Machine):
    facts = replace(machine.facts, gpus=a100s(1), driver="470.82.01")
    found = items(replace(machine, facts=facts), Purpose.RUN)
    assert found["driver"].found == "470.82.01, 1 GPU"
    assert "needs driver 525.60.13 or newer" in found["recipe a100"].found
    assert "recipe cpu" not in found
    assert found["recipe t4"].state is State.WARNING  # compiled for another GPU


def test_the_sifs_that_were_built_are_compared_or_the_one_that_is_named(tmp_path: Path):
    """Of a SIF, what is in it counts, not what its recipe says today."""
    folder, output = ROOT / "recipes", tmp_path / "build"
    output.mkdir()

    def meant(name: str = "") -> list[tuple[str, str, tuple[str, ...]]]:
        return [(one.name, one.cuda, one.gpus) for one in recipes_meant(name, folder, output)]

    assert meant() == []
    assert meant("a100") == [("a100", "12.4", ("A100",))]
    pins = {"python": "3.11", "pytorch": "2.6.0", "cuda": "12.6", "gpus": ["H100"]}
    sif = write_recipe_sif(output / "a100.sif", json.dumps(pins))
    built = [("a100", "12.6", ("H100",))]
    assert meant() == meant("a100") == meant(str(sif)) == built
    (item,) = check_recipes(recipes_meant("a100", folder, output), "580.95.05", ["NVIDIA A100-SXM4-80GB"])
    assert "the recipe compiles for sm_90" in item.found
    foreign = write_recipe_sif(output / "other.sif", "no recipe")
    assert meant() == built
    for name in (str(foreign), "nowhere", "/nowhere.sif"):
        with pytest.raises(EnvbuilderError):
            meant(name)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_driver_libraries_that_apptainer_would_not_find(machine: Machine, *, elsewhere: bool):
    folder = machine.root / "usr/local/nvidia/lib64"
    if elsewhere:
        folder.mkdir(parents=True)
        (folder / "libcuda.so.1").touch()
    facts = replace(machine.facts, gpus=a100s(1), driver="580.95.05")
    cached = "1 libs found in cache `/etc/ld.so.cache'\n\tlibz.so.1 (libc6,x86-64) => /lib/libz.so.1\n"

    def where(cached: str) -> Machine:
        says = ALL | {"/sbin/ldconfig": cached, "ldconfig": cached}
        return replace(machine, facts=facts, runner=FakePrograms(says))

    found = items(where(cached), Purpose.RUN)["driver libraries"]
    place = "/usr/local/nvidia/lib64" if elsewhere else "FOLDER"
    assert found.state is State.WARNING
    assert ("but in /usr/local/nvidia/lib64" in found.found) is elsewhere
    assert f"APPTAINER_CONTAINLIBS={place}/libcuda.so.1,{place}/libnvidia-ml.so.1" in found.repair
    with_them = f"{cached}\tlibcuda.so.1 (libc6,x86-64) => /lib/libcuda.so.1\n"
    assert items(where(with_them), Purpose.RUN)["driver libraries"].state is State.OK
    assert items(replace(machine, facts=facts), Purpose.RUN)["driver libraries"].state is State.UNKNOWN


def bridge(machine: Machine, name: str, control: int | None) -> Path:
    """A PCIe bridge whose ACS says `control`; None as an ordinary user sees it."""
    device = machine.root / "sys/bus/pci/devices" / name
    device.mkdir()
    (device / "class").write_text("0x060400\n")
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x148 << 20 | 1 << 16 | 0x0001)  # AER, then ACS
    struct.pack_into("<IHH", space, 0x148, 1 << 16 | 0x000D, 0x5F, control or 0)
    (device / "config").write_bytes(space[:64] if control is None else space)
    return device / "config"


@pytest.mark.parametrize(("control", "answer"), [(0x1D, True), (0x01, False), (0, False), (None, None)])
def test_acs_is_read_from_the_bridge(machine: Machine, control: int | None, answer: bool | None):
    assert redirects(bridge(machine, "0000:00:01.0", control)) is answer


def test_a_bridge_without_acs_and_one_whose_list_runs_in_a_circle(tmp_path: Path):
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x100 << 20 | 1 << 16 | 0x0001)
    (tmp_path / "config").write_bytes(space)
    assert redirects(tmp_path / "config") is False
    assert redirects(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("control", "groups", "state"),
    [
        (0x1D, "same", State.WARNING),
        (0, "same", State.OK),
        (None, "apart", State.WARNING),
        (None, "same", State.UNKNOWN),
    ],
)
def test_acs_where_only_root_can_read_it_is_unknown(
    machine: Machine, control: int | None, groups: str, state: State
):
    bridge(machine, "0000:00:01.0", control)
    facts = replace(machine.facts, gpus=a100s(2, switch="0000:02:00.0", groups=groups))
    assert items(replace(machine, facts=facts), Purpose.RUN)["ACS"].state is state


def test_an_old_lock_of_a_killed_compilation_is_named(machine: Machine):
    folder = machine.home / ".cache/torch_extensions/py311_cu124/fused"
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    assert "extension locks" not in items(machine, Purpose.RUN)
    later = items(replace(machine, now=machine.now + 7200), Purpose.RUN)["extension locks"]
    assert later.repair == f"rm {folder}/lock  # when nothing compiles"


def test_the_report_says_why_and_how_for_what_is_not_well(machine: Machine):
    seen = examine(replace(machine, facts=replace(machine.facts, shm=64 << 20)), [Purpose.RUN])
    lines = as_text(seen).splitlines()
    at = next(number for number, line in enumerate(lines) if "/dev/shm" in line)
    assert lines[at].split() == ["warning", "/dev/shm", "0.1", "GB"]
    assert [line.strip().partition(":")[0] for line in lines[at + 1 : at + 3]] == ["why", "repair"]
    assert lines[-1] == "nothing is missing"


def test_the_report_ends_with_the_one_thing_to_do_first(machine: Machine):
    assert as_text(examine(machine, [Purpose.BUILD])).endswith(
        "\nnothing is missing; begin with `envbuilder init --example cpu`"
    )
    seen = examine(replace(machine, runner=FakePrograms({}), kernel="4.7.10", uid=1000), [Purpose.BUILD])
    missing = [item for item in seen.items if item.state is State.MISSING]
    rest = f"; {len(missing) - 1} more above" if missing[1:] else ""
    assert as_text(seen).splitlines()[-1] == f"first: {missing[0].repair}{rest}"


def test_the_report_names_a_source_that_does_not_answer_and_its_setting(machine: Machine, tmp_path: Path):
    names = ("DEBIAN_MIRROR", "DEBIAN_SECURITY", "INDEX", "PYTORCH_INDEX", "CUDA_REDIST")
    settings = {f"ENVBUILDER_{name}": f"{tmp_path.as_uri()}/{name}/" for name in names}
    settings |= {"ENVBUILDER_UBUNTU_MIRROR": tmp_path.as_uri()}
    for name in ("DEBIAN_MIRROR", "DEBIAN_SECURITY", "INDEX"):
        (tmp_path / name).mkdir()
    here = probe_machine(
        settings, FakePrograms({}), cache=machine.cache, output=machine.output, recipes=machine.recipes
    )
    seen = examine(replace(machine, reach=here.reach), [Purpose.BUILD])
    rows = [item for item in seen.items if item.subject.code is DoctorCode.SOURCES]
    assert [item.state for item in rows] == [State.OK] * 3 + [State.WARNING] * 2
    for item, name in zip(rows[3:], names[3:], strict=True):
        assert f"let ENVBUILDER_{name} name a mirror of {tmp_path.as_uri()}/{name}/" in item.repair
    assert as_text(seen).splitlines()[-1] == f"first: {rows[3].repair}; 1 more above"
    assert exit_code(seen) == 0


def test_codes_are_the_doctors_own():
    package = Path(cli.__file__).parent
    mine = package / "node/doctor/machine.py"
    others = [path for path in package.rglob("*.py") if path != mine]
    text = "".join(path.read_text() for path in others)
    assert [code for code in DoctorCode if f'"{code.value}"' in text] == []


@pytest.fixture
def site() -> Iterator[Callable[[int], str]]:
    """A server on this machine that answers with one status."""
    with contextlib.ExitStack() as stack:

        def start(status: int) -> str:
            handler = type("Handler", (Quiet,), {"do_GET": lambda self: self.reply(status)})
            return f"http://user:secret@{stack.enter_context(serving(handler))}/"

        yield start


def test_sources_are_asked_at_once_and_shown_without_secrets(site: Callable[[int], str], tmp_path: Path):
    urls = [
        site(404),
        site(503),
        "http://127.0.0.1:9/",
        tmp_path.as_uri() + "/",
        (tmp_path / "no").as_uri() + "/",
    ]
    found = reach(urls, None)
    assert [one.trouble for one in found] == [
        "", "it answers with status 503", "the connection was refused", "", "there is no such folder",
    ]  # fmt: skip
    assert found[0].skew is not None
    assert abs(found[0].skew) < 5
    assert not [one for one in found if "secret" in one.url]


def test_the_python_of_the_single_file_needs_no_virtual_environment(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
):
    for folder in ("base_prefix", "prefix"):
        monkeypatch.setattr(sys, folder, "/home/me/.cache/envbuilder-app/0.1.0-15dda97f/usr")
    (item,) = check_python(machine)
    assert (item.state, item.found) == (
        State.OK,
        f"{platform.python_version()}, of envbuilder's single file",
    )
    for folder in ("base_prefix", "prefix"):
        monkeypatch.setattr(sys, folder, "/usr")
    (item,) = check_python(machine)
    assert item.state is State.WARNING


def test_the_kernel_says_how_good_its_clock_is():
    clock = probe_clock()
    assert clock is None or clock[1] >= 0


def test_a_setting_that_cannot_be_read_is_an_item_of_the_table(tmp_path: Path):
    machine = probe_machine(
        {"ENVBUILDER_INDEX": "foo", "all_proxy": "htp://nowhere"}, ProcessRunner({}), cache=tmp_path / "c",
        output=tmp_path / "o", recipes=lambda _driver, _gpus: (),
    )  # fmt: skip
    found = next(check_sources(machine))
    assert (found.state, found.found) == (State.WARNING, "the settings: ENVBUILDER_INDEX holds `foo`")


@pytest.mark.programs
def test_this_machine_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ENVBUILDER_DEBIAN_MIRROR", tmp_path.as_uri())
    monkeypatch.setenv("ENVBUILDER_INDEX", tmp_path.as_uri())
    monkeypatch.setenv("ENVBUILDER_PYTORCH_INDEX", tmp_path.as_uri())
    monkeypatch.setenv("ENVBUILDER_CUDA_REDIST", str(tmp_path))
    runner = ProcessRunner(os.environ)
    machine = probe_machine(
        os.environ, runner, cache=tmp_path / "c", output=tmp_path / "o", recipes=lambda _driver, _gpus: ()
    )
    found = items(machine)
    assert found["runner"].found == "sandbox"
    assert found["Apptainer"].state is State.OK
    assert found["source"].state is State.OK
    assert not (tmp_path / "c").exists()


ORDINARY = """
import json, os, sys
from pathlib import Path
from envbuilder.core.process import ProcessRunner
from envbuilder.node.doctor import Purpose, examine
from envbuilder.node.doctor.machine import probe_machine
env = dict(os.environ, HOME="/nonexistent")
machine = probe_machine(env, ProcessRunner(env), cache=Path("/nonexistent/c"), output=Path("/nonexistent/o"), recipes=lambda _driver, _gpus: ())
items = examine(machine, list(Purpose)).items
print(json.dumps({item.subject.name: [item.state, item.found] for item in items}))
"""


@pytest.mark.programs
def test_this_machine_as_an_ordinary_user(tmp_path: Path):
    sources = {
        f"ENVBUILDER_{name}": "file:///usr/"
        for name in ("DEBIAN_MIRROR", "INDEX", "PYTORCH_INDEX", "CUDA_REDIST")
    }
    command = (sys.executable, "-c", ORDINARY)
    ended = subprocess.run(
        as_user(STRANGER, *command) if os.geteuid() == 0 else command,
        env=os.environ | sources,
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ended.stdout)
    assert found["runner"] == ["ok", "sandbox"]
    assert found["user namespaces"][0] == "ok"
    assert found["FUSE"][0] == "ok"
    assert found["cache"] == ["ok", "/nonexistent/c is not there yet"]
    if os.geteuid() == 0 and Path("/var/run/docker.sock").exists():
        refused = "runs, and does not let you in: permission denied on its socket"
        assert found["Docker engine"] == ["warning", refused]


@pytest.mark.programs
@pytest.mark.usefixtures("clean_environment")
def test_the_command_answers_with_the_exit_code_of_what_it_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    for name in ("DEBIAN_MIRROR", "INDEX", "PYTORCH_INDEX", "CUDA_REDIST"):
        monkeypatch.setenv(f"ENVBUILDER_{name}", tmp_path.as_uri())
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "cache"))
    assert cli.run(["doctor", "--for", "build", "--json"]) == 8
    answer = json.loads(capsys.readouterr().out)
    assert (answer["status"], answer["exit_code"]) == ("failed", 8)
    assert set(answer["data"]["looks"][0]) == {
        "for", "code", "name", "state", "found", "why", "repair", "fixable",
    }  # fmt: skip
    assert {"EB811", "EB812"} <= {one["code"] for one in answer["findings"]}
    assert cli.run(["doctor", "--for", "lunch"]) == 2
