"""Make the page `docs/reference/nccl-rules.md` from the rules and hints in `envbuilder/node/nccl`."""

from envbuilder.node.nccl.decide import HINTS, NEVER
from envbuilder.node.nccl.rules import INTERFACE_RULES, P2P_RULES

HEAD = """\
# What envbuilder tells NCCL, and why

Made from `envbuilder/node/nccl/rules.py` and `envbuilder/node/nccl/decide.py`.

In each group the first rule that applies decides. A variable that the user has set is left alone with the rest of its group, and an empty value counts as set.
Each rule links to the [evidence](../evidence/nccl.md) behind it.
"""


def page() -> str:
    lines = [HEAD]
    for title, rules in (("Peer-to-peer between GPUs", P2P_RULES), ("Interfaces", INTERFACE_RULES)):
        lines += [
            f"## {title}",
            "",
            "| rule | if | then | because | lapses | evidence |",
            "|:--|:--|:--|:--|:--|:--|",
        ]
        for rule in rules:
            links = ", ".join(map(_link, rule.evidence))
            lines.append(
                f"| `{rule.name}` | {rule.when} | {rule.then} | {rule.why} | {rule.lapses} | {links} |"
            )
        lines.append("")
    lines += ["## Hints", "", "Printed, never set.", "", "| hint | if | evidence |", "|:--|:--|:--|"]
    lines += [f"| `{hint.name}` | {hint.when} | {_link(hint.evidence)} |" for hint in HINTS]
    lines += ["", "## Never set", "", "| variable | because |", "|:--|:--|"]
    lines += [f"| `{name}` | {why} |" for name, why in NEVER]
    return "\n".join(lines) + "\n"


def _link(anchor: str) -> str:
    return f"[{anchor.replace('-', ' ')}](../evidence/nccl.md#{anchor})"
