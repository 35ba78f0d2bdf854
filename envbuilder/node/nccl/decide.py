"""Facts → what NCCL should be told, each with its reason, and what was left alone and why. No I/O.

It starts from "set nothing": `rules` hold what is set and why, `hints` what is only said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable

from envbuilder.node.nccl.hints import HINT_RULES
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
    """One variable to set unless any of `unless` is set already: the user's own, an empty one among them, wins."""

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
    """What to set on this machine, what was left alone, and what a person should know."""
    settings: list[Setting] = []
    left: list[Left] = []
    hints: list[str] = []
    for rules, names in ((P2P_RULES, P2P_VARIABLES), (INTERFACE_RULES, SOCKET_VARIABLES)):
        rule, verdict = next((rule, found) for rule in rules if (found := rule(facts)) is not None)
        told = explained(rule)
        for name, value in verdict.values:
            # An interface that a user named for NCCL is no reason to name another for Gloo, and the same for P2P.
            unless = (name,) if name == "NCCL_SOCKET_IFNAME" else names
            settings.append(
                Setting(
                    name, value, told["Why"], verdict.evidence, told.get("Lapses", ""), rule.__name__, unless
                )
            )
        chosen = dict(verdict.values)
        why = "the other variable of its group is set" if chosen else told["Why"]
        evidence = () if chosen else verdict.evidence
        left += [Left(name, why, rule.__name__, evidence) for name in names if name not in chosen]
        hints += verdict.hints
    left += [Left(name, why, "never") for name, why in NEVER]
    hints += [hint for rule in HINT_RULES if (hint := rule(facts)) is not None]
    return Decision(tuple(settings), tuple(left), tuple(hints))


def explained(rule: Callable[..., object]) -> dict[str, str]:
    """The parts of a rule's docstring: `When`, then `Then`, `Why`, `Lapses`, `Source`."""
    first, *rest = (rule.__doc__ or "When\n\nWhy: see docs/nccl-rules.md").strip().split("\n")
    parts = {"When": first}
    for line in rest:
        name, colon, text = line.strip().partition(": ")
        if colon and name.isalpha():
            parts[name] = text
    return parts


def rules_table() -> str:
    """The rules as the text of `docs/nccl-rules.md`."""
    lines = [
        "# What envbuilder tells NCCL, and why", "",
        "Made from the docstrings of `envbuilder/node/nccl/rules.py` and `envbuilder/node/nccl/hints.py`; a test compares. In each group the first rule that applies decides, and a",
        "variable that the user has set, an empty value included, is left alone with the rest of its group. `design` and `facts` are the",
        "project's design notes and collected evidence.", "",
    ]  # fmt: skip
    for title, rules in (("Peer-to-peer between GPUs", P2P_RULES), ("Interfaces", INTERFACE_RULES)):
        lines += [
            f"## {title}",
            "",
            "| rule | if | then | because | lapses | source |",
            "|:--|:--|:--|:--|:--|:--|",
        ]
        for rule in rules:
            told = explained(rule)
            cells = [told.get(part, "") for part in ("When", "Then", "Why", "Lapses", "Source")]
            lines.append(f"| `{rule.__name__}` | {' | '.join(cells)} |")
        lines.append("")
    lines += ["## Hints", "", "Printed, never set.", "", "| hint | if |", "|:--|:--|"]
    lines += [f"| `{rule.__name__}` | {explained(rule)['When']} |" for rule in HINT_RULES]
    lines += ["", "## Never set", "", "| variable | because |", "|:--|:--|"]
    lines += [f"| `{name}` | {why} |" for name, why in NEVER]
    return "\n".join(lines) + "\n"
