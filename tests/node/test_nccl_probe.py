"""A machine is read from trees of files that stand for it: GPUs, IOMMU, switches, bonds, teams, VLANs, InfiniBand, jobs."""

# ruff: noqa: N801, N802, N818 - the names of a driver that is stood in for are NVIDIA's

import socket
import time
import types
from pathlib import Path

import pytest

from envbuilder.node.nccl.decide import decide
from envbuilder.node.nccl.facts import Address, Facts, Route
from envbuilder.node.nccl.gpus import probe_gpus
from envbuilder.node.nccl.network import probe_network, system_addresses
from envbuilder.node.nccl.probe import ProbeIO, expand_hosts, probe, way_to

INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu vme\n"


class Machine:
    """A tree to which hardware is added."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.root = top
        for folder in ("sys/bus/pci/devices", "sys/class/net", "proc", "dev/shm"):
            (top / folder).mkdir(parents=True)
        self.write("proc/cpuinfo", INTEL)
        self.write("proc/sys/kernel/osrelease", "6.1.0\n")
        self.addresses: dict[str, tuple[Address, ...]] = {}

    def write(self, path: str, text: str = "") -> Path:
        place = self.top / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return place

    def gpu(self, path: str, *, numa: int = 0, group: int | None = None, kind: str | None = None) -> str:
        """A GPU below the bridges of `path`, as the kernel nests them."""
        bus = path.rpartition("/")[2]
        device = self.top / f"sys/devices/pci0000:00/{path}"
        device.mkdir(parents=True)
        for name, text in (("vendor", "0x10de"), ("class", "0x030200"), ("numa_node", str(numa))):
            (device / name).write_text(f"{text}\n")
        (self.top / f"sys/bus/pci/devices/{bus}").symlink_to(device)
        if group is not None:
            place = self.top / f"sys/kernel/iommu_groups/{group}"
            place.mkdir(parents=True, exist_ok=True)
            (device / "iommu_group").symlink_to(place)
            if kind is not None:
                (place / "type").write_text(f"{kind}\n")
        return bus

    def port(self, name: str, index: int, *addresses: str, **files: str) -> Path:
        """An interface; `files` are those of its folder."""
        folder = self.top / f"sys/class/net/{name}"
        usual = {"ifindex": str(index), "flags": "0x1003", "type": "1", "operstate": "up", "carrier": "1"}
        for file, text in (usual | files).items():
            self.write(f"sys/class/net/{name}/{file.replace('__', '/')}", f"{text}\n")
        self.addresses[name] = tuple(Address(one, 24) for one in addresses)
        return folder

    def hardware(self, name: str, path: str = "devices/pci0000:00/0000:01:00.0") -> None:
        (self.top / f"sys/{path}").mkdir(parents=True, exist_ok=True)
        (self.top / f"sys/class/net/{name}/device").symlink_to(self.top / f"sys/{path}")

    def enslave(self, port: str, master: str) -> None:
        (self.top / f"sys/class/net/{port}/master").symlink_to(self.top / f"sys/class/net/{master}")
        (self.top / f"sys/class/net/{master}/lower_{port}").symlink_to(self.top / f"sys/class/net/{port}")

    def probe(self, **more: object) -> Facts:
        return probe(
            ProbeIO(root=self.root, addresses=lambda: self.addresses, loads=lambda library: False, **more)
        )  # type: ignore[arg-type]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


class Nvml(types.SimpleNamespace):
    """The answers of a driver in the form of `pynvml`."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    class NVMLError_InvalidArgument(NVMLError):
        pass

    def __init__(
        self, buses: list[str], levels: int = 50, wires: dict[int, list[object]] | None = None, p2p: int = 0
    ) -> None:
        self.buses, self.level, self.wires, self.p2p = buses, levels, wires or {}, p2p

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"535.104.05"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.buses)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "Tesla T4"

    def nvmlDeviceGetPciInfo(self, handle: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(busId=f"0000{self.buses[handle].upper()}")

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        return self.level

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, index: int) -> int:
        return self.p2p if index == 0 else 5

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        wires = self.wires.get(handle, [])
        if not wires:
            raise self.NVMLError_NotSupported
        if link >= len(wires):
            raise self.NVMLError_InvalidArgument
        return int(wires[link] is not None)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        return 2 if self.wires[handle][link] == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(busId=f"0000{self.wires[handle][link]}".encode())


