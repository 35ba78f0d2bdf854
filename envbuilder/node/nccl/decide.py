"""Facts → NCCL's settings, each with its reason, and the variables that stay unset. No I/O.

Nothing is set unless a rule of `rules` sets it. Hints are faults that no variable repairs, and choices for a person:
they are printed and never set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from envbuilder.node.nccl.facts import FAR_LINKS, RACK, SWITCH_LINKS, Facts, is_nvlink, version_key
from envbuilder.node.nccl.interface import SLINGSHOT
from envbuilder.node.nccl.rules import INTERFACE_RULES, P2P_RULES, translates

P2P_VARIABLES = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")
SOCKET_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
NEVER = (
    (
        "NCCL_IB_DISABLE",
        "without InfiniBand NCCL uses sockets by itself, and with it most of the bandwidth would be lost",
    ),
    ("NCCL_SHM_DISABLE", "ranks of one node would talk over the network"),
)


@dataclass(frozen=True)
class Setting:
    """One variable to set, unless the user has set any of `unless`; an empty value counts as set."""

    name: str
    value: str
    reason: str
    evidence: tuple[str, ...]
    lapses: str
    rule: str
    unless: tuple[str, ...]


@dataclass(frozen=True)
class Left:
    """A variable that was considered and is not set."""

    name: str
    reason: str
    rule: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    settings: tuple[Setting, ...] = ()
    left: tuple[Left, ...] = ()
    hints: tuple[str, ...] = ()


def decide(facts: Facts) -> Decision:
    """Decide what to set on this machine, what to leave unset, and which hints to print."""
    settings: list[Setting] = []
    left: list[Left] = []
    hints: list[str] = []
    for rules, names in ((P2P_RULES, P2P_VARIABLES), (INTERFACE_RULES, SOCKET_VARIABLES)):
        rule, verdict = next((rule, judged) for rule in rules if (judged := rule.judge(facts)) is not None)
        for name, value in verdict.values:
            # An interface that a user named for NCCL is no reason to name another for Gloo, and the same for P2P.
            unless = (name,) if name == "NCCL_SOCKET_IFNAME" else names
            settings.append(Setting(name, value, rule.why, verdict.evidence, rule.lapses, rule.name, unless))
        chosen = dict(verdict.values)
        why = "the other variable of its group is set" if chosen else rule.why
        evidence = () if chosen else verdict.evidence
        left += [Left(name, why, rule.name, evidence) for name in names if name not in chosen]
        hints += verdict.hints
    left += [Left(name, why, "never") for name, why in NEVER]
    hints += [text for hint in HINTS if (text := hint.judge(facts)) is not None]
    return Decision(tuple(settings), tuple(left), tuple(hints))


ENOUGH_SHM = 1 << 30


@dataclass(frozen=True)
class Hint:
    """One hint with its condition; `evidence` is a heading of `docs/evidence/nccl.md`."""

    name: str
    judge: Callable[[Facts], str | None]
    when: str
    evidence: str


def hint(evidence: str) -> Callable[[Callable[[Facts], str | None]], Hint]:
    """Make a hint of the function that follows; its docstring is the condition."""
    return lambda judge: Hint(judge.__name__, judge, (judge.__doc__ or "").rstrip("."), evidence)


@hint("dma-translation")
def hint_iommu(facts: Facts) -> str | None:
    """The IOMMU translates the DMA of GPUs on bare metal, not every pair has NVLink, and they are no superchips: `iommu=pt` is the repair."""
    all_nvlink = facts.pairs and all(map(is_nvlink, facts.pairs))
    if len(facts.gpus or ()) < 2 or not translates(facts) or all_nvlink or facts.is_superchips:
        return None
    option = "iommu.passthrough=1" if facts.cpu == "arm" else "iommu=pt"
    return f"boot with `{option}` (or the IOMMU off): copies between GPUs over PCIe can then run, and CUDA's own are safe"


@hint("acs")
def hint_acs(facts: Facts) -> str | None:
    """GPUs below one PCIe switch are in different IOMMU groups: ACS sends what they exchange through the CPU."""
    if not facts.split_switches or facts.virtual:
        return None
    return f"ACS is on at the PCIe switch {facts.split_switches[0]}: GPUs below it are in different IOMMU groups; clear it for P2P at full speed"


@hint("nvlink")
def hint_fabric(facts: Facts) -> str | None:
    """A pair with NVLink reports that P2P is not possible: the fabric is broken, which no variable repairs."""
    for number, row in enumerate(facts.links or ()):
        for other, link in enumerate(row):
            status = facts.p2p[number][other] if facts.p2p and len(facts.p2p) == len(row) else "OK"
            if is_nvlink(link) and status not in ("OK", "X"):
                return f"GPU{number} and GPU{other} have NVLink and P2P status {status}: see to fabric manager and IMEX on this node"
    return None


@hint("nvlink")
def hint_lone_gpu(facts: Facts) -> str | None:
    """All GPUs of a board but one have the same NVLink to each other, and it is of the same model: its NVLink is broken."""
    links = facts.links or ()
    lone = [number for number, row in enumerate(links) if not any(map(is_nvlink, row))]
    others = [row for number, row in enumerate(links) if number not in lone]
    between = {link for row in others for gpu, link in enumerate(row) if gpu not in lone and link != "X"}
    if len(lone) != 1 or len(others) < 3 or len(between) != 1 or len(set(facts.gpu_names)) != 1:
        return None
    gpu, link = lone[0], between.pop()
    return (
        f"GPU{gpu} has no NVLink, and the {len(others)} other GPUs have {link} to each other: it is broken or not in the fabric; "
        f"see `nvidia-smi nvlink --status -i {gpu}` and fabric manager's log, and leave it out of jobs until then"
    )


@hint("amd-before-nccl-223")
def hint_amd(facts: Facts) -> str | None:
    """An AMD host with NCCL 2.9 to 2.22, more than two GPUs, and some pairs beyond a PCIe switch: NCCL uses P2P there at any distance."""
    nccl = version_key(facts.nccl)
    if facts.cpu != "amd" or nccl is None or not (2, 9) <= nccl < (2, 23) or len(facts.gpus or ()) < 3:
        return None
    far = {link for link in facts.pairs if not is_nvlink(link) and link not in SWITCH_LINKS}
    if not far or far == set(facts.pairs) <= FAR_LINKS:
        return None
    return f"NCCL {facts.nccl} on AMD uses P2P over {', '.join(sorted(far))}; if it hangs, `NCCL_P2P_LEVEL=PXB` is what NCCL 2.23 does by itself"


@hint("drivers-545-and-560")
def hint_driver(facts: Facts) -> str | None:
    """Drivers 545 and 560 with P2P over PCIe: single reports of hangs."""
    branch = (facts.driver or "").partition(".")[0]
    if branch not in ("545", "560") or not any(link in SWITCH_LINKS for link in facts.pairs):
        return None
    return f"driver {facts.driver}: hangs with P2P over PCIe were reported for this branch; 535 and 570 are free of them"


@hint("shared-memory")
def hint_shm(facts: Facts) -> str | None:
    """`/dev/shm` is smaller than 1 GiB with more than one GPU."""
    if facts.shm is None or facts.shm >= ENOUGH_SHM or len(facts.gpus or ()) < 2:
        return None
    return f"/dev/shm has {facts.shm >> 20} MiB, too little for ranks that share memory: Docker `--ipc=host`, Apptainer without `--contain`"


@hint("infiniband")
def hint_verbs(facts: Facts) -> str | None:
    """RDMA ports are active and libibverbs cannot be loaded."""
    if facts.verbs is not False or not any(port.state == "ACTIVE" for port in facts.rdma or ()):
        return None
    return "there is InfiniBand or RoCE and no libibverbs here: NCCL falls back to sockets; install libibverbs1 and ibverbs-providers"


@hint("infiniband")
def hint_ports(facts: Facts) -> str | None:
    """Active RDMA ports of both link layers: NCCL takes them all."""
    active = [port for port in facts.rdma or () if port.state == "ACTIVE"]
    inside = sorted({port.device for port in active if port.layer == "InfiniBand"})
    if not inside or not any(port.layer == "Ethernet" for port in active):
        return None
    return f"active ports mix InfiniBand and Ethernet; `NCCL_IB_HCA=={','.join(inside)}` keeps NCCL to InfiniBand"


@hint("multi-node-nvlink")
def hint_imex(facts: Facts) -> str | None:
    """A job on several nodes of GB200 or GB300, and no IMEX channel that may be opened."""
    is_rack = facts.is_superchips and any(RACK.search(name or "") for name in facts.gpu_names)
    if not is_rack or facts.imex is None or facts.imex or facts.job.nodes == 1:
        return None
    return (
        "NVLink between nodes needs an IMEX channel, and none of `/dev/nvidia-caps-imex-channels` may be opened here: NCCL 2.30 ends with an "
        "error; Slurm's `switch/nvidia_imex` gives a job its channel, and `NCCL_MNNVL_ENABLE=0` sends over the network instead"
    )


@hint("nics-of-grace")
def hint_grace_nic(facts: Facts) -> str | None:
    """A job on several nodes of superchips with active RDMA ports, and NCCL before 2.27: it copies through the CPU's memory."""
    nccl = version_key(facts.nccl)
    active = any(port.state == "ACTIVE" for port in facts.rdma or ())
    if not facts.is_superchips or not active or facts.job.nodes == 1 or nccl is None or nccl >= (2, 27):
        return None
    repair = "NCCL_NET_GDR_C2C=1" if nccl >= (2, 26) else "NCCL_NET_GDR_LEVEL=PHB"
    return f"NCCL {facts.nccl} does not use GPUDirect with network adapters of Grace; `{repair}` does what NCCL 2.27 does by itself"


