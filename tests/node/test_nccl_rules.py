"""What NCCL is told: every rule in the case it is for, and never NCCL_P2P_DISABLE beside NVLink."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuilder.node.nccl.decide import HINTS, decide
from envbuilder.node.nccl.facts import (
    Address,
    Facts,
    Gpu,
    Interface,
    Job,
    Measured,
    RdmaPort,
    Route,
    is_nvlink,
)
from envbuilder.node.nccl.interface import names_matching, nccl_choice, spelled
from envbuilder.node.nccl.profile import Profile, misfit, parse_profile, profile_data
from envbuilder.node.nccl.report import as_text, user_variable
from envbuilder.node.nccl.rules import INTERFACE_RULES, P2P_RULES
from envbuilder.node.pasted import parse_pasted

T4 = "Tesla T4"
GH200 = "NVIDIA GH200 120GB"


def host(links: str, count: int = 4, *, name: str = T4, iommu: str | None = None, **more: object) -> Facts:
    """GPUs whose pairs all have one link, or several given as GPU0-GPU1, GPU0-GPU2, …"""
    pairs = iter(links.split() * 100)
    square = [["X"] * count for _ in range(count)]
    for number in range(count):
        for other in range(number + 1, count):
            square[number][other] = square[other][number] = next(pairs)
    gpus = tuple(Gpu(name=name, iommu=iommu) for _ in range(count))
    return replace(Facts(gpus=gpus, links=tuple(map(tuple, square)), virtual=""), **more)  # type: ignore[arg-type]


def told(facts: Facts) -> dict[str, str]:
    return {one.name: one.value for one in decide(facts).settings}


def rule(facts: Facts, *names: str) -> str:
    """The rule that decided about the first of these variables."""
    decision = decide(facts)
    return next(one.rule for one in (*decision.settings, *decision.left) if one.name in names)


def measured(facts: Facts, *, passed: bool, without: bool = True) -> Facts:
    return replace(
        facts, measured=Measured(passed, without, facts.driver, facts.kernel, facts.nccl, facts.gpu_names)
    )


OFF, NVL = {"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_LEVEL": "NVL"}
CASES = {
    "four T4s across the sockets": (host("SYS"), OFF, "cpu_interconnect"),
    "the same as old drivers say it": (host("SOC"), OFF, "cpu_interconnect"),
    "two, nothing known of the IOMMU": (host("SYS", 2), OFF, "cpu_interconnect"),
    "two, passed through": (host("SYS", 2, iommu="identity"), {}, "two_untranslated"),
    "two, no IOMMU": (host("SYS", 2, iommu="off"), {}, "two_untranslated"),
    "two, passed through inside a virtual machine": (host("SYS", 2, iommu="identity", virtual="kvm"), OFF, "cpu_interconnect"),
    "four, passed through": (host("SYS", 4, iommu="identity"), OFF, "cpu_interconnect"),
    "all NVLink": (host("NV12", 8), {}, "nvlink_everywhere"),
    "all NVLink, translating": (host("NV12", 8, iommu="DMA"), {}, "nvlink_everywhere"),
    "NVLink pairs": (host("NV4 SYS SYS SYS SYS NV4"), {}, "nvlink_somewhere"),
    "NVLink pairs, translating": (host("NV4 SYS SYS SYS SYS NV4", iommu="DMA-FQ"), NVL, "nvlink_translating"),
    "NVLink pairs, translating in a virtual machine": (host("NV4 SYS SYS", 3, iommu="DMA", virtual="kvm"), {}, "nvlink_somewhere"),
    "superchips, all NVLink": (host("NV6", name=GH200, iommu="DMA", cpu="arm"), {}, "nvlink_everywhere"),
    "superchips whose fabric is down": (host("SYS", name="NVIDIA GB200", iommu="DMA-FQ", cpu="arm"), {}, "superchips"),
    "two superchips without NVLink": (host("SYS", 2, name=GH200, iommu="DMA", cpu="arm"), {}, "superchips"),
    "superchips and another GPU": (host("SYS", 2, gpus=(Gpu(GH200), Gpu(T4))), OFF, "cpu_interconnect"),
    "PCIe GPUs of an Arm host, translating": (host("PIX", 2, name="NVIDIA H100 PCIe", iommu="DMA", cpu="arm"), OFF, "translating"),
    "switch, translating": (host("PIX", iommu="DMA"), OFF, "translating"),
    "switch, translating in a virtual machine": (host("PIX", iommu="DMA", virtual="kvm"), {}, "mixture"),
    "switch, translating, bare metal or not unknown": (host("PIX", iommu="DMA", virtual=None), {}, "mixture"),
    "switch": (host("PIX"), {}, "mixture"),
    "host bridges": (host("PHB NODE SYS"), {}, "mixture"),
    "RTX 4090, old driver": (host("PHB", 2, name="NVIDIA GeForce RTX 4090", driver="535.104.05"), OFF, "rtx_40"),
    "RTX 4090, repaired driver": (host("PHB", 2, name="NVIDIA GeForce RTX 4090", driver="550.40.07"), {}, "mixture"),
    "RTX 4090, driver unknown": (host("PHB", 2, name="NVIDIA GeForce RTX 4090"), {}, "mixture"),
    "RTX 4000 of another generation": (host("PHB", 2, name="Quadro RTX 4000", driver="535.104.05"), {}, "mixture"),
    "one GPU": (host("SYS", 1), {}, "too_few"),
    "no GPU": (Facts(gpus=()), {}, "too_few"),
    "nothing known": (Facts(), {}, "unclear"),
    "GPUs without links": (Facts(gpus=(Gpu(),) * 4), {}, "unclear"),
    "links in doubt": (host("SYS", links_doubt="cut"), {}, "unclear"),
    "measured: hangs": (measured(host("PIX"), passed=False), OFF, "measured_failed"),
    "measured: hangs beside NVLink": (measured(host("NV4 PIX PIX", 3), passed=False), NVL, "measured_failed"),
    "measured: hangs, links unknown": (measured(Facts(gpus=(Gpu(name=T4),) * 2), passed=False), NVL, "measured_failed"),
    "measured: hangs either way": (measured(host("PIX"), passed=False, without=False), {}, "mixture"),
    "measured: works across sockets": (measured(host("SYS"), passed=True), {}, "measured_passed"),
    "measured: works although translating": (measured(host("PIX", iommu="DMA"), passed=True), {}, "measured_passed"),
    "measured with another driver": (replace(measured(host("SYS", driver="535.1"), passed=True), driver="570.1"), OFF, "cpu_interconnect"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_rule_decides_its_case(case):
    facts, values, name = CASES[case]
    assert told(facts) == values
    assert rule(facts, "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL") == name


def test_every_p2p_rule_is_tried():
    assert {name for _, _, name in CASES.values()} == {one.name for one in P2P_RULES}


def test_each_setting_carries_reason_evidence_and_when_it_lapses():
    decision = decide(host("SYS", iommu="DMA", sources=(("links", "NVML"),)))
    (one,) = decision.settings
    assert "CPU interconnect" in one.reason
    assert one.evidence == ("4 GPUs, pairs: 6 SYS (NVML)", "IOMMU groups of the GPUs: DMA")
    assert one.lapses == "when `detect --measure` passes"
    assert {left.name: bool(left.reason) for left in decision.left} == dict.fromkeys(
        ("NCCL_P2P_LEVEL", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE"),
        True,
    )
    assert any("iommu=pt" in hint for hint in decision.hints)


@pytest.mark.parametrize("name", ["NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"])
@pytest.mark.parametrize("value", ["", "0", "SYS"])
def test_whatever_the_user_set_keeps_its_group_as_it_is(name, value):
    (one,) = decide(host("SYS")).settings
    assert user_variable(one, {name: value}) == name
    assert user_variable(one, {}) == ""
    assert "the user's own" in as_text(host("SYS"), decide(host("SYS")), {name: value})


LINKS = st.sampled_from(["SYS", "SOC", "NODE", "PHB", "PXB", "PIX", "NV1", "NV4", "NV18", "N/A"])


def _any_host(links, count, nvlink, iommu, virtual, name, driver, doubt, verdict) -> Facts:
    pairs = count * (count - 1) // 2
    links[nvlink % pairs] = "NV2"
    facts = host(
        " ".join(links), count, iommu=iommu, virtual=virtual, driver=driver, links_doubt=doubt, name=name
    )
    return facts if verdict is None else measured(facts, passed=verdict[0], without=verdict[1])


ANY = st.builds(
    _any_host,
    st.lists(LINKS, min_size=28, max_size=28), st.integers(2, 8), st.integers(0, 27), st.sampled_from([None, "DMA", "DMA-FQ", "identity", "off"]),
    st.sampled_from([None, "", "kvm"]), st.sampled_from([None, T4, "NVIDIA GeForce RTX 4090"]), st.sampled_from([None, "470.1", "570.2"]),
    st.sampled_from(["", "cut"]), st.sampled_from([None, (True, True), (False, True), (False, False)]),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(ANY)
def test_no_host_with_an_nvlink_pair_ever_gets_p2p_disabled(facts):
    assert any(map(is_nvlink, facts.pairs))
    assert "NCCL_P2P_DISABLE" not in told(facts)


@settings(max_examples=100, deadline=None)
@given(ANY)
def test_a_profile_keeps_every_fact_and_setting(facts):
    profile = Profile(facts, decide(facts).settings)
    assert parse_profile(json.loads(json.dumps(profile_data(profile)))) == profile
    assert misfit(profile, facts) == ""


# Interfaces.


def port(name: str, *addresses: str, **more: object) -> Interface:
    places = tuple(Address(text.partition("/")[0], int(text.partition("/")[2] or 24)) for text in addresses)
    values = {"up": True, "running": True, "addresses": places} | more
    return Interface(name, **values)  # type: ignore[arg-type]


LO = port("lo", "127.0.0.1/8", kind="loopback")
ENO1 = port("eno1", "192.0.2.7", hardware=True)
ENO2 = port("eno2", "198.51.100.7", hardware=True)
DOCKER = port("docker0", "172.17.0.1", kind="bridge", running=False, hardware=False)
VIRBR = port("virbr0", "192.168.122.1", kind="bridge", running=False, hardware=False)
BRIDGE = port("br-0123456789ab", "172.18.0.1", kind="bridge", hardware=False)
VETH = port("veth12", "fe80::1/64", hardware=False)
TUN = port("tun0", "10.8.0.2", kind="tunnel", hardware=False)
IB = port("ib0", "10.1.0.7", kind="infiniband", hardware=True)


def net(*interfaces: Interface, nccl: str | None = "2.21.5", **more: object) -> Facts:
    return replace(Facts(interfaces=interfaces, nccl=nccl), **more)  # type: ignore[arg-type]


OLD, NEW = (2, 21, 5), (2, 28, 3)


@pytest.mark.parametrize(
    ("interfaces", "old", "new"),
    [
        ((LO, ENO1, DOCKER), ("eno1",), ("eno1",)),
        ((LO, ENO1, DOCKER, VIRBR), ("eno1", "virbr0"), ("eno1",)),
        ((LO, ENO1, IB), ("ib0",), ("ib0",)),
        ((LO, port("ib0", "10.1.0.7", running=False), ENO1), ("ib0",), ("eno1",)),
        ((LO, port("docker0", "172.17.0.1")), ("docker0",), ("docker0",)),
        ((LO, port("virbr0", "192.168.122.1")), ("virbr0",), ("lo",)),
        ((port("virbr0", "192.168.122.1"),), ("virbr0",), ("virbr0",)),
        ((LO, VETH, BRIDGE), ("veth12", "br-0123456789ab"), ("veth12", "br-0123456789ab")),
        ((port("eno1", "::1/128"), LO), ("lo",), ("lo",)),
        ((Interface("eno1"), port("eno2")), (), ()),
        (tuple(port(f"e{number}", "192.0.2.1") for number in range(20)), tuple(f"e{number}" for number in range(16)), tuple(f"e{number}" for number in range(16))),
    ],
)  # fmt: skip
def test_the_choice_of_nccl_is_simulated_by_version(interfaces, old, new):
    assert nccl_choice(interfaces, OLD) == old
    assert nccl_choice(interfaces, None) == old
    assert nccl_choice(interfaces, NEW) == new


def test_the_syntax_of_the_variable_is_that_of_nccl():
    names = ("lo", "docker0", "eth1", "eth10", "veth1")
    assert names_matching(names, "eth1") == ("eth1", "eth10")
    assert names_matching(names, "=eth1") == ("eth1",)
    assert names_matching(names, "^docker,lo") == ("eth1", "eth10", "veth1")
    assert names_matching(names, "^=eth1,lo") == ("docker0", "eth10", "veth1")
    assert nccl_choice((LO, DOCKER, ENO1), OLD, "^docker0") == ("lo", "eno1")
    assert nccl_choice((LO, DOCKER, ENO1), OLD, "eth9") == ()
    aliased = replace(ENO1, addresses=(*(ENO1.addresses or ()), Address("169.254.1.1", 16, "eno1:avahi")))
    assert nccl_choice((LO, aliased), OLD) == ("eno1", "eno1:avahi")
    for others, name in (((ENO1,), "eno1"), ((ENO1, port("eno10")), "=eno1"), ((aliased,), "=eno1")):
        assert spelled("eno1", others) == name


BAD = {
    "virbr0 before 2.28.3": VIRBR, "a bridge of Docker": BRIDGE, "a veth": VETH, "a tunnel": TUN,
    "no carrier": port("eno9", "203.0.113.9", running=False, hardware=True), "down": port("eno9", "203.0.113.9", up=False, hardware=True),
    "link-local": port("eno9", "169.254.3.3/16", hardware=True), "a port of a bond": port("eno9", "203.0.113.9", master="bond0"),
    "flannel": port("flannel.1", "10.244.0.0/32"), "cni": port("cni0", "10.244.0.1"), "USB": port("eno9", "203.0.113.9", usb=True),
    "a BMC": port("enp0s20f0u1u6", "192.168.1.2"), "podman": port("podman0", "10.88.0.1"), "tailscale": port("tailscale0", "100.64.0.3/32"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_beside_an_unfit_interface_the_right_one_is_named_for_nccl_and_gloo(case):
    facts = net(LO, ENO1, BAD[case], DOCKER)
    assert told(facts) == {"NCCL_SOCKET_IFNAME": "eno1", "GLOO_SOCKET_IFNAME": "eno1"}
    assert nccl_choice(facts.interfaces or (), OLD, told(facts)["NCCL_SOCKET_IFNAME"]) == ("eno1",)


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (net(LO, ENO1, ENO2, TUN, routes=(Route("eno2", 100), Route("eno1", 200))), "eno2"),
        (net(LO, ENO1, ENO2, TUN, routes=(Route("eno2", 0),), job=Job(2, "node2", "eno1")), "eno1"),
        (net(LO, ENO1, ENO2, TUN, routes=(Route("eno2", 0),), job=Job(2, "node2", "tun0")), "eno2"),
        (net(LO, ENO1, TUN, routes=(Route("tun0", 50),)), "eno1"),
        (net(LO, port("eno1", master="team0"), port("team0", "192.0.2.7", kind="team", lower=("eno1",)), VIRBR), "team0"),
        (net(LO, port("eno1", master="bond0", hardware=True), port("bond0", "192.0.2.7", kind="bond", hardware=False), port("bond0.7", "203.0.113.7", kind="vlan", lower=("bond0",), hardware=False, up=False), VIRBR), "=bond0"),
        (net(LO, port("eth0", master="br0", kind="ethernet"), port("br0", "192.0.2.7", kind="ethernet"), VIRBR), "br0"),
        (net(LO, ENO1, port("eno10", "fe80::5/64", hardware=True)), "=eno1"),
    ],
)  # fmt: skip
def test_the_interface_is_the_peers_else_the_default_routes_else_the_only_one(facts, name):
    assert told(facts) == {"NCCL_SOCKET_IFNAME": name, "GLOO_SOCKET_IFNAME": name.lstrip("=")}


@pytest.mark.parametrize(
    ("facts", "hint"),
    [
        (net(LO, ENO1, DOCKER), ""),
        (net(LO, ENO1, VIRBR, nccl="2.28.3"), ""),
        (net(LO, ENO1, BRIDGE, job=Job(nodes=1)), ""),
        (net(LO, ENO1, ENO2), "if only one reaches the other nodes"),
        (net(LO, ENO1, port("eno2", "192.0.2.8", hardware=True)), "one subnet"),
        (net(LO, ENO1, ENO2, VIRBR), "`NCCL_SOCKET_IFNAME=eno1` or `NCCL_SOCKET_IFNAME=eno2`"),
        (net(LO, ENO1, ENO2, VIRBR, routes=(Route("eno1"), Route("eno2"))), "`NCCL_SOCKET_IFNAME=eno1` or"),
        (net(LO, IB, ENO1), ""),
        (net(LO, BRIDGE, VETH), ""),
        (net(LO, Interface("eno1", up=True)), ""),
        (net(LO, ENO1, Interface("eno3", up=True, addresses=(Address(""),))), ""),
        (net(LO, port("eth0", "100.64.0.4"), nccl=None), ""),
        (Facts(), ""),
    ],
)  # fmt: skip
def test_nothing_is_set_where_the_choice_is_good_or_the_right_one_is_not_known(facts, hint):
    assert told(facts) == {}
    hints = decide(facts).hints
    assert hint in " ".join(hints)
    assert bool(hints) == bool(hint)


def test_every_interface_rule_has_decided_something():
    cases = (net(LO, ENO1), net(LO, ENO1, TUN), net(LO, ENO1, ENO2, TUN), net(job=Job(nodes=1)), Facts())
    assert {rule(facts, "GLOO_SOCKET_IFNAME") for facts in cases} == {one.name for one in INTERFACE_RULES}


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from([ENO1, ENO2, DOCKER, VIRBR, BRIDGE, VETH, TUN, IB, *BAD.values()]),
        unique_by=lambda one: one.name,
    ),
    st.sampled_from([None, "2.18.1", "2.28.3", "2.30.7"]),
)
def test_what_is_named_is_one_fit_interface_and_never_a_list_of_exclusions(interfaces, nccl):
    facts = net(LO, *interfaces, nccl=nccl)
    values = told(facts)
    if values:
        wanted = values["NCCL_SOCKET_IFNAME"]
        assert not wanted.startswith("^")
        assert nccl_choice(facts.interfaces or (), OLD, wanted) == (values["GLOO_SOCKET_IFNAME"],)
        assert values["GLOO_SOCKET_IFNAME"] in ("eno1", "eno2", "ib0")


# Hints.


def without_nvlink(*lone: int) -> tuple[tuple[str, ...], ...]:
    """Return the links of a board of eight GPUs, of which these have no NVLink."""
    return tuple(
        tuple("X" if one == other else "SYS" if {one, other} & {*lone} else "NV18" for other in range(8))
        for one in range(8)
    )


PORTS = (RdmaPort("mlx5_0", 1, "ACTIVE", "InfiniBand"),)
HSN = (port("hsn0", "10.5.0.7", hardware=True), port("hsn1", "10.5.0.8", hardware=True))
SPLIT = tuple(Gpu(switch="0000:01:00.0", iommu_group=str(number)) for number in range(2))
HINT_CASES = {
    "hint_iommu": (host("PIX", iommu="DMA"), host("NV4", iommu="DMA")),
    "hint_acs": (host("PIX", 2, gpus=SPLIT), host("PIX", 2, gpus=SPLIT, virtual="kvm")),
    "hint_fabric": (host("NV18", 2, p2p=(("X", "NS"), ("NS", "X"))), host("PIX", 2, p2p=(("X", "NS"), ("NS", "X")))),
    "hint_lone_gpu": (replace(host("NV18", 8), links=without_nvlink(5)), replace(host("NV18", 8), links=without_nvlink(5), gpus=(*host("NV18", 7).gpus, Gpu(name="DGX Display")))),
    "hint_amd": (host("PHB", cpu="amd", nccl="2.21.5"), host("PHB", cpu="amd", nccl="2.26.2")),
    "hint_driver": (host("PIX", driver="545.23.06"), host("PIX", driver="550.54.14")),
    "hint_shm": (host("PIX", shm=64 << 20), host("PIX", 1, shm=64 << 20)),
    "hint_verbs": (Facts(verbs=False, rdma=(RdmaPort("mlx5_0", 1, "ACTIVE", "InfiniBand"),)), Facts(verbs=False, rdma=(RdmaPort("mlx5_0", 1, "DOWN", "InfiniBand"),))),
    "hint_ports": (Facts(rdma=(RdmaPort("mlx5_0", 1, "ACTIVE", "InfiniBand"), RdmaPort("mlx5_1", 1, "ACTIVE", "Ethernet"))), Facts(rdma=(RdmaPort("mlx5_0", 1, "ACTIVE", "InfiniBand"),))),
    "hint_imex": (host("NV18", name="NVIDIA GB200", imex=()), host("NV18", name="NVIDIA GB200", imex=("channel0",))),
    "hint_grace_nic": (host("NV6", name=GH200, nccl="2.25.1", rdma=PORTS), host("NV6", name=GH200, nccl="2.27.3", rdma=PORTS)),
    "hint_slingshot": (Facts(interfaces=HSN, plugin=False), Facts(interfaces=HSN, plugin=True)),
    "hint_topology": (Facts(topology_file="/var/run/x.xml", container="docker"), Facts(topology_file="/var/run/x.xml", container="")),
    "hint_virtual": (host("PIX", 2, virtual="kvm", p2p=(("X", "OK"), ("OK", "X"))), host("PIX", 2, p2p=(("X", "OK"), ("OK", "X")))),
    "hint_cumem": (Facts(nccl="2.26.2", container="docker"), Facts(nccl="2.26.5", container="docker")),
    "hint_measured": (replace(measured(host("PIX", driver="535.1"), passed=True), driver="570.1"), measured(host("PIX"), passed=True)),
}  # fmt: skip


@pytest.mark.parametrize("one", HINTS, ids=lambda one: one.name)
def test_each_hint_is_given_in_its_case_and_in_no_other(one):
    given_in, not_in = HINT_CASES[one.name]
    assert one.judge(given_in)
    assert one.judge(not_in) is None
    assert one.judge(Facts()) is None


def test_the_gpu_whose_nvlink_is_broken_is_named():
    board = host("NV18", 8)
    (hint,) = decide(replace(board, links=without_nvlink(5))).hints
    assert hint.startswith("GPU5 has no NVLink, and the 7 other GPUs have NV18 to each other")
    for links in (board.links, without_nvlink(4, 5), host("NV4 SYS SYS SYS SYS NV4").links):
        assert decide(replace(board, links=links)).hints == ()


@pytest.mark.parametrize("name", [GH200, "NVIDIA GH200 480GB", "NVIDIA GH200 144G HBM3e"])
def test_gh200_needs_no_imex_channel_although_its_name_has_gb_in_it(name):
    assert decide(host("NV6", name=name, imex=(), job=Job(nodes=4))).hints == ()


@pytest.mark.parametrize("name", ["NVIDIA GB200", "NVIDIA GB300"])
def test_a_job_on_several_nodes_of_a_rack_needs_an_imex_channel(name):
    (hint,) = decide(host("NV18", name=name, imex=(), job=Job(nodes=2))).hints
    assert "/dev/nvidia-caps-imex-channels" in hint


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (host("NV6", name=GH200, nccl="2.25.1", rdma=PORTS), "NCCL_NET_GDR_LEVEL=PHB"),
        (host("NV6", name=GH200, nccl="2.26.2", rdma=PORTS), "NCCL_NET_GDR_C2C=1"),
        (host("PIX", 2, name="NVIDIA H100 PCIe", iommu="DMA", cpu="arm"), "iommu.passthrough=1"),
        (Facts(interfaces=HSN, plugin=False), "`hsn0`, `hsn1`: a Slingshot network"),
    ],
)
def test_a_hint_names_the_variable_of_this_version_and_processor(facts, words):
    assert any(words in hint for hint in decide(facts).hints)


@pytest.mark.parametrize("name", ["hint_imex", "hint_grace_nic", "hint_slingshot"])
def test_what_concerns_other_nodes_is_not_said_of_a_job_on_one(name):
    one = next(hint for hint in HINTS if hint.name == name)
    facts, _ = HINT_CASES[name]
    assert one.judge(replace(facts, job=Job(nodes=2)))
    assert one.judge(replace(facts, job=Job(nodes=1))) is None


def test_each_rule_says_when_and_why_it_applies():
    assert all(
        rule.when and rule.then and rule.why and rule.evidence for rule in (*P2P_RULES, *INTERFACE_RULES)
    )


def test_a_profile_that_does_not_fit_says_what_differs():
    facts = host("SYS", driver="535.1", kernel="6.1")
    profile = Profile(facts, decide(facts).settings)
    assert misfit(profile, facts) == ""
    assert misfit(profile, replace(facts, driver=None, links=None)) == ""
    assert misfit(profile, replace(facts, driver="570.1")) == "driver: 535.1 in the profile, 570.1 here"
    assert misfit(profile, host("PIX", driver="535.1", kernel="6.1")).startswith("links between GPUs")
    assert misfit(
        profile, replace(facts, gpus=facts.gpus[:2] if facts.gpus else None, links=None)
    ).startswith("GPUs")
    named = net(LO, ENO1, TUN)
    assert (
        misfit(Profile(named, decide(named).settings), net(LO, ENO2)) == "interfaces: there is no `eno1` here"
    )


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ([], "$"), ({"version": 2}, "$.version"), ({"facts": {"gpu": []}}, "$.facts.gpu"), ({"facts": {"shm": "1"}}, "$.facts.shm"),
        ({"settings": [{"name": "A"}]}, "$.settings[0]"), ({"facts": {"links": ["X"]}}, "$.facts.links[0]"), ({"fixed": {"A": 1}}, "$.fixed.A"),
        ({"facts": {"interfaces": [{"name": 1}]}}, "$.facts.interfaces[0].name"), ({"facts": {"gpus": {}}}, "$.facts.gpus"),
    ],
)  # fmt: skip
def test_a_profile_that_cannot_be_read_names_the_place(data, where):
    with pytest.raises(ValueError, match=r"^\$") as caught:
        parse_profile(data)
    assert str(caught.value).startswith(f"{where}:")


def test_the_short_form_of_a_profile_is_read():
    profile = parse_profile(
        {"driver": "535.1", "gpus": ["A100", "A100"], "fixed": {"NCCL_IB_HCA": "=mlx5_0"}}
    )
    assert (profile.facts.driver, profile.facts.gpu_names) == ("535.1", ("A100", "A100"))
    assert profile.fixed == (("NCCL_IB_HCA", "=mlx5_0"),)


def test_the_answer_says_facts_reasons_and_what_was_left_alone():
    facts = parse_pasted(
        {
            "node.txt": "\tGPU0\tGPU1\tmlx5_bond_0\nGPU0\t X \tSYS\tPIX\nGPU1\tSYS\t X \tNODE\nmlx5_bond_0\tPIX\tNODE\t X\n2: eno1: <UP,LOWER_UP> mtu 1500\n    link/ether 02:00:00:00:00:01\n    inet 192.0.2.7/24 scope global eno1\n"
        }
    )
    text = as_text(facts, decide(facts), {})
    for part in (
        "NCCL_P2P_DISABLE=1",
        "because every pair",
        "lapses when",
        "left unset",
        "NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME: what NCCL takes",
        "not known: driver",
        "[node.txt]",
        "  links       GPU0  GPU1    [node.txt, `nvidia-smi topo -m`]\n",
        "  GPU1        SYS   X\n",
        "  mlx5_bond_0 PIX   NODE\n",
    ):
        assert part in text
