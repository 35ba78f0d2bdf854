"""Facts → NCCL's settings, each with its reason, and the variables that stay unset. No I/O.

Nothing is set unless a rule of `rules` sets it. `hints` are only printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from envbuilder.node.nccl.hints import HINTS
from envbuilder.node.nccl.rules import INTERFACE_RULES, P2P_RULES

if TYPE_CHECKING:
    from envbuilder.node.nccl.facts import Facts

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
