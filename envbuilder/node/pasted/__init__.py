"""Read texts that people saved or pasted, all of one machine, as its facts.

Each text may hold several outputs, in any order, with prompts and prose around them. What cannot be read with certainty
goes into `Facts.damage` and nothing is concluded from it.
"""

import re
from dataclasses import replace

from envbuilder.node.nccl.facts import Facts, Gpu, Interface, Nic, RdmaPort, merge
from envbuilder.node.pasted.listing import address, join, parse_listing
from envbuilder.node.pasted.matrices import Matrix, clean, find_matrices

USING = re.compile(r"NCCL INFO (?:Bootstrap|NET/Socket) : Using (.+)$|NCCL INFO NET : Using interface (\S+)")
NAMED = re.compile(r"(?:\[\d+\])?([A-Za-z0-9_.@-]+):(\S+)<\d+>")
IB = re.compile(r"NCCL INFO NET/IB : Using (.+)$")
IB_PORT = re.compile(r"(?:\[\d+\])?([A-Za-z0-9_]+):(\d+)/(IB|RoCE|iWARP)")
NCCL_VERSION = re.compile(
    r"NCCL version (\d+\.\d+(?:\.\d+)?)|nvidia-nccl-cu\d+==(\d+\.\d+\.\d+)|Using NCCL (\d+\.\d+\.\d+)"
)
TORCH_VERSION = re.compile(r"(?:PyTorch version:\s*|\btorch==)(\d+\.\d+\.\d+)")
DRIVER = re.compile(
    r"(?:Driver Version:\s*|[Nn]vidia driver version:\s*|NVRM version:.*?Kernel Module\s+(?:for \S+\s+)?)(\d+\.\d+(?:\.\d+)?)"
)
GPU_NAME = re.compile(r"^\s*GPU (\d+): (.+?)(?: \(UUID:.*)?\s*$")
GPU_ROW = re.compile(
    r"^\|\s+(\d+)\s+((?:NVIDIA|Tesla|GeForce|Quadro|TITAN|GRID)\b[^|]*?)\s+(?:On|Off|N/A)\s+\|"
)
VENDOR = re.compile(r"^\s*(?:Vendor ID|vendor_id)\s*:\s*(\S+)", re.MULTILINE)
VENDORS = {
    "GenuineIntel": "intel", "AuthenticAMD": "amd", "ARM": "arm", "CentaurHauls": "zhaoxin", "Shanghai": "zhaoxin",
}  # fmt: skip
PCIE_ONLY = "the matrix leaves NVLink out, as `nvidia-smi topo -mp` does"


def parse_pasted(texts: dict[str, str]) -> Facts:
    """Parse the facts of one machine; `texts` maps file names to texts."""
    facts = Facts()
    matrices: list[tuple[str, Matrix]] = []
    for name, text in sorted(texts.items()):
        plain = clean(text)
        listing, traces = parse_listing(plain), _traces(plain)
        is_cut = listing.interfaces is None and listing.damage
        interfaces = () if is_cut else join([*(listing.interfaces or ()), *(traces.interfaces or ())])
        seen = replace(
            traces,
            interfaces=interfaces or None,
            routes=listing.routes,
            damage=tuple(f"{name}: {damage}" for damage in listing.damage),
        )
        sources = tuple((field, name) for field in seen.known if field != "damage")
        facts = merge(facts, replace(seen, sources=sources))
        matrices += [(name, matrix) for matrix in find_matrices(text)]
    return _with_matrices(facts, matrices)


