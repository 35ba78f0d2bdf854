"""The rules that set a variable, or say why none is set: pure functions of the facts.

Each rule carries its condition, consequence, reason and evidence as data. `decide` shows the reason to the user,
and `docs/reference/nccl-rules.md` lists them all. For each group of variables the first rule that applies decides;
the last rule of a group always applies.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Callable, Iterable

from envbuilder.node.nccl import interface as net
from envbuilder.node.nccl.facts import FAR_LINKS, PASS_THROUGH, TRANSLATING, Facts, is_nvlink, version_key

RTX_40 = re.compile(r"\bRTX 40[5-9]0(?!\d)")
RTX_40_REPAIRED = (550, 40, 7)


@dataclass(frozen=True)
class Verdict:
    """The decision of one rule: values to set, or none, with what was seen on the machine."""

    values: tuple[tuple[str, str], ...] = ()
    evidence: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """One rule with its words; `evidence` are headings of `docs/evidence/nccl.md`."""

    name: str
    judge: Callable[[Facts], Verdict | None]
    when: str
    then: str
    why: str
    lapses: str
    evidence: tuple[str, ...]


def rule(
    *, when: str, why: str, evidence: tuple[str, ...], then: str = "nothing", lapses: str = ""
) -> Callable[[Callable[[Facts], Verdict | None]], Rule]:
    """Make a rule of the function that follows."""
    return lambda judge: Rule(judge.__name__, judge, when, then, why, lapses, evidence)


# Peer-to-peer between GPUs.


@rule(
    when="A real test on these GPUs hung or gave wrong data with P2P, and passed without",
    then="`NCCL_P2P_LEVEL=NVL` where there is NVLink or the links are not known, else `NCCL_P2P_DISABLE=1`",
    why="a test on these GPUs failed with P2P and passed without",
    lapses="with another driver, kernel, NCCL or other GPUs, or when `detect --measure` passes",
    evidence=("measured-transfers",),
)
def measured_failed(facts: Facts) -> Verdict | None:
    test = facts.measured
    if test is None or test.lapsed(facts) or test.passed or not test.passed_without:
        return None
    no_nvlink = _is_clear(facts) and not any(map(is_nvlink, facts.pairs))
    value = ("NCCL_P2P_DISABLE", "1") if no_nvlink else ("NCCL_P2P_LEVEL", "NVL")
    return Verdict((value,), (test.detail or "`detect --measure`",))


@rule(
    when="A real test on these GPUs passed with P2P",
    why="a test on these GPUs passed with P2P",
    evidence=("measured-transfers",),
)
def measured_passed(facts: Facts) -> Verdict | None:
    test = facts.measured
    if test is None or test.lapsed(facts) or not test.passed:
        return None
    return Verdict(evidence=(test.detail or "`detect --measure`",))


@rule(
    when="There are fewer than two GPUs", why="there is no pair of GPUs", evidence=("set-nothing-by-default",)
)
def too_few(facts: Facts) -> Verdict | None:
    return Verdict() if facts.gpus is not None and len(facts.gpus) < 2 else None


@rule(
    when="The links between the GPUs are uncertain: not read, damaged, or listed without NVLink",
    why="the links between the GPUs are not known with certainty",
    evidence=("unread-links",),
)
def unclear(facts: Facts) -> Verdict | None:
    if _is_clear(facts):
        return None
    return Verdict(evidence=(facts.links_doubt,) if facts.links_doubt else facts.damage)


@rule(
    when="Every pair of GPUs has NVLink",
    why="every pair of GPUs has NVLink, which neither variable could improve",
    evidence=("nvlink",),
)
def nvlink_everywhere(facts: Facts) -> Verdict | None:
    return Verdict(evidence=(_matrix(facts),)) if all(map(is_nvlink, facts.pairs)) else None


@rule(
    when="Every GPU is on a Grace superchip (GH200, GB200, GB300)",
    why="NCCL on Arm uses P2P over PCIe only below one PCIe switch, which superchips do not share, and "
    "NCCL_P2P_DISABLE would also turn off NVLink between nodes",
    evidence=("grace-superchips",),
)
def superchips(facts: Facts) -> Verdict | None:
    return Verdict(evidence=(_matrix(facts),)) if facts.is_superchips else None


@rule(
    when="Some pairs have NVLink, and the IOMMU translates the GPUs' DMA on bare metal",
    then="`NCCL_P2P_LEVEL=NVL`",
    why="PCIe peer copies hang or corrupt data behind a translating IOMMU; NVL keeps NVLink and drops PCIe P2P",
    lapses="when the IOMMU groups of the GPUs read `identity` (boot with `iommu=pt`)",
    evidence=("dma-translation", "nvlink"),
)
def nvlink_translating(facts: Facts) -> Verdict | None:
    if not any(map(is_nvlink, facts.pairs)) or not translates(facts):
        return None
    return Verdict((("NCCL_P2P_LEVEL", "NVL"),), (_matrix(facts), _iommu(facts)))


@rule(
    when="Some pairs have NVLink",
    why="NCCL_P2P_DISABLE would throw NVLink away, and nothing speaks against P2P here",
    evidence=("nvlink",),
)
def nvlink_somewhere(facts: Facts) -> Verdict | None:
    return Verdict(evidence=(_matrix(facts),)) if any(map(is_nvlink, facts.pairs)) else None


@rule(
    when="Every pair crosses the CPU interconnect (SYS, SOC), and nothing proves that P2P works there: no test that passed, and not exactly two GPUs of a bare-metal host without DMA translation",
    then="`NCCL_P2P_DISABLE=1`",
    why="every pair of GPUs crosses the CPU interconnect, where P2P can hang, and nothing proves that it works here; a hung job costs more than shared memory",
    lapses="when `detect --measure` passes",
    evidence=("cpu-interconnect",),
)
def cpu_interconnect(facts: Facts) -> Verdict | None:
    if not all(link in FAR_LINKS for link in facts.pairs):
        return None
    untranslated = facts.virtual == "" and all(gpu.iommu in PASS_THROUGH for gpu in facts.gpus or ())
    if len(facts.gpus or ()) == 2 and untranslated:
        return None
    iommu = (_iommu(facts),) if translates(facts) else ()
    return Verdict((("NCCL_P2P_DISABLE", "1"),), (_matrix(facts), *iommu))


@rule(
    when="There is no NVLink, and the IOMMU translates the GPUs' DMA on bare metal",
    then="`NCCL_P2P_DISABLE=1`; `iommu=pt` is the repair",
    why="PCIe peer copies hang or corrupt data behind a translating IOMMU",
    lapses="when the IOMMU groups of the GPUs read `identity` (boot with `iommu=pt`), or `detect --measure` passes",
    evidence=("dma-translation",),
)
def translating(facts: Facts) -> Verdict | None:
    if not translates(facts):
        return None
    return Verdict((("NCCL_P2P_DISABLE", "1"),), (_matrix(facts), _iommu(facts)))


@rule(
    when="A GPU is of the GeForce RTX 40 series, and the driver is before 550.40.07",
    then="`NCCL_P2P_DISABLE=1`",
    why="drivers before 550.40.07 claim P2P between RTX 40 GPUs and it does not work",
    lapses="with driver 550.40.07 or newer",
    evidence=("geforce-rtx-40",),
)
def rtx_40(facts: Facts) -> Verdict | None:
    names = sorted({name for name in facts.gpu_names if name and RTX_40.search(name)})
    driver = version_key(facts.driver)
    if not names or driver is None or driver >= RTX_40_REPAIRED:
        return None
    return Verdict((("NCCL_P2P_DISABLE", "1"),), (", ".join(names), f"driver {facts.driver}"))


@rule(
    when="Two GPUs across the CPU interconnect of a bare-metal host whose IOMMU passes through or is off",
    why="without DMA translation P2P across the CPU interconnect works",
    evidence=("cpu-interconnect",),
)
def two_untranslated(facts: Facts) -> Verdict | None:
    if not all(link in FAR_LINKS for link in facts.pairs):
        return None
    return Verdict(evidence=(_matrix(facts), _iommu(facts)))


@rule(
    when="Any other mix of links",
    then="nothing, with a hint",
    why="nothing speaks against P2P here, and shared memory is several times slower than P2P that works",
    evidence=("cost-of-disabling",),
)
def mixture(facts: Facts) -> Verdict | None:
    hint = "if a job hangs at its first collective, `detect --measure` tells whether P2P is the cause"
    return Verdict(evidence=(_matrix(facts),), hints=(hint,))


P2P_RULES: tuple[Rule, ...] = (
    measured_failed, measured_passed, too_few, unclear, nvlink_everywhere, superchips, nvlink_translating, nvlink_somewhere,
    cpu_interconnect, translating, rtx_40, two_untranslated, mixture,
)  # fmt: skip


# Interfaces.


@rule(
    when="The job runs on one node",
    why="on one node every interface that works will do",
    evidence=("single-node",),
)
def one_node(facts: Facts) -> Verdict | None:
    return Verdict() if facts.job.nodes == 1 else None


@rule(
    when="The interfaces, or the addresses of one that NCCL would take, are not known",
    why="the interfaces or their addresses are not known with certainty",
    evidence=("set-nothing-by-default",),
)
def unknown_interfaces(facts: Facts) -> Verdict | None:
    if facts.interfaces is None:
        return Verdict()
    if all(interface.addresses is None for interface in facts.interfaces):
        return Verdict(evidence=("no address is listed",))
    doubtful = [judgement for judgement in _judged(facts) if not judgement.certain]
    return Verdict(evidence=_faults(doubtful)) if doubtful else None


@rule(
    when="What NCCL takes by itself is fit to carry a job",
    then="nothing; where the choice is several networks, a hint that lists them",
    why="what NCCL takes by itself is fit",
    evidence=("interface-choice", "several-networks"),
)
def good_choice(facts: Facts) -> Verdict | None:
    judged = _judged(facts)
    if any(judgement.fault for judgement in judged):
        return None
    names = [judgement.name for judgement in judged]
    return Verdict(evidence=(_choice(facts),), hints=_several(names, facts))


@rule(
    when="NCCL would take an unfit interface (of containers, virtual machines or tunnels, down, link-local), and the right one is known: the way to the peer, else the default route's, else the only physical one that is up",
    then="`NCCL_SOCKET_IFNAME` and `GLOO_SOCKET_IFNAME` name it; never a list of exclusions",
    why="NCCL would also use an interface that other nodes cannot reach",
    lapses="when the interfaces change",
    evidence=("unfit-interfaces", "route-to-the-peer"),
)
def right_one(facts: Facts) -> Verdict | None:
    name, how = net.choose(facts)
    if not name:
        return None
    values = (("NCCL_SOCKET_IFNAME", net.spelled(name, facts.interfaces or ())), ("GLOO_SOCKET_IFNAME", name))
    return Verdict(values, (_choice(facts), *_faults(_judged(facts)), f"`{name}`: {how}"))


@rule(
    when="NCCL would take an unfit interface, and several or none are fit",
    then="nothing, with a hint that lists those that are fit",
    why="which interface reaches the other nodes is not known",
    evidence=("several-networks", "exclusion-lists"),
)
def no_right_one(facts: Facts) -> Verdict | None:
    interfaces = facts.interfaces or ()
    fit = [interface.name for interface in interfaces if not net.judge(interface, interfaces).fault]
    listed = " or ".join(f"`NCCL_SOCKET_IFNAME={net.spelled(name, interfaces)}`" for name in fit)
    hint = f"NCCL may take the wrong interface here; name the one that reaches the other nodes: {listed}"
    return Verdict(evidence=(_choice(facts), *_faults(_judged(facts))), hints=(hint,) if fit else ())


INTERFACE_RULES: tuple[Rule, ...] = (one_node, unknown_interfaces, good_choice, right_one, no_right_one)


def _is_clear(facts: Facts) -> bool:
    return facts.links is not None and not facts.links_doubt and len(facts.links) == len(facts.gpus or ()) > 1


def translates(facts: Facts) -> bool:
    return facts.virtual == "" and any(gpu.iommu in TRANSLATING for gpu in facts.gpus or ())


def _matrix(facts: Facts) -> str:
    pairs = ", ".join(f"{count} {link}" for link, count in sorted(Counter(facts.pairs).items()))
    source = facts.source("links")
    return f"{len(facts.gpus or ())} GPUs, pairs: {pairs}" + (f" ({source})" if source else "")


def _iommu(facts: Facts) -> str:
    return f"IOMMU groups of the GPUs: {', '.join(sorted({gpu.iommu or '?' for gpu in facts.gpus or ()}))}"


def _taken(facts: Facts) -> tuple[str, ...]:
    """Return the interfaces that NCCL takes by default: from its log, otherwise by simulation."""
    return facts.taken or net.nccl_choice(facts.interfaces or (), version_key(facts.nccl))


def _judged(facts: Facts) -> list[net.Judgement]:
    return [net.judge_named(name, facts.interfaces or ()) for name in _taken(facts)]


def _faults(judged: Iterable[net.Judgement]) -> tuple[str, ...]:
    return tuple(f"`{judgement.name}`: {judgement.fault}" for judgement in judged if judgement.fault)


def _choice(facts: Facts) -> str:
    who = f"NCCL {facts.nccl}" if facts.nccl else "NCCL before 2.28.3"
    names = ", ".join(f"`{name}`" for name in _taken(facts)) or "none"
    return f"NCCL's own log: {names}" if facts.taken else f"{who} takes {names}"


def _several(names: Iterable[str], facts: Facts) -> tuple[str, ...]:
    """Return a hint where NCCL takes several sound interfaces, because its socket transport uses all."""
    taken = list(dict.fromkeys(name.partition(":")[0] for name in names))
    has_rdma = any(port.state == "ACTIVE" for port in facts.rdma or ())
    if len(taken) < 2 or facts.job.nodes == 1 or has_rdma:
        return ()
    listed = ", ".join(f"`{name}`" for name in taken)
    if net.networks(taken, facts.interfaces or ()) < len(taken):
        return (
            f"NCCL uses {listed}, of which several are in one subnet: the kernel's routes decide, not the names",
        )
    return (f"NCCL uses all of {listed}; if only one reaches the other nodes, name it in NCCL_SOCKET_IFNAME",)
