"""`envbuilder detect`: this machine or a saved one, for a person and as JSON, and the profile that it saves."""

import json
from pathlib import Path

import pytest

from envbuilder.compat.host_file import load_host_facts
from envbuilder.core.errors import UsageError
from envbuilder.node.detect import READS, detect_here, detect_pasted
from envbuilder.node.nccl.facts import Facts
from envbuilder.plan.make import need_files, site_files
from envbuilder.recipe.load import load
from tests.support import command_line
from tests.support.command_line import Call
from tests.support.runner import FakeRunner

FOUR_T4 = "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\n" + "".join(
    f"GPU{row}\t" + "\t".join(" X " if row == column else "SYS" for column in range(4)) + "\t0-7\n"
    for row in range(4)
)
TEAM = """\
2: ens4f0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq master team0 state UP
    link/ether 02:00:00:00:00:01 brd ff:ff:ff:ff:ff:ff
3: team0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state UP
    link/ether 02:00:00:00:00:01 brd ff:ff:ff:ff:ff:ff
    inet 192.0.2.7/24 brd 192.0.2.255 scope global team0
4: docker0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc noqueue state DOWN
    link/ether 02:00:00:00:00:02 brd ff:ff:ff:ff:ff:ff
    inet 172.17.0.1/16 brd 172.17.255.255 scope global docker0
5: virbr0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc noqueue state DOWN
    link/ether 02:00:00:00:00:03 brd ff:ff:ff:ff:ff:ff
    inet 192.168.122.1/24 brd 192.168.122.255 scope global virbr0
"""


pytestmark = pytest.mark.usefixtures("clean_environment")
call = command_line.call


@pytest.fixture
def node(tmp_path: Path) -> Path:
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / "topo.txt").write_text(FOUR_T4)
    (folder / "ip.txt").write_text(TEAM)
    return folder


def answer(call: Call, *arguments: object) -> tuple[int, dict[str, object]]:
    told = call("detect", *arguments, "--json")
    return told.code, json.loads(told.out)


def test_a_folder_of_saved_outputs_is_one_machine(node: Path, call: Call):
    code, envelope = answer(call, "--from", str(node))
    data = envelope["data"]
    assert (code, data["gpus"], data["links"][0]) == (0, 4, ["X", "SYS", "SYS", "SYS"])
    assert [one["name"] for one in data["interfaces"]] == ["ens4f0", "team0", "docker0", "virbr0"]
    assert {one["name"]: one["value"] for one in data["settings"]} == {
        "NCCL_P2P_DISABLE": "1", "NCCL_SOCKET_IFNAME": "team0", "GLOO_SOCKET_IFNAME": "team0",
    }  # fmt: skip
    assert envelope["findings"] == []


def test_the_number_of_gpus_is_null_where_it_is_not_known(tmp_path: Path, call: Call):
    """Rows without a header have cells of NICs, too."""
    (tmp_path / "topo.txt").write_text("GPU0\t X \tNV4\tPIX\tSYS\t0-15\nGPU1\tNV4\t X \tSYS\tPIX\t0-15\n")
    code, envelope = answer(call, "--from", str(tmp_path))
    assert (code, envelope["data"]["gpus"], envelope["findings"][0]["code"]) == (0, None, "EB660")
    (tmp_path / "topo.txt").write_text("\tGPU0\tGPU1\tNIC0\nGPU0\t X \tNV4\tPIX\nGPU1\tNV4\t X \tSYS\n")
    _, envelope = answer(call, "--from", str(tmp_path))
    assert envelope["data"]["gpus"] == 2
    assert envelope["data"]["nics"] == [{"name": "NIC0", "links": ["PIX", "SYS"]}]


def test_the_recipe_decides_which_nccl_is_judged_for(node: Path, call: Call):
    _, envelope = answer(call, "--from", str(node), "--recipe", "h100")
    assert [one["name"] for one in envelope["data"]["settings"]] == ["NCCL_P2P_DISABLE"]
    assert envelope["data"]["facts"]["nccl"].startswith("2.30")
    assert call("detect", "--from", node, "--recipe", "nobody").code == 2


def test_damage_and_what_is_no_output_at_all_are_warnings(tmp_path: Path, call: Call):
    (tmp_path / "cut.txt").write_text("".join(FOUR_T4.splitlines(keepends=True)[:3]))
    code, envelope = answer(call, "--from", str(tmp_path / "cut.txt"))
    assert (code, envelope["data"]["settings"], envelope["findings"][0]["code"]) == (0, [], "EB660")
    (tmp_path / "prose.txt").write_text("it hangs\n")
    code, envelope = answer(call, "--from", str(tmp_path / "prose.txt"))
    assert (code, envelope["data"]["gpus"], envelope["findings"][0]["code"]) == (0, None, "EB661")


