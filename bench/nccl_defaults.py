"""Count the collected hosts that a fixed NCCL default would harm, and those that envbuilder's decisions would.

    .venv/bin/python bench/nccl_defaults.py FOLDER

A host is harmed by `NCCL_P2P_DISABLE=1` when it has pairs over NVLink or below one PCIe switch, where NCCL uses P2P on every CPU
and loses most of the speed without it. It is harmed by a choice of interfaces when that takes one which other nodes
cannot reach, or none at all.
"""

import json
import sys
from pathlib import Path

from envbuilder.node.nccl.decide import decide
from envbuilder.node.nccl.facts import SWITCH_LINKS, Facts, is_nvlink
from envbuilder.node.nccl.interface import judge_named, nccl_choice
from envbuilder.node.pasted import parse_pasted

OLD = (2, 27, 7)  # the last before NCCL left interfaces without a carrier alone
FIXED = "^docker0,lo"


def is_fast(link: str) -> bool:
    return is_nvlink(link) or link in SWITCH_LINKS


def told(facts: Facts) -> dict[str, str]:
    return {one.name: one.value for one in decide(facts).settings}


def is_bad(facts: Facts, wanted: str) -> bool:
    """Whether this setting makes NCCL take an unusable interface, or none."""
    taken = nccl_choice(facts.interfaces or (), OLD, wanted)
    return not taken or any(judge_named(name, facts.interfaces or ()).fault for name in taken)


def main(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]
    hosts = {row["id"]: parse_pasted({"host.txt": (folder / f"{row['id']}.txt").read_text()}) for row in rows}
    outcomes = {row["id"]: row["outcome"] for row in rows}
    pairs = {name: facts for name, facts in hosts.items() if facts.links and len(facts.links) > 1}
    fast = {name for name, facts in pairs.items() if any(map(is_fast, facts.pairs))}
    nvlink = {name for name, facts in pairs.items() if any(map(is_nvlink, facts.pairs))}
    cured = {name for name in pairs if "NCCL_P2P_DISABLE=1" in outcomes[name]}
    off = {name for name, facts in pairs.items() if "NCCL_P2P_DISABLE" in told(facts)}
    torn = {name for name, facts in hosts.items() if facts.damage}
    wired = {
        name: facts for name, facts in hosts.items()
        if facts.interfaces and any(place.text for one in facts.interfaces for place in one.addresses or ())
    }  # fmt: skip
    choices = {
        "nothing set": {name for name, facts in wired.items() if is_bad(facts, "")},
        FIXED: {name for name, facts in wired.items() if is_bad(facts, FIXED)},
        "envbuilder": {name for name, facts in wired.items() if is_bad(facts, told(facts).get("NCCL_SOCKET_IFNAME", ""))},
    }  # fmt: skip
    print(f"{len(hosts)} observations, {len(torn)} of them damaged or cut")
    print(f"\n{len(pairs)} hosts with at least two GPUs whose matrix can be read")
    print(
        "| NCCL_P2P_DISABLE=1 | set on | harms | of these NVLink | sets it on a host reported cured by it |\n|:--|--:|--:|--:|--:|"
    )
    for what, on in (("always", set(pairs)), ("envbuilder", off)):
        print(
            f"| {what} | {len(on)} | {len(on & fast)} | {len(on & nvlink)} | {len(on & cured)} of {len(cured)} |"
        )
    print(f"\n{len(wired)} hosts whose interfaces and addresses are known, NCCL before 2.28.3")
    print("| NCCL_SOCKET_IFNAME | takes an unfit interface on |\n|:--|--:|")
    for what, bad in choices.items():
        print(f"| {what} | {len(bad)} |")
    print(f"\nleft alone though NCCL's choice is unfit: {', '.join(sorted(choices['envbuilder'])) or 'none'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
