"""What people paste: every shape of `nvidia-smi topo`, `ip`, `ifconfig` and NCCL's log, whole or damaged."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuilder.node.nccl.decide import decide
from envbuilder.node.nccl.facts import Facts, Route
from envbuilder.node.pasted import find_matrices, parse_pasted

CORPUS = Path(__file__).parents[3] / "shared/corpus/hosts"

TABS = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tPHB\tNODE\t0-7\t0\t\tN/A\nGPU1\tPHB\t X \tPIX\t0-7\t0\t\tN/A\nNIC0\tNODE\tPIX\t X \t\t\n"
BLANKS = """\
        GPU0    GPU1    GPU2    CPU Affinity    NUMA Affinity
GPU0     X      NV4     SYS     0-15            0
GPU1    NV4      X      SYS     0-15            0
GPU2    SYS     SYS      X      16-31           1
"""
LEGEND = """
Legend:

  X    = Self
  SYS  = across the sockets
  NODE = across host bridges of one node
  PHB  = across one host bridge
  PXB  = several bridges
  PIX  = at most one bridge
"""
NVLINK_LEGEND = LEGEND + "  NV#  = a bonded set of # NVLinks\n"


def pasted(text: str) -> Facts:
    return parse_pasted({"paste.txt": text})


def two(link: str) -> tuple[tuple[str, ...], ...]:
    return (("X", link), (link, "X"))


WHOLE = {
    "tabs and a NIC": (TABS, two("PHB")),
    "underlined header": (TABS.replace("\tGPU0\tGPU1", "\t\x1b[4mGPU0\tGPU1", 1).replace("ID\n", "ID\x1b[0m\n", 1), two("PHB")),
    "underlined header without the escape": (
        TABS.replace("\tGPU0\tGPU1", "\t[4mGPU0\tGPU1", 1).replace("ID\n", "ID[0m\n", 1),
        two("PHB"),
    ),
    "carriage returns": (TABS.replace("\n", "\r\n"), two("PHB")),
    "no indent of the header": (TABS.lstrip(), two("PHB")),
    "indented as a whole": ("".join(f"      {line}\n" for line in TABS.splitlines()), two("PHB")),
    "prompt on the header line": (f"me@node:~$ nvidia-smi topo -m  {TABS.strip()}", two("PHB")),
    "comment marks": ("".join(f"// {line}\n" for line in TABS.splitlines()), two("PHB")),
    "quoted mail": ("".join(f"> {line}\n" for line in TABS.splitlines()), two("PHB")),
    "a fence and a stray back-quote": (f"```\n{TABS}```\n", two("PHB")),
    "header repeated in prose": (f"- **topology:** {TABS.splitlines()[0]}\n\n```\n{TABS}```", two("PHB")),
    "twice the same": (TABS + "\n" + TABS, two("PHB")),
    "legend": (TABS + NVLINK_LEGEND, two("PHB")),
    "blanks, three GPUs": (BLANKS, (("X", "NV4", "SYS"), ("NV4", "X", "SYS"), ("SYS", "SYS", "X"))),
    "SOC of old drivers": ("        GPU0    GPU1    mlx4_0  CPU Affinity\nGPU0     X      SOC     PHB     0-3\nGPU1    SOC      X      SOC     4-7\nmlx4_0  PHB     SOC      X\n" + LEGEND.replace("SYS ", "SOC "), two("SOC")),
    "no affinity columns": ("     GPU0 GPU1\nGPU0 X    PIX\nGPU1 PIX  X\n", two("PIX")),
    "a number after the row": ("      GPU0  GPU1\nGPU0   X    NV2   NUMA 0\nGPU1  NV2    X    NUMA 1\n", two("NV2")),
    "bars, affinity in front": ("| CPU Affinity | | GPU0 | GPU1 |\n|---|---|---|---|\n| 0-7 | GPU0 | X | NV4 |\n| 8-15 | GPU1 | NV4 | X |\n", two("NV4")),
    "glued NIC heading and cells": ("\tGPU0\tGPU1\tNIC0NIC1\tCPU Affinity\nGPU0\t X \tNV18\tPIX\tNODE\t0-3\nGPU1\tNV18\t X \tNODEPXB\t0-3\nNIC0\tPIX\tNODE\t X \tPIX\nNIC1\tNODE\tPXB\tPIX\t X \n", two("NV18")),
    "affinity wrapped in the word": ("     GPU0 GPU1 CPU Affi          nity\nGPU0  X   SYS  0-17,36-          53\nGPU1 SYS   X   18-35,54          -71\n", two("SYS")),
    "lines wrapped in the affinity": ("\tGPU0\tGPU1\tCPU Aff\ninity\nGPU0\t X \tNODE\t0-1\n5\nGPU1\tNODE\t X \t0-1\n5\n", two("NODE")),
    "lines wrapped in a cell": ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNO\nDE\t0-15\nGPU1\tNODE\t X \t0-15\n", two("NODE")),
    "header wrapped between GPUs": ("\tGPU0\nGPU1\tCPU Affinity\nGPU0\t X \tPXB\t0-15\nGPU1\tPXB\t X \t0-15\n", two("PXB")),
}  # fmt: skip


@pytest.mark.parametrize("case", WHOLE)
def test_a_whole_matrix_is_read_exactly(case):
    text, links = WHOLE[case]
    facts = pasted(text)
    assert facts.links == links
    assert len(facts.gpus or ()) == len(links)
    assert (facts.damage, facts.links_doubt) == ((), "")


ROWS = BLANKS.splitlines(keepends=True)
TORN = {
    "a row cut off": "".join(ROWS[:-1]),
    "no header": "".join(ROWS[1:]),
    "no rows": ROWS[0],
    "a cell lost": BLANKS.replace(
        "NV4     SYS     0-15            0\nGPU1", "NV4     0-15            0\nGPU1"
    ),
    "a cell changed": BLANKS.replace("GPU1    NV4", "GPU1    NV2"),
    "an unknown word": BLANKS.replace("NV4     SYS", "NV4     5YS"),
    "rows swapped": ROWS[0] + ROWS[2] + ROWS[1] + ROWS[3],
    "a row twice": BLANKS + ROWS[1],
    "re-flowed": " ".join(line.strip() for line in ROWS[:2])
    + " "
    + " ".join(line.strip() for line in ROWS[2:]),
    "rows re-flowed": ROWS[0] + "GPU0 X NV4 SYS 0-15 0 GPU1 NV4\nX SYS 0-15 0 GPU2 SYS\nSYS X 16-31 1\n",
    "more rows than the header has": ROWS[0].replace("    GPU2", "") + "".join(ROWS[1:]),
    "a GPU missing in the header": BLANKS.replace("GPU1    GPU2", "GPU2", 1),
    "X off the diagonal": BLANKS.replace("GPU2    SYS     SYS      X ", "GPU2    SYS     X        X "),
    "not available": BLANKS.replace("SYS", "N/A"),
    "two machines": BLANKS + "\n" + TABS,
    "two that differ": BLANKS + "\n" + BLANKS.replace("NV4", "NV2"),
    "status words in it": BLANKS.replace("NV4", "OK "),
}


@pytest.mark.parametrize("case", TORN)
def test_a_damaged_matrix_is_said_to_be_and_decides_nothing(case):
    facts = pasted(TORN[case])
    assert facts.damage
    assert facts.links is None
    assert decide(facts).settings == ()


def test_a_whole_block_of_gpus_decides_although_the_rows_of_nics_were_cut():
    facts = pasted(
        "        GPU0    GPU1    NIC0    NIC1\nGPU0     X      SYS     PIX     SYS\nGPU1    SYS      X      SYS     PIX\n"
    )
    assert facts.links == two("SYS")
    assert facts.damage == ("paste.txt: cut: no row for NIC0, NIC1",)
    assert [one.name for one in decide(facts).settings] == ["NCCL_P2P_DISABLE"]


CELLS = "GPU0     X      NV4     PIX     SYS     0-15\nGPU1    NV4      X      SYS     PIX     0-15\n"
ADAPTERS = "NIC0    PIX     SYS      X      SYS\nNIC1    SYS     PIX     SYS      X\n"


@pytest.mark.parametrize(
    ("rows", "gpus"),
    [
        (CELLS + ADAPTERS, 2),
        (CELLS, None),  # there may be more GPUs, or adapters
        (CELLS.partition("\n")[0] + "\n", None),
        (CELLS.partition("\n")[2] + ADAPTERS, None),  # GPU0 is missing
        ("".join(ROWS[1:]), 3),
        (ROWS[1], None),
        ("", None),
    ],
)
def test_rows_without_a_header_count_no_nic_as_a_gpu(rows: str, gpus: int | None):
    facts = pasted(rows)
    assert (None if facts.gpus is None else len(facts.gpus)) == gpus
    assert bool(facts.damage) == bool(rows)
    assert facts.links is None


NAMED = "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_bond_0\n"


@pytest.mark.parametrize(
    ("text", "nics"),
    [
        (TABS, [("NIC0", ("NODE", "PIX"))]),
        ("        GPU0    GPU1    NIC0    NIC1    CPU Affinity\n" + CELLS + ADAPTERS + LEGEND + NAMED,
         [("mlx5_0", ("PIX", "SYS")), ("mlx5_bond_0", ("SYS", "PIX"))]),
        ("  GPU0 GPU1 NIC0 NVMe0 mlx5_1\nGPU0 X SYS PXB PXB SYS\nGPU1 SYS X SYS SYS PHB\n",
         [("NIC0", ("PXB", "SYS")), ("mlx5_1", ("SYS", "PHB"))]),
        ("  GPU0 GPU1 NIC0 NIC1\nGPU0 X SYS PXB\nGPU1 SYS X SYS\n", []),  # whose cells are missing
        ("  GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n", []),
    ],
)  # fmt: skip
def test_the_nics_are_read_with_their_links_to_the_gpus(text: str, nics: list[tuple[str, tuple[str, ...]]]):
    assert [(nic.name, nic.links) for nic in pasted(text).nics or ()] == nics


@pytest.mark.parametrize("hint", ["$ nvidia-smi topo -mp\n", ""])
def test_a_matrix_without_nvlink_of_topo_mp_decides_nothing(hint):
    text = "        GPU0    GPU1    CPU Affinity\nGPU0     X      SYS     0-7\nGPU1    SYS      X      8-15\n"
    assert decide(pasted(text)).settings[0].name == "NCCL_P2P_DISABLE"
    facts = pasted(hint + text + ("" if hint else LEGEND))
    assert "NVLink" in facts.links_doubt
    assert decide(facts).settings == ()


def test_the_matrix_with_nvlink_counts_where_both_were_saved():
    plain = "\tGPU0\tGPU1\nGPU0\t X \t{0}\nGPU1\t{0}\t X \n"
    texts = {"m.txt": plain.format("NV4"), "mp.txt": "nvidia-smi topo -mp\n" + plain.format("SYS")}
    assert parse_pasted(texts).links == two("NV4")


@pytest.mark.parametrize(
    "layout",
    [" \tGPU0\tGPU1\t\n GPU0\tX\t{0}\t\n GPU1\t{0}\tX\t\n", "     GPU0 GPU1\n GPU0 X    {0}\n GPU1 {0}  X\n"],
)
@pytest.mark.parametrize("status", ["OK", "CNS", "GNS", "TNS", "NS", "DR", "U"])
def test_peer_statuses_are_read(layout, status):
    facts = pasted(
        layout.format(status)
        + "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n"
    )
    assert facts.p2p == two(status)
    assert facts.links is None
    assert len(facts.gpus or ()) == 2


def test_prose_holds_no_matrix():
    assert find_matrices("GPU0 was slower than GPU1, and GPU2 hung.\nWe set GPU0 aside.") == ()
    assert pasted("nothing of interest\n") == Facts()


ADDRESSES = {
    "ip addr": """
        1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN group default
            link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
            inet 127.0.0.1/8 scope host lo
               valid_lft forever preferred_lft forever
        2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP>
            mtu 1500 qdisc mq master br0 state UP group default qlen 1000
            link/ether 02:00:00:00:00:01 brd ff:ff:ff:ff:ff:ff
        3: br0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state UP
            link/ether 02:00:00:00:00:01 brd ff:ff:ff:ff:ff:ff
            inet 192.0.2.30/24 brd 192.0.2.255 scope global noprefixroute br0
            inet 169.254.9.9/16 scope link br0:zero
            inet6 fe80::1/64 scope link
        4: veth7@if3: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 master docker0 state UP
            link/ether 02:00:00:00:00:09 brd ff:ff:ff:ff:ff:ff link-netnsid 0
        5: virbr0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 state DOWN
            link/ether 02:00:00:00:00:02 brd ff:ff:ff:ff:ff:ff
            inet 192.168.122.1/24 brd 192.168.122.255 scope global virbr0
               valid_lft forever preferred_lft forever
    """,
    "ip -j": "$ ip -j addr\n" + json.dumps([
        {"ifname": "lo", "flags": ["LOOPBACK", "UP", "LOWER_UP"], "link_type": "loopback", "addr_info": [{"local": "127.0.0.1", "prefixlen": 8}]},
        {"ifname": "eth0", "flags": ["UP", "LOWER_UP"], "link_type": "ether", "master": "br0", "addr_info": []},
        {"ifname": "br0", "flags": ["UP", "LOWER_UP"], "link_type": "ether", "linkinfo": {"info_kind": "bridge"}, "addr_info": [
            {"local": "192.0.2.30", "prefixlen": 24, "label": "br0"}, {"local": "169.254.9.9", "prefixlen": 16, "label": "br0:zero"}, {"local": "fe80::1", "prefixlen": 64}]},
        {"ifname": "veth7", "link_index": 3, "flags": ["UP", "LOWER_UP"], "link_type": "ether", "master": "docker0", "addr_info": []},
        {"ifname": "virbr0", "flags": ["NO-CARRIER", "UP"], "link_type": "ether", "addr_info": [{"local": "192.168.122.1", "prefixlen": 24}]},
    ]) + "\n$",
}  # fmt: skip


@pytest.mark.parametrize("form", ADDRESSES)
def test_the_long_forms_of_ip_are_read(form):
    found = {one.name: one for one in pasted(ADDRESSES[form]).interfaces or ()}
    assert list(found) == ["lo", "eth0", "br0", "veth7", "virbr0"]
    assert (found["lo"].kind, found["eth0"].master, found["veth7"].master) == ("loopback", "br0", "docker0")
    assert [one.text for one in found["br0"].addresses or ()] == ["192.0.2.30", "169.254.9.9", "fe80::1"]
    assert [one.label for one in found["br0"].addresses or ()] == ["", "br0:zero", ""]
    assert (found["virbr0"].up, found["virbr0"].running, found["br0"].running) == (True, False, True)
    assert found["eth0"].addresses == ()


def test_the_brief_forms_of_ip_are_read():
    text = """\