SAMPLES = {
    "`nvidia-smi topo -m`": ("links", "\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n"),
    "`nvidia-smi topo -p2p r`": ("p2p", " \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n\nLegend:\n  X    = Self\n  OK   = Status Ok\n"),
    "`nvidia-smi`": ("gpus", "|   0  NVIDIA A100-SXM4-40GB          On  | 00000000:07:00.0 Off |                    0 |\n"),
    "`ip addr`": ("interfaces", "2: eno1: <BROADCAST,UP,LOWER_UP> mtu 1500 state UP\n    inet 192.0.2.7/24 scope global eno1\n"),
    "`ip route`": ("routes", "default via 192.0.2.1 dev eno1 metric 100\n"),
    "`ifconfig`": ("interfaces", "eno1: flags=4163<UP,BROADCAST,RUNNING>  mtu 1500\n        inet 192.0.2.7  netmask 255.255.255.0\n"),
    "`lscpu`": ("cpu", "Vendor ID:                       AuthenticAMD\n"),
    "`python -m torch.utils.collect_env`": ("torch", "PyTorch version: 2.6.0+cu124\nNvidia driver version: 550.54.15\n"),
    "a log with `NCCL_DEBUG=INFO`": ("nccl", "n1:7:7 [0] NCCL INFO Bootstrap : Using eno1:192.0.2.7<0>\nNCCL version 2.21.5+cuda12.4\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", READS)
def test_what_is_said_to_be_read_is_read_and_stands_where_detect_is_explained(name: str, tmp_path: Path):
    field, text = SAMPLES[name]
    (tmp_path / "saved.txt").write_text(text)
    facts, findings = detect_pasted(tmp_path, Facts())
    assert getattr(facts, field)
    assert not findings
    page = Path(__file__).parents[2] / "docs/trouble/hang.md"
    assert f"| {name} | {READS[name]} |" in page.read_text(encoding="utf-8").splitlines()


def test_a_file_that_is_not_there_is_wrong_use(tmp_path: Path):
    with pytest.raises(UsageError, match="cannot be read"):
        detect_pasted(tmp_path / "none", Facts())


def test_what_is_saved_is_read_by_check(node: Path, tmp_path: Path, call: Call):
    saved = tmp_path / "node.json"
    assert call("detect", "--from", node, "--save", saved).code == 0
    profile = load_host_facts(saved).profile
    assert profile is not None
    assert profile.facts == detect_pasted(node, Facts())[0]
    assert call("check", "t4", "--host", saved).code == 0


def test_this_machine_is_judged_without_gpus(call: Call):
    facts, _ = detect_here({}, FakeRunner(), Facts(nccl="2.21.5"))
    assert facts.interfaces
    assert facts.nccl == "2.21.5"
    assert [name for name, _ in facts.sources if name == "gpus"]
    code, envelope = answer(call)
    assert (code, envelope["command"]) == (0, "detect")


def test_what_a_recipe_says_of_nccl_becomes_files_of_the_image(node: Path, tmp_path: Path, call: Call):
    saved = tmp_path / "site.json"
    assert call("detect", "--from", node, "--save", saved).code == 0
    data = json.loads(saved.read_text())
    saved.write_text(json.dumps(data | {"fixed": {"NCCL_IB_HCA": "=mlx5_0"}}))
    head = Path("recipes/cpu.yaml").read_text().partition("extensions:")[0]
    files = {}
    for name, line in (("auto", ""), ("off", "nccl: off\n"), ("profile", "nccl: {profile: site.json}\n")):
        (tmp_path / f"{name}.yaml").write_text(head + line)
        files[name] = dict(site_files(load(tmp_path / f"{name}.yaml"), None))
    assert (files["auto"], files["off"]) == ({}, {"opt/envbuilder/nccl.json": '{"mode": "off"}\n'})
    assert files["profile"]["etc/nccl.conf"] == "NCCL_IB_HCA==mlx5_0\n"
    baked = json.loads(files["profile"]["opt/envbuilder/nccl.json"])
    assert (baked["mode"], len(baked["profile"]["settings"])) == ("profile", 3)
    assert dict(site_files(load(tmp_path / "off.yaml"), saved)) == files["profile"]


def test_a_build_bakes_the_profile_of_a_host(node: Path, tmp_path: Path, call: Call):
    saved = tmp_path / "site.json"
    call("detect", "--from", node, "--save", saved)
    plain, baked = (call("build", "cpu", "--dry-run", *host).out for host in ((), ("--host", saved)))
    assert "opt/envbuilder/nccl.json" in baked
    assert "opt/envbuilder/nccl.json" not in plain
    (tmp_path / "wrong.yaml").write_text("nothing: here\n")
    assert call("build", "cpu", "--dry-run", "--host", tmp_path / "wrong.yaml").code == 2


def test_an_image_knows_the_oldest_driver_that_it_works_with():
    assert need_files(load(Path("recipes/a100.yaml"))) == (
        ("opt/envbuilder/needs.json", '{"driver": "525.60.13"}\n'),
    )
    assert need_files(load(Path("recipes/cpu.yaml"))) == ()


def test_a_name_of_the_users_that_no_interface_has_is_told():
    def codes(name: str) -> list[str]:
        _, findings = detect_here({"NCCL_SOCKET_IFNAME": name}, FakeRunner(), Facts())
        return [finding.code for finding in findings]

    assert (codes("nosuch0"), codes("lo"), codes("")) == (["EB662"], [], [])