A, B, C = "0000:3b:00.0", "0000:af:00.0", "0000:d8:00.0"


def test_a_machine_without_gpus_says_so(machine: Machine):
    facts = machine.probe()
    assert facts.gpus == ()
    assert facts.source("gpus") == "there is no NVIDIA GPU on the PCI bus"
    assert facts.driver is None
    assert facts.source("driver") == "the NVIDIA driver is not loaded"
    assert decide(facts).settings == ()


@pytest.mark.parametrize("device", ["dev/nvidiactl", "dev/dxg"])
def test_the_number_of_gpus_is_unknown_where_a_driver_is_here_and_silent(machine: Machine, device: str):
    machine.write(device)
    facts = probe_gpus(machine.root, None, lambda _: None)
    assert facts.gpus is None
    assert "do not answer" in facts.source("gpus")


def test_nothing_that_can_be_read_is_unknown_and_not_false(tmp_path: Path):
    facts = probe(ProbeIO(root=tmp_path / "empty", addresses=lambda: None))
    unknown = ("gpus", "links", "interfaces", "routes", "rdma", "shm", "virtual", "cpu")
    assert [getattr(facts, name) for name in unknown] == [None] * 8
    assert "cannot be read" in facts.source("gpus")
    assert decide(facts).settings == ()


def test_nvml_tells_gpus_links_and_statuses(machine: Machine):
    for bus in (A, B):
        machine.gpu(f"0000:00:01.0/{bus}", numa=1, group=7, kind="DMA-FQ")
    facts = machine.probe(nvml=Nvml([A, B], p2p=1))
    assert (facts.driver, facts.gpu_names) == ("535.104.05", ("Tesla T4",) * 2)
    assert (facts.links, facts.p2p) == ((("X", "SYS"), ("SYS", "X")), (("X", "CNS"), ("CNS", "X")))
    places = [(gpu.bus, gpu.numa, gpu.iommu, gpu.iommu_group) for gpu in facts.gpus or ()]
    assert places == [(bus, 1, "DMA-FQ", "7") for bus in (A, B)]
    assert {name for name, source in facts.sources if source == "NVML"} == {"gpus", "driver", "links", "p2p"}


