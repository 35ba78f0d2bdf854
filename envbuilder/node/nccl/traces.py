"""What other programs say of a machine in passing: NCCL's INFO lines, `nvidia-smi`, torch's `collect_env`."""

from __future__ import annotations

import re

from envbuilder.node.nccl.facts import Facts, Gpu, Interface, RdmaPort, merge
from envbuilder.node.nccl.listing import address

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
    "GenuineIntel": "intel",
    "AuthenticAMD": "amd",
    "ARM": "arm",
    "CentaurHauls": "zhaoxin",
    "Shanghai": "zhaoxin",
}


def parse_traces(text: str) -> Facts:
    """Return the versions that the text names; contradicting versions count as unknown."""
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
    """The names of `nvidia-smi -L`, or of the table that `nvidia-smi` prints; only with all numbers from 0."""
    for pattern in (GPU_NAME, GPU_ROW):
        names = {int(found[1]): found[2] for line in text.split("\n") if (found := pattern.match(line))}
        if names and sorted(names) == list(range(len(names))):
            return tuple(Gpu(name=names[number]) for number in sorted(names))
    return None


def _network(text: str) -> Facts:
    """The interfaces that NCCL took, in its order, with the one address that it printed of each."""
    taken: dict[str, Interface] = {}
    ports: dict[str, RdmaPort] = {}
    for line in text.split("\n"):
        found = USING.search(line)
        for name, where in NAMED.findall(found[1] or found[2]) if found else ():
            one = address(where)
            if not one.text:  # an alias of the interface stands before the address: eno1:avahi:169.254.7.21
                alias, _, rest = where.partition(":")
                one = address(rest, label=f"{name}:{alias}")
            taken.setdefault(one.label or name, Interface(name, addresses=(one,), up=True))
        found = IB.search(line)
        for device, port, layer in IB_PORT.findall(found[1]) if found else ():
            kind = "InfiniBand" if layer == "IB" else "Ethernet"
            ports.setdefault(f"{device}:{port}", RdmaPort(device, int(port), "ACTIVE", kind))
    return Facts(
        interfaces=tuple(taken.values()) or None,
        taken=tuple(taken) or None,
        rdma=tuple(ports.values()) or None,
    )