lo               UNKNOWN        127.0.0.1/8 ::1/128
ens3             UP             198.51.100.7/32 metric 100 2001:db8::7/128 fe80::1/64
docker0          DOWN           172.17.0.1/16
tun0             UNKNOWN        10.8.0.1 peer 10.8.0.2/32
vlan7@ens3       UP             203.0.113.7/24
veth12@if2       UP
"""
    found = {one.name: one for one in pasted(text).interfaces or ()}
    assert list(found) == ["lo", "ens3", "docker0", "tun0", "vlan7", "veth12"]
    assert [one.text for one in found["ens3"].addresses or ()] == ["198.51.100.7", "2001:db8::7", "fe80::1"]
    assert (found["docker0"].up, found["tun0"].up, found["vlan7"].lower) == (False, True, ("ens3",))
    links = pasted(
        "lo  UNKNOWN  00:00:00:00:00:00 <LOOPBACK,UP,LOWER_UP>\neth0  DOWN  02:00:00:00:00:01 <NO-CARRIER,UP>\n"
    )
    states = [(one.up, one.running, one.addresses) for one in links.interfaces or ()]
    assert states == [(True, True, None), (True, False, None)]


IFCONFIG_NEW = """
ens5f0: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 1500
        inet 192.0.2.4  netmask 255.255.240.0  broadcast 192.0.15.255
        inet6 fe80::1  prefixlen 64  scopeid 0x20<link>
        ether 02:00:00:00:00:01  txqueuelen 1000  (Ethernet)