@pytest.mark.parametrize(
    ("level", "link"), [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")]
)
def test_every_level_has_its_word(machine: Machine, level: int, link: str):
    machine.gpu(f"0000:00:01.0/{A}")
    assert machine.probe(nvml=Nvml([A, B], level)).pairs == (link,)


@pytest.mark.parametrize(
    ("wires", "pairs"),
    [
        ({0: [B, B, None], 1: [A, A]}, ("NV2", "SYS", "SYS")),
        ({0: ["switch"] * 18, 1: ["switch"] * 18, 2: ["switch"] * 18}, ("NV18", "NV18", "NV18")),
        ({0: ["switch"] * 12, 1: ["switch"] * 4 + [None]}, ("NV4", "SYS", "SYS")),
        ({}, ("SYS", "SYS", "SYS")),
    ],
)
def test_nvlinks_are_counted_to_their_ends(
    machine: Machine, wires: dict[int, list[object]], pairs: tuple[str, ...]
):
    machine.gpu(f"0000:00:01.0/{A}")
    assert machine.probe(nvml=Nvml([A, B, C], wires=wires)).pairs == pairs


def test_a_driver_that_says_nvlink_in_its_statuses_alone_is_believed(machine: Machine):
    machine.gpu(f"0000:00:01.0/{A}")
    nvml = Nvml([A, B])
    nvml.nvmlDeviceGetP2PStatus = lambda one, other, index: 0
    assert machine.probe(nvml=nvml).pairs == ("NV1",)


def test_links_that_nvml_cannot_tell_stay_unknown(machine: Machine):
    machine.gpu(f"0000:00:01.0/{A}")
    nvml = Nvml([A, B])

    def fail(*arguments: object) -> int:
        raise Nvml.NVMLError("GPU is lost")

    nvml.nvmlDeviceGetTopologyCommonAncestor = fail
    facts = machine.probe(nvml=nvml)
    assert (facts.links, facts.source("links"), len(facts.gpus or ())) == (None, "NVML: GPU is lost", 2)
    nvml.nvmlInit = fail
    assert machine.probe(nvml=nvml).source("gpus") == "PCI bus; NVML and `nvidia-smi` do not answer"


HEAD = "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
TOPO = f"{HEAD}GPU0\t X \tPHB\tPIX\t0-7\t0\nGPU1\tPHB\t X \tSYS\t8-15\t1\nNIC0\tPIX\tSYS\t X \n\nNIC Legend:\n\n  NIC0: mlx5_0\n"


@pytest.mark.parametrize(
    ("topo", "pairs", "nics"),
    [
        (TOPO, ("PHB",), [("mlx5_0", ("PIX", "SYS"))]),
        ("\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n", ("PHB",), []),
        (TOPO.replace("GPU1\tPHB\t X ", "GPU1\tPHB\tPHB"), (), []),
        (TOPO.replace("GPU1\tPHB", "GPU1\t?"), (), []),
        (TOPO.replace("\tSYS\t8-15\t1", ""), (), []),
        ("\tGPU0\nGPU0\t X \n", (), []),
        ("", (), []),
    ],
)
def test_without_nvml_nvidia_smi_is_asked(
    machine: Machine, topo: str, pairs: tuple[str, ...], nics: list[tuple[str, tuple[str, ...]]]
):
    machine.gpu(f"0000:00:01.0/{A}")
    asked = []

    def run(argv: tuple[str, ...]) -> str | None:
        asked.append(argv[1])
        if argv[1] == "topo":
            return topo if argv[2] == "-m" else None
        return f"0, Tesla T4, 0000{A.upper()}, 535.1\n1, Tesla T4, 0000{B.upper()}, 535.1\n"

    facts = machine.probe(run=run)
    assert (facts.pairs, facts.p2p, facts.driver) == (pairs, None, "535.1")
    assert [gpu.bus for gpu in facts.gpus or ()] == [A, B]
    assert [(nic.name, nic.links) for nic in facts.nics or ()] == nics
    assert facts.source("links") == ("nvidia-smi topo -m" if pairs else "")
    assert asked == ["--query-gpu=index,name,pci.bus_id,driver_version", "topo", "topo"]


def test_without_either_the_kernel_knows_models_and_places(machine: Machine):
    machine.gpu(f"0000:00:01.0/{A}")
    machine.write(f"proc/driver/nvidia/gpus/{A}/information", "Model: \t\t Tesla T4\nIRQ: 1\n")
    machine.write(
        "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Wed\n"
    )
    facts = machine.probe()
    assert (facts.gpu_names, facts.driver, facts.links) == (("Tesla T4",), "470.82.01", None)


@pytest.mark.parametrize(
    ("group", "kind", "cmdline", "iommu"),
    [
        (3, "identity", "", "identity"), (3, "DMA", "", "DMA"), (3, "DMA-FQ", "", "DMA-FQ"),
        (3, None, "quiet iommu=pt", "identity"), (3, None, "quiet intel_iommu=on", None), (None, None, "", "off"),
    ],
)  # fmt: skip
def test_the_type_of_the_iommu_group_is_read(
    machine: Machine, group: int | None, kind: str | None, cmdline: str, iommu: str | None
):
    machine.gpu(f"0000:00:01.0/{A}", group=group, kind=kind)
    machine.write("proc/cmdline", cmdline)
    assert [gpu.iommu for gpu in machine.probe().gpus or ()] == [iommu]


def test_acs_shows_in_the_groups_of_gpus_below_one_switch(machine: Machine):
    for number, bus in enumerate(("0000:04:00.0", "0000:05:00.0")):
        machine.gpu(f"0000:00:01.0/0000:01:00.0/0000:02:0{number}.0/{bus}", group=number, kind="identity")
    machine.gpu("0000:00:02.0/0000:09:00.0", group=9, kind="identity")
    facts = machine.probe()
    assert [gpu.switch for gpu in facts.gpus or ()] == ["0000:01:00.0", "0000:01:00.0", ""]
    assert any("ACS is on at the PCIe switch 0000:01:00.0" in hint for hint in decide(facts).hints)


def test_two_t4s_across_the_sockets_are_told_by_their_iommu(machine: Machine):
    for number, bus in enumerate((A, B)):
        machine.gpu(f"0000:00:0{number + 1}.0/{bus}", numa=number, group=number, kind="identity")
    assert decide(machine.probe(nvml=Nvml([A, B]))).settings == ()
    for number in range(2):
        machine.write(f"sys/kernel/iommu_groups/{number}/type", "DMA\n")
    assert [one.name for one in decide(machine.probe(nvml=Nvml([A, B]))).settings] == ["NCCL_P2P_DISABLE"]


@pytest.mark.parametrize(
    ("files", "virtual"),
    [
        ({"proc/cpuinfo": INTEL}, ""),
        ({"proc/cpuinfo": INTEL.replace("vme", "hypervisor"), "sys/class/dmi/id/sys_vendor": "QEMU"}, "qemu"),
        ({"proc/cpuinfo": INTEL.replace("vme", "hypervisor")}, "hypervisor"),
        ({"sys/class/dmi/id/sys_vendor": "Amazon EC2", "sys/class/dmi/id/product_name": "p4d.metal"}, ""),
        ({"proc/cpuinfo": "CPU implementer : 0x41\n", "sys/class/dmi/id/sys_vendor": "Amazon EC2"}, "amazon"),
        ({"proc/cpuinfo": "CPU implementer : 0x41\n", "sys/class/dmi/id/sys_vendor": "Supermicro"}, ""),
        ({"proc/cpuinfo": "CPU implementer : 0x41\n"}, None),
        ({"proc/sys/kernel/osrelease": "5.15.90.1-microsoft-standard-WSL2"}, "wsl"),
    ],
)
def test_a_virtual_machine_is_known(machine: Machine, files: dict[str, str], virtual: str | None):
    for path, text in files.items():
        machine.write(path, text)
    assert machine.probe().virtual == virtual


def test_a_container_is_known(machine: Machine):
    assert machine.probe().container == ""
    machine.write(".singularity.d/runscript")
    assert machine.probe().container == "apptainer"


def test_bonds_teams_bridges_vlans_and_tunnels_are_told_apart(machine: Machine):
    machine.port("lo", 1, "127.0.0.1", type="772")
    for number, name in enumerate(("eno1", "eno2", "ens4f0", "ens4f1", "eth0"), 2):
        machine.port(name, number)
        machine.hardware(name)
    machine.port("bond0", 10, "192.0.2.7", bonding__mode="802.3ad")
    machine.port("team0", 11, "198.51.100.7")
    machine.port("br0", 12, "203.0.113.7", bridge__stp_state="0")
    machine.port("bond0.7", 13, "192.0.2.77", uevent="DEVTYPE=vlan")
    machine.port("tun0", 14, "10.8.0.1", type="65534", tun_flags="0x1001")
    machine.port("wlp1s0", 15, "192.168.1.9", uevent="DEVTYPE=wlan")
    machine.port("docker0", 16, "172.17.0.1", bridge__stp_state="0", carrier="0", operstate="down")
    machine.port("enp0s20u1", 17, "192.168.7.2")
    machine.hardware("enp0s20u1", "devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0")
    masters = {"eno1": "bond0", "eno2": "bond0", "ens4f0": "team0", "ens4f1": "team0", "eth0": "br0"}
    for port, master in masters.items():
        machine.enslave(port, master)
    (machine.top / "sys/class/net/bond0.7/lower_bond0").symlink_to(machine.top / "sys/class/net/bond0")
    facts = machine.probe()
    found = {one.name: one for one in facts.interfaces or ()}
    assert {name: one.kind for name, one in found.items()} == {
        "lo": "loopback", "eno1": "ethernet", "eno2": "ethernet", "ens4f0": "ethernet", "ens4f1": "ethernet", "eth0": "ethernet",
        "bond0": "bond", "team0": "team", "br0": "bridge", "bond0.7": "vlan", "tun0": "tunnel", "wlp1s0": "wireless", "docker0": "bridge",
        "enp0s20u1": "ethernet",
    }  # fmt: skip
    assert found["eno1"].master == "bond0"
    assert (found["bond0"].lower, found["bond0.7"].lower) == (("eno1", "eno2"), ("bond0",))
    assert (found["docker0"].running, found["enp0s20u1"].usb) == (False, True)
    assert (found["eno1"].hardware, found["bond0"].hardware) == (True, False)
    assert [one.name for one in facts.interfaces or ()][:2] == ["lo", "eno1"]


def test_the_node_with_a_team_and_virbr0_gets_the_team(machine: Machine):
    machine.port("ens4f0", 2)
    machine.hardware("ens4f0")
    machine.port("team0", 3, "192.0.2.7")
    machine.enslave("ens4f0", "team0")
    for number, (name, address) in enumerate((("docker0", "172.17.0.1"), ("virbr0", "192.168.122.1")), 4):
        machine.port(name, number, address, bridge__stp_state="0", carrier="0", operstate="down")
    site = machine.top / "site"
    (site / "nvidia_nccl_cu12-2.21.5.dist-info").mkdir(parents=True)
    settings = {one.name: one.value for one in decide(machine.probe(packages=(site,))).settings}
    assert settings == {"NCCL_SOCKET_IFNAME": "team0", "GLOO_SOCKET_IFNAME": "team0"}
    (site / "nvidia_nccl_cu12-2.21.5.dist-info").rename(site / "nvidia_nccl_cu12-2.29.7.dist-info")
    assert decide(machine.probe(packages=(site,))).settings == ()


def test_default_routes_come_with_their_metric(machine: Machine):
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
    default = "{}\t00000000\t0100A8C0\t3\t0\t0\t{}\t00000000\n"
    rows = default.format("ib0", 200) + default.format("eno1", 100)
    machine.write("proc/net/route", f"{head}{rows}eno1\t0000A8C0\t0\t1\t0\t0\t100\t00FFFFFF\n")
    assert machine.probe().routes == (Route("eno1", 100), Route("ib0", 200))
    machine.write("proc/net/route", head)
    row = f"{'0' * 32} 00 {'0' * 32} 00 {'f' * 32} 00000064 1 0 3 eno1\n"
    machine.write("proc/net/ipv6_route", row + row.replace("00000064", "ffffffff").replace("eno1", "lo"))
    assert machine.probe().routes == (Route("eno1", 100),)


def test_infiniband_and_roce_ports_are_told_and_libibverbs_is_looked_for(machine: Machine):
    for device, layer in (("mlx5_0", "InfiniBand"), ("mlx5_1", "Ethernet")):
        for name, text in (("state", "4: ACTIVE"), ("link_layer", layer), ("rate", "200 Gb/sec (4X HDR)")):
            machine.write(f"sys/class/infiniband/{device}/ports/1/{name}", f"{text}\n")
    facts = machine.probe()
    assert [(port.device, port.port, port.state, port.layer) for port in facts.rdma or ()] == [
        ("mlx5_0", 1, "ACTIVE", "InfiniBand"), ("mlx5_1", 1, "ACTIVE", "Ethernet"),
    ]  # fmt: skip
    assert facts.verbs is False
    hints = " ".join(decide(facts).hints)
    assert "no libibverbs here" in hints
    assert "`NCCL_IB_HCA==mlx5_0`" in hints


class Superchip(Nvml):
    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA GB200"


def test_imex_channels_are_those_that_may_be_opened_and_read_on_superchips_alone(machine: Machine):
    machine.write("proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\n")
    buses = [machine.gpu(f"0000:00:01.0/{bus}") for bus in (A, B)]
    nvml = Superchip(buses, wires={0: ["switch"] * 18, 1: ["switch"] * 18})
    facts = machine.probe(nvml=nvml)
    assert (facts.cpu, facts.imex) == ("arm", ())
    assert any("IMEX channel" in hint for hint in decide(facts).hints)
    machine.write("dev/nvidia-caps-imex-channels/channel0")
    facts = machine.probe(nvml=nvml)
    assert facts.imex == ("channel0",)
    assert not any("IMEX" in hint for hint in decide(facts).hints)
    assert machine.probe(nvml=Nvml(buses)).imex is None


def test_beside_slingshot_the_plugin_that_nccl_would_load_is_looked_for(machine: Machine):
    machine.port("eno1", 2, "192.0.2.7")
    assert machine.probe().plugin is None
    machine.port("hsn0", 3, "10.5.0.7")
    assert (machine.probe().plugin, machine.probe().source("plugin")) == (False, "dlopen of libnccl-net.so")
    facts = machine.probe(environment={"NCCL_NET_PLUGIN": "ofi"})
    assert facts.source("plugin") == "dlopen of libnccl-net-ofi.so"


def job(machine: Machine, environment: dict[str, str], ways: dict[str, str] | None = None) -> Facts:
    return machine.probe(environment=environment, way_to=(ways or {}).get)


def test_the_job_tells_its_nodes_and_the_way_to_another(machine: Machine):
    machine.port("eno1", 2, "192.0.2.7")
    machine.port("ib0", 3, "10.1.0.7", type="32")
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[01-02],m3", "SLURM_JOB_NUM_NODES": "3"}
    slurm["SLURMD_NODENAME"] = "n01"
    found = job(machine, slurm | {"MASTER_ADDR": "n01"}, {"n02": "10.1.0.7"}).job
    assert (found.nodes, found.peer, found.peer_device, found.slurm_id) == (3, "n02", "ib0", "7")
    found = job(machine, {"MASTER_ADDR": "head", "GROUP_WORLD_SIZE": "2"}, {"head": "192.0.2.7"}).job
    assert (found.nodes, found.peer, found.peer_device) == (2, "head", "eno1")
    assert job(machine, {"MASTER_ADDR": "head"}, {"head": "127.0.1.1"}).job.peer_device is None
    local = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
    for alone in ({"SLURM_NNODES": "1"}, local, {"MASTER_ADDR": "localhost"}):
        assert job(machine, alone).job.nodes == 1
    assert job(machine, {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}).job.nodes is None
    assert job(machine, {}).source("job") == ""


@pytest.mark.parametrize(
    ("written", "hosts"),
    [
        ("n1", ["n1"]), ("n[08-10]", ["n08", "n09", "n10"]), ("a[1,3],b", ["a1", "a3", "b"]), ("", []),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]), ("n[1-2]-ib", ["n1-ib", "n2-ib"]), ("n[1-9999999]", ["n1-9999999"]),
    ],
)  # fmt: skip
def test_the_short_form_of_slurm_is_written_out(written: str, hosts: list[str]):
    assert expand_hosts(written) == hosts