def _with_matrices(facts: Facts, matrices: list[tuple[str, Matrix]]) -> Facts:
    """Add the matrices that are consistent. Two that differ are of two machines, and neither counts."""
    damage = [f"{name}: {matrix.damage}" for name, matrix in matrices if matrix.damage]
    counts = {matrix.gpus for _, matrix in matrices if matrix.gpus is not None}
    if facts.gpus is not None and counts:
        counts.add(len(facts.gpus))
    if len(counts) > 1:
        damage.append(f"GPUs are {' and '.join(map(str, sorted(counts)))}: of more than one machine?")
        return replace(facts, gpus=None, damage=(*facts.damage, *damage))
    if facts.gpus is None and counts:
        facts = merge(facts, Facts(gpus=(Gpu(),) * counts.pop(), sources=(("gpus", matrices[0][0]),)))
    for kind, command in (("links", "`nvidia-smi topo -m`"), ("p2p", "`nvidia-smi topo -p2p`")):
        readable = [(name, matrix) for name, matrix in matrices if matrix.kind == kind and matrix.cells]
        readable = [pair for pair in readable if not pair[1].pcie_only] or readable
        if not readable:
            continue
        name, matrix = readable[0]
        source = ((kind, f"{name}, {command}"),)
        if kind == "p2p":
            facts = merge(facts, Facts(p2p=matrix.cells, sources=source))
        elif len({other.cells for _, other in readable}) > 1:
            damage.append(f"{len(readable)} matrices that differ: of more than one machine?")
        else:
            torn = [other.damage for _, other in matrices if other.kind == kind and not other.cells]
            doubt = torn[0] if torn else PCIE_ONLY if matrix.pcie_only else ""
            nics = next((other.nics for _, other in readable if other.nics), ())
            seen = tuple(Nic(adapter, links) for adapter, links in nics) or None
            facts = merge(facts, Facts(links=matrix.cells, nics=seen, links_doubt=doubt, sources=source))
    return replace(facts, damage=(*facts.damage, *damage))


def _traces(text: str) -> Facts:
    """Return what NCCL's INFO lines, `nvidia-smi` and torch's `collect_env` mention; contradicting versions count as unknown."""
    vendor = VENDOR.search(text)
    facts = Facts(
        gpus=_gpus(text),
        driver=_one(DRIVER, text),
        nccl=_one(NCCL_VERSION, text),
        torch=_one(TORCH_VERSION, text),
        cpu=VENDORS.get(vendor[1]) if vendor else None,
    )
    return merge(facts, _network(text))


def _one(pattern: re.Pattern[str], text: str) -> str | None:
    found = {next(group for group in match.groups() if group) for match in pattern.finditer(text)}
    return found.pop() if len(found) == 1 else None


def _gpus(text: str) -> tuple[Gpu, ...] | None:
    """Return the GPUs of `nvidia-smi -L` or of the table of `nvidia-smi`, if none is missing from 0 on."""
    for pattern in (GPU_NAME, GPU_ROW):
        names = {int(row[1]): row[2] for line in text.split("\n") if (row := pattern.match(line))}
        if names and sorted(names) == list(range(len(names))):
            return tuple(Gpu(name=names[number]) for number in sorted(names))
    return None


def _network(text: str) -> Facts:
    """Return the interfaces that NCCL took, in its order, each with the one address that its log prints."""
    taken: dict[str, Interface] = {}
    ports: dict[str, RdmaPort] = {}
    for line in text.split("\n"):
        match = USING.search(line)
        for name, where in NAMED.findall(match[1] or match[2]) if match else ():
            location = address(where)
            if (
                not location.text
            ):  # an alias of the interface stands before the address: eno1:avahi:169.254.7.21
                alias, _, rest = where.partition(":")
                location = address(rest, label=f"{name}:{alias}")
            taken.setdefault(location.label or name, Interface(name, addresses=(location,), up=True))
        match = IB.search(line)
        for device, port, layer in IB_PORT.findall(match[1]) if match else ():
            kind = "InfiniBand" if layer == "IB" else "Ethernet"
            ports.setdefault(f"{device}:{port}", RdmaPort(device, int(port), "ACTIVE", kind))
    return Facts(
        interfaces=tuple(taken.values()) or None,
        taken=tuple(taken) or None,
        rdma=tuple(ports.values()) or None,
    )