ib0: flags=4099<UP,BROADCAST,MULTICAST>  mtu 2044
        unspec 80-00  txqueuelen 256  (UNSPEC)
        infiniband 80:00  txqueuelen 256  (InfiniBand)
"""
IFCONFIG_OLD = """
ens5f0    Link encap:Ethernet  HWaddr 02:00:00:00:00:01
          inet addr:192.0.2.4  Bcast:192.0.15.255  Mask:255.255.240.0
          inet6 addr: fe80::1/64 Scope:Link
          UP BROADCAST RUNNING MULTICAST  MTU:1500  Metric:1

ib0       Link encap:InfiniBand  HWaddr 80:00
          UP BROADCAST MULTICAST  MTU:2044  Metric:1
"""


@pytest.mark.parametrize("text", [IFCONFIG_NEW, IFCONFIG_OLD])
def test_both_layouts_of_ifconfig_are_read(text):
    first, second = pasted(text).interfaces or ()
    assert [(one.text, one.prefix) for one in first.addresses or ()] == [("192.0.2.4", 20), ("fe80::1", 64)]
    assert (first.name, first.kind, first.up, first.running) == ("ens5f0", "ethernet", True, True)
    assert (second.name, second.kind, second.running, second.addresses) == ("ib0", "infiniband", False, ())


def test_masked_addresses_stay_unknown_and_decide_nothing():
    text = IFCONFIG_NEW.replace("192.0.2.4", "*.*.*.*").replace(
        "        inet6 fe80::1  prefixlen 64  scopeid 0x20<link>\n", ""
    )
    text += "flannel.1: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 1450\n        inet *.*.*.*  netmask 255.255.255.255\n"
    facts = pasted(text)
    assert [one.addresses[0].text for one in facts.interfaces or () if one.addresses] == ["", ""]
    assert decide(facts).settings == ()


LIFE = "       valid_lft forever preferred_lft forever\n"
LISTED = f"1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536\n    inet 127.0.0.1/8 scope host lo\n{LIFE}2: eth0: <UP,LOWER_UP> mtu 1500\n    inet 192.0.2.7/24 scope global eth0\n"


def test_a_listing_whose_last_address_has_its_lifetime_is_whole():
    assert [one.name for one in pasted(LISTED + LIFE).interfaces or ()] == ["lo", "eth0"]
    assert [one.name for one in pasted(LISTED.replace(LIFE, "")).interfaces or ()] == ["lo", "eth0"]


@pytest.mark.parametrize(
    "text",
    [
        "1: lo: <LOOPBACK,UP> mtu 65536\n    inet 127.0.0.1/8 scope host lo\n2: eth0: <BROADCAST,MU",
        '[{"ifname": "eth0", "addr_info": [{"local": "192.0',
        LISTED,
    ],
)
def test_a_listing_that_breaks_off_decides_nothing(text):
    facts = pasted(text)
    assert facts.damage
    assert facts.interfaces is None


@pytest.mark.parametrize(
    "text",
    [
        "default via 192.0.2.1 dev eth0 proto dhcp metric 100\ndefault dev ib0 metric 200\n",
        '[{"dst":"default","gateway":"192.0.2.1","dev":"eth0","metric":100},{"dst":"default","dev":"ib0","metric":200},{"dst":"192.0.2.0/24","dev":"eth0"}]',
    ],
)
def test_default_routes_are_read(text):
    assert pasted(text).routes == (Route("eth0", 100), Route("ib0", 200))


LOG = """\
node1:77:77 [0] NCCL INFO Bootstrap : Using [0]eno1:192.0.2.7<0>
node1:77:77 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eno1:192.0.2.7<0>
node1:77:77 [0] NCCL INFO NET/Socket : Using [0]eno1:192.0.2.7<0> [1]veth1:fe80::42%veth1<0> [2]eno1:avahi:169.254.7.2<0>
NCCL version 2.21.5+cuda12.4
"""


def test_the_log_of_nccl_tells_what_it_took():
    facts = pasted(LOG)
    assert facts.taken == ("eno1", "veth1", "eno1:avahi")
    assert facts.nccl == "2.21.5"
    ports = [(port.device, port.layer) for port in facts.rdma or ()]
    assert ports == [("mlx5_0", "InfiniBand"), ("mlx5_1", "Ethernet")]
    assert [(one.name, [place.text for place in one.addresses or ()]) for one in facts.interfaces or ()] == [
        ("eno1", ["192.0.2.7", "169.254.7.2"]), ("veth1", ["fe80::42"]),
    ]  # fmt: skip
    old = pasted(
        "n:1:1 [0] NCCL INFO NET : Using interface lo:127.0.0.1<0>\nn:1:1 [0] NCCL INFO NET : Using interface eth0:192.0.2.4<0>\n"
    )
    assert old.taken == ("lo", "eth0")
    names = {one.name: one.value for one in decide(old).settings}
    assert names == {"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0"}


def test_names_and_versions_are_taken_from_what_else_was_pasted():
    facts = pasted(
        "GPU 0: Tesla T4 (UUID: GPU-1)\nGPU 1: Tesla T4 (UUID: GPU-2)\n| NVIDIA-SMI 535.1  Driver Version: 535.104.05 |\n"
        "[pip3] nvidia-nccl-cu12==2.20.5\n[pip3] torch==2.4.0\nVendor ID: AuthenticAMD\n" + TABS
    )
    assert (facts.gpu_names, facts.driver, facts.cpu) == (("Tesla T4",) * 2, "535.104.05", "amd")
    assert (facts.nccl, facts.torch) == ("2.20.5", "2.4.0")
    assert pasted("torch==2.4.0\ntorch==2.6.0").torch is None
    assert pasted("GPU 0: Tesla T4 (UUID: GPU-1)\n" + TABS).damage


LINES = (CORPUS / "index.jsonl").read_text().splitlines() if CORPUS.is_dir() else []
INDEX = [json.loads(line) for line in LINES]


@pytest.mark.parametrize("row", INDEX, ids=lambda row: row["id"])
def test_the_collected_hosts_are_read_exactly_or_called_damaged(row):
    facts = pasted((CORPUS / f"{row['id']}.txt").read_text())
    if row["kind"] == "topo":
        assert bool(facts.damage) == row["truncated"] or set(facts.pairs) == set(row["gpu_gpu_links"])
        if facts.links:
            assert len(facts.links) == row["gpus"]
            assert set(facts.pairs) == set(row["gpu_gpu_links"])
        if row["truncated"] and not facts.links:
            assert decide(facts).settings == ()
    elif row["kind"] == "p2p":
        assert facts.damage or (
            len(facts.p2p or ()) == row["gpus"]
            and {cell for line in facts.p2p or () for cell in line} - {"X"} == set(row["links_seen"])
        )
        assert decide(facts).settings == ()
    elif row["form"] != "table":
        names = [
            label
            for one in facts.interfaces or ()
            for label in {place.label or one.name: 0 for place in one.addresses or ()} or [one.name]
        ]
        assert names == [name.partition("@")[0] for name in row["interfaces"]]


MIXED = ["SYS", "NODE", "PHB", "PXB", "PIX", "NV1", "NV4", "NV12", "NV18"]
FAR = ["SYS", "SYS", "SYS", "SYS", "NV2"]
LAYOUTS = {
    "tabs": "\t".join,
    "wide": lambda cells: "".join(f"{cell:<8}" for cell in cells),
    "squeezed": " ".join,
    "indented": lambda cells: "      " + "".join(f"{cell:<6}" for cell in cells),
}


@st.composite
def matrices(draw: st.DrawFn) -> tuple[tuple[tuple[str, ...], ...], str]:
    """Links of a machine, and how its `nvidia-smi` and a person's clipboard show them."""
    count, nics = draw(st.integers(2, 8)), draw(st.integers(0, 3))
    names = [f"GPU{number}" for number in range(count)] + [f"NIC{number}" for number in range(nics)]
    square = [["X"] * len(names) for _ in names]
    words = st.sampled_from(draw(st.sampled_from([MIXED, FAR])))
    for row in range(len(names)):
        for column in range(row + 1, len(names)):
            square[row][column] = square[column][row] = draw(words)
    layout = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))]
    tail = draw(st.sampled_from([[], ["CPU Affinity", "NUMA Affinity"]]))
    lines = [layout(["", *names, *tail])]
    for name, cells in zip(names, square, strict=True):
        places = ["0-31,64-95", "0"] if tail and name.startswith("GPU") else []
        lines.append(layout([name, *cells, *places]))
    text = "\n".join(lines) + draw(st.sampled_from(["", "\n", "\n" + NVLINK_LEGEND]))
    return tuple(tuple(row[:count]) for row in square[:count]), text