def test_the_versions_in_the_environment_are_those_of_its_packages(machine: Machine):
    site = machine.top / "site"
    for name in ("torch-2.6.0+cu124", "nvidia_nccl_cu12-2.21.5", "torchvision-0.21"):
        (site / f"{name}.dist-info").mkdir(parents=True)
    facts = machine.probe(packages=(site,))
    assert (facts.torch, facts.nccl, facts.source("nccl")) == ("2.6.0+cu124", "2.21.5", str(site))


def test_a_topology_file_of_the_vendor_is_seen(machine: Machine):
    assert machine.probe().topology_file == ""
    machine.write("var/run/nvidia-topologyd/virtualTopology.xml")
    assert machine.probe().topology_file == "/var/run/nvidia-topologyd/virtualTopology.xml"


def test_our_addresses_are_those_of_getifaddrs():
    found = system_addresses()
    assert found is not None
    assert Address("127.0.0.1", 8) in found["lo"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.connect(("127.0.0.1", 9))
        assert udp.getsockname()[0] == way_to("127.0.0.1")
    assert way_to("no-such-host.invalid") is None


def test_this_machine_is_read_in_less_than_150_ms():
    def timed() -> float:
        begun = time.perf_counter()
        facts = probe(ProbeIO())
        assert facts.interfaces
        return time.perf_counter() - begun

    assert min(timed() for _ in range(3)) < 0.15


def test_the_kernels_order_is_that_of_the_index(machine: Machine):
    machine.port("zz0", 2)
    machine.port("aa0", 10)
    machine.write("sys/class/net/bonding_masters", "")
    assert [one.name for one in probe_network(machine.root, lambda: None).interfaces or ()] == ["zz0", "aa0"]
    assert probe_gpus(machine.root, None, lambda argv: None).gpus == ()
