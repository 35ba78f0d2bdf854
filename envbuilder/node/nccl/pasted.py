"""Texts that people saved or pasted, all of one machine → its facts.

Each text may hold several outputs, in any order, with prompts and prose around them. What cannot be read with certainty
goes into `Facts.damage` and nothing is concluded from it.
"""

from __future__ import annotations

from dataclasses import replace

from envbuilder.node.nccl.facts import Facts, Gpu, merge
from envbuilder.node.nccl.grid import Matrix, clean, find_matrices
from envbuilder.node.nccl.listing import join, parse_listing
from envbuilder.node.nccl.traces import parse_traces

PCIE_ONLY = "the matrix leaves NVLink out, as `nvidia-smi topo -mp` does"


def parse_pasted(texts: dict[str, str]) -> Facts:
    """Parse the facts of one machine; `texts` maps file names to texts."""
    facts = Facts()
    matrices: list[tuple[str, Matrix]] = []
    for name, text in sorted(texts.items()):
        plain = clean(text)
        listing, traces = parse_listing(plain), parse_traces(plain)
        interfaces = join([*(listing.interfaces or ()), *(traces.interfaces or ())])
        found = replace(
            traces,
            interfaces=(interfaces or None) if not listing.damage else None,
            routes=listing.routes,
            damage=(f"{name}: {listing.damage}",) if listing.damage else (),
        )
        facts = merge(facts, replace(found, sources=_sources(found, name)))
        matrices += [(name, matrix) for matrix in find_matrices(text)]
    return _with_matrices(facts, matrices)


def is_empty(facts: Facts) -> bool:
    """Whether the texts held no facts, not even damaged ones."""
    return facts == Facts()


def _sources(facts: Facts, name: str) -> tuple[tuple[str, str], ...]:
    blank = Facts()
    fields = [field for field in blank.__dataclass_fields__ if getattr(facts, field) != getattr(blank, field)]
    return tuple((field, name) for field in fields if field not in ("damage", "sources"))


def _with_matrices(facts: Facts, matrices: list[tuple[str, Matrix]]) -> Facts:
    """Add the matrices that are consistent. Two that differ are of two machines, and neither counts."""
    damage = [f"{name}: {matrix.damage}" for name, matrix in matrices if matrix.damage]
    counts = {matrix.gpus for _, matrix in matrices}
    if facts.gpus is not None and matrices:
        counts.add(len(facts.gpus))
    if len(counts) > 1:
        damage.append(f"GPUs are {' and '.join(map(str, sorted(counts)))}: of more than one machine?")
        return replace(facts, gpus=None, damage=(*facts.damage, *damage))
    if facts.gpus is None and counts:
        facts = merge(facts, Facts(gpus=(Gpu(),) * counts.pop(), sources=(("gpus", matrices[0][0]),)))
    for kind, command in (("links", "`nvidia-smi topo -m`"), ("p2p", "`nvidia-smi topo -p2p`")):
        found = [(name, one) for name, one in matrices if one.kind == kind and one.cells]
        found = [pair for pair in found if not pair[1].pcie_only] or found
        if not found:
            continue
        name, one = found[0]
        source = ((kind, f"{name}, {command}"),)
        if kind == "p2p":
            facts = merge(facts, Facts(p2p=one.cells, sources=source))
        elif len({other.cells for _, other in found}) > 1:
            damage.append(f"{len(found)} matrices that differ: of more than one machine?")
        else:
            torn = [other.damage for _, other in matrices if other.kind == kind and other.damage]
            doubt = torn[0] if torn else PCIE_ONLY if one.pcie_only else ""
            facts = merge(facts, Facts(links=one.cells, links_doubt=doubt, sources=source))
    return replace(facts, damage=(*facts.damage, *damage))