@settings(max_examples=150, deadline=None)
@given(matrices())
def test_any_machine_in_any_layout_is_read_exactly(case):
    links, text = case
    facts = pasted(text)
    assert (facts.links, facts.damage) == (links, ())


@settings(max_examples=300, deadline=None)
@given(matrices(), st.data())
def test_a_paste_that_lost_any_part_is_read_exactly_or_decides_nothing(case, data):
    links, text = case
    start = data.draw(st.integers(0, len(text)))
    length = data.draw(st.one_of(st.integers(1, 12), st.integers(1, len(text))))
    facts = pasted(text[:start] + text[start + length :])
    assert facts.links in (links, None)


def test_an_address_below_an_abridged_header_belongs_to_the_interface_of_its_label():
    whole = "2: eno1: <BROADCAST,UP,LOWER_UP> mtu 1500 state UP\n    inet 10.20.0.11/16 scope global eno1\n"
    address = "    inet 100.81.3.9/32 scope global tailscale0\n"
    for head in ("4: tailscale0: <POINTOPOINT,...,UP,LOWER_UP>\n", "4: tailscale0: …\n", ""):
        facts = pasted(whole + head + address)
        found = {one.name: [each.text for each in one.addresses or ()] for one in facts.interfaces or ()}
        assert found == {"eno1": ["10.20.0.11"], "tailscale0": ["100.81.3.9"]}
        assert "tailscale0" in facts.damage[0]


def test_a_listing_without_addresses_says_nothing_of_them():
    text = "1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 state UNKNOWN\n    link/loopback 00:00:00:00:00:00\n"
    facts = pasted(
        text + "2: eno1: <BROADCAST,UP,LOWER_UP> mtu 1500 state UP\n    link/ether aa:bb:cc:dd:ee:ff\n"
    )
    assert [one.addresses for one in facts.interfaces or ()] == [None, None]
