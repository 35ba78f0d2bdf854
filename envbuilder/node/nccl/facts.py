"""The facts of one machine. None stands for a fact that could not be read; it is never guessed.

Where each fact came from is in `Facts.sources`, by the name of its field.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any

NVLINK = re.compile(r"NV\d+")  # NV1 … NV18
# Across the CPU interconnect; SOC is what drivers before about 387 print.
FAR_LINKS = frozenset({"SYS", "SOC"})
SUPERCHIP = re.compile(r"\b(GH200|GB[23]00)\b")
# Of them, those with NVLink between nodes; GH200 is also called `GH200 480GB`.
RACK = re.compile(r"\bGB[23]00\b")
SWITCH_LINKS = frozenset({"PIX", "PXB"})  # across PCIe switches, without the CPU
TRANSLATING = frozenset({"DMA", "DMA-FQ"})  # types of IOMMU groups whose DMA goes through page tables
PASS_THROUGH = frozenset({"identity", "off"})  # "off": the kernel has no IOMMU groups at all


@dataclass(frozen=True)
class Gpu:
    """One GPU; `iommu` is the type of its group in sysfs, or "off"."""

    name: str | None = None  # NVIDIA A100-SXM4-80GB
    bus: str | None = None  # 0000:3b:00.0
    numa: int | None = None
    iommu: str | None = None
    iommu_group: str | None = None
    switch: str | None = None  # bus address of the nearest PCIe switch above it; "" for none


@dataclass(frozen=True)
class Address:
    """One address of an interface; `text` is empty where it was masked by the person who pasted it."""

    text: str
    prefix: int | None = None
    label: str = ""  # the alias that getifaddrs reports in place of the name: eno1:avahi


@dataclass(frozen=True)
class Interface:
    """One network interface, in the order of the kernel."""

    name: str
    # ethernet, wireless, infiniband, loopback, bridge, bond, team, vlan, veth, tunnel; "" unknown
    kind: str = ""
    up: bool | None = None
    running: bool | None = None  # has a carrier
    addresses: tuple[Address, ...] | None = None
    master: str = ""  # the bond, team or bridge that it is a port of
    lower: tuple[str, ...] = ()  # what it stands on: a bond's ports, a VLAN's parent
    hardware: bool | None = None  # a device of its own stands behind it
    usb: bool = False


@dataclass(frozen=True)
class Route:
    device: str
    metric: int = 0


@dataclass(frozen=True)
class RdmaPort:
    device: str  # mlx5_0
    port: int
    state: str  # ACTIVE, DOWN, …
    layer: str  # InfiniBand or Ethernet
    rate: str = ""


@dataclass(frozen=True)
class Nic:
    """One network adapter of `nvidia-smi topo -m`."""

    name: str  # mlx5_0, or NIC0 where no legend names it
    links: tuple[str, ...]  # to each GPU


@dataclass(frozen=True)
class Job:
    nodes: int | None = None
    peer: str = ""  # the host that ranks meet at
    peer_device: str | None = None  # the interface that reaches it; None where that is not known
    slurm_id: str = ""


@dataclass(frozen=True)
class Measured:
    """The result of `detect --measure`, and the versions it holds for."""

    passed: bool  # with P2P as NCCL would use it
    passed_without: bool  # with NCCL_P2P_DISABLE=1
    driver: str | None
    kernel: str | None
    nccl: str | None
    gpus: tuple[str | None, ...]
    detail: str = ""

    def lapsed(self, facts: Facts) -> str:
        """Return why the test does not hold for these facts, or an empty text."""
        now = (facts.driver, facts.kernel, facts.nccl, facts.gpu_names)
        names = ("driver", "kernel", "NCCL", "GPUs")
        pairs = zip(names, (self.driver, self.kernel, self.nccl, self.gpus), now)
        changed = [name for name, then, current in pairs if then != current]
        return f"measured with another {', '.join(changed)}" if changed else ""


@dataclass(frozen=True)
class Facts:
    gpus: tuple[Gpu, ...] | None = None
    links: tuple[tuple[str, ...], ...] | None = None  # as `nvidia-smi topo -m`: X on the diagonal
    nics: tuple[Nic, ...] | None = None  # with their links to the GPUs
    links_doubt: str = ""  # why the matrix decides nothing although it can be read
    p2p: tuple[tuple[str, ...], ...] | None = None  # as `nvidia-smi topo -p2p r`: OK, CNS, …
    driver: str | None = None
    kernel: str | None = None
    cpu: str | None = None  # intel, amd, arm, …
    virtual: str | None = None  # "" on bare metal, else the hypervisor
    container: str | None = None  # "" on the host, else the runtime
    interfaces: tuple[Interface, ...] | None = None
    routes: tuple[Route, ...] | None = None  # the default ones
    taken: tuple[str, ...] | None = None  # interfaces that NCCL said it uses, in its own log
    rdma: tuple[RdmaPort, ...] | None = None
    verbs: bool | None = None  # libibverbs can be loaded here
    plugin: bool | None = None  # a network plugin of NCCL can be loaded; read beside Slingshot alone
    imex: tuple[str, ...] | None = None  # IMEX channels that may be opened; read on Grace superchips alone
    shm: int | None = None  # bytes of /dev/shm
    nccl: str | None = None
    torch: str | None = None
    topology_file: str | None = None  # a virtual topology that the hypervisor's vendor ships; "" for none
    job: Job = Job()
    measured: Measured | None = None
    damage: tuple[str, ...] = ()  # what was pasted and cannot be read with certainty
    sources: tuple[tuple[str, str], ...] = ()  # field → where it was read, or why it could not be

    @property
    def gpu_names(self) -> tuple[str | None, ...]:
        return tuple(gpu.name for gpu in self.gpus or ())

    @property
    def is_superchips(self) -> bool:
        """Whether every GPU is on a superchip: a Grace CPU of its own, and NVLink-C2C to it."""
        return bool(self.gpus) and all(SUPERCHIP.search(name or "") for name in self.gpu_names)

    @property
    def pairs(self) -> tuple[str, ...]:
        """Return the link of each pair of GPUs once."""
        rows = enumerate(self.links or ())
        return tuple(link for number, row in rows for link in row[number + 1 :])

    @property
    def split_switches(self) -> list[str]:
        """Return the PCIe switches with GPUs of different IOMMU groups below them."""
        switches: dict[str, set[str]] = {}
        for gpu in self.gpus or ():
            if gpu.switch and gpu.iommu_group:
                switches.setdefault(gpu.switch, set()).add(gpu.iommu_group)
        return sorted(switch for switch, groups in switches.items() if len(groups) > 1)

    @property
    def known(self) -> tuple[str, ...]:
        """Return the names of the fields that are known."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) != field.default)

    def source(self, name: str) -> str:
        return dict(self.sources).get(name, "")


def origin(**sources: str) -> tuple[tuple[str, str], ...]:
    """Return `Facts.sources`: where each field was read, or why it could not be."""
    return tuple(sources.items())


def is_nvlink(link: str) -> bool:
    return bool(NVLINK.fullmatch(link))


def merge(older: Facts, newer: Facts) -> Facts:
    """Merge facts of one machine; a known fact of `newer` wins."""
    known: dict[str, Any] = {name: getattr(newer, name) for name in newer.known}
    known["damage"] = (*older.damage, *newer.damage)
    known["sources"] = tuple({**dict(older.sources), **dict(newer.sources)}.items())
    return replace(older, **known)


def version_key(version: str | None) -> tuple[int, ...] | None:
    """2.21.5+cuda12.4 → (2, 21, 5); None where there is no version."""
    digits: list[int] = []
    for part in (version or "").partition("+")[0].split("."):
        if not part.isdigit():
            break
        digits.append(int(part))
    return tuple(digits) or None