@hint("slingshot")
def hint_slingshot(facts: Facts) -> str | None:
    """A job on several nodes with Slingshot's interfaces (`hsn0`), and no network plugin of NCCL that can be loaded."""
    names = [interface.name for interface in facts.interfaces or () if interface.up]
    fast = [f"`{name}`" for name in names if SLINGSHOT.fullmatch(name)]
    if not fast or facts.plugin is not False or facts.job.nodes == 1:
        return None
    return (
        f"{', '.join(fast)}: a Slingshot network, over which NCCL without a plugin uses TCP; bind the site's aws-ofi-nccl and "
        "libfabric, and set `NCCL_NET=AWS Libfabric`, so that a plugin that is missing is an error, and `NCCL_SOCKET_IFNAME=hsn`"
    )


@hint("virtual-machines")
def hint_topology(facts: Facts) -> str | None:
    """The hypervisor's vendor ships a topology for NCCL, and this is a container."""
    if not facts.topology_file or not facts.container:
        return None
    return f"bind `{facts.topology_file}` into the container: in this virtual machine NCCL cannot see the real topology"


@hint("virtual-machines")
def hint_virtual(facts: Facts) -> str | None:
    """A virtual machine whose GPUs report P2P over PCIe: what the hypervisor's IOMMU does cannot be seen."""
    statuses = {cell for row in facts.p2p or () for cell in row}
    if not facts.virtual or "OK" not in statuses or not facts.pairs or all(map(is_nvlink, facts.pairs)):
        return None
    return f"this is a virtual machine ({facts.virtual}): only `detect --measure` can tell whether P2P works"


@hint("cumem-in-docker")
def hint_cumem(facts: Facts) -> str | None:
    """NCCL 2.24.3 to 2.26.3 in a Docker container without NUMA rights."""
    nccl = version_key(facts.nccl)
    if facts.container != "docker" or nccl is None or not (2, 24, 3) <= nccl <= (2, 26, 3):
        return None
    return f"NCCL {facts.nccl} in Docker needs `--cap-add SYS_NICE`, or `NCCL_CUMEM_HOST_ENABLE=0`"


@hint("measured-transfers")
def hint_measured(facts: Facts) -> str | None:
    """A measurement is at hand and no longer fits."""
    lapsed = facts.measured.lapsed(facts) if facts.measured else ""
    return f"the stored test is not used: {lapsed}; `detect --measure` renews it" if lapsed else None


HINTS = tuple(made for made in tuple(globals().values()) if isinstance(made, Hint))  # in this order
