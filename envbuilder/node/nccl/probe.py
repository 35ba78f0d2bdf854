"""Machine → facts, without root and without starting a program unless NVML is missing."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import platform
import re
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from envbuilder.node.nccl.facts import Facts, Job, merge, origin
from envbuilder.node.nccl.files import names, text
from envbuilder.node.nccl.gpus import Run, probe_gpus
from envbuilder.node.nccl.interface import SLINGSHOT
from envbuilder.node.nccl.network import Addresses, probe_network, system_addresses

VENDORS = {
    "GenuineIntel": "intel", "AuthenticAMD": "amd", "HygonGenuine": "amd", "ARM": "arm", "CentaurHauls": "zhaoxin",
    "Shanghai": "zhaoxin",
}  # fmt: skip
HYPERVISORS = (
    "kvm", "qemu", "vmware", "virtualbox", "xen", "microsoft", "amazon", "google", "bochs", "openstack", "parallels", "nutanix",
)  # fmt: skip
CHANNELS = "dev/nvidia-caps-imex-channels"
TOPOLOGY = "var/run/nvidia-topologyd/virtualTopology.xml"
NODES = ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "GROUP_WORLD_SIZE")
CONTAINERS = ((".dockerenv", "docker"), ("run/.containerenv", "podman"), (".singularity.d", "apptainer"))


@dataclass(frozen=True)
class ProbeIO:
    """The sources that a probe reads; a test can replace each."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[Path, ...] = ()  # the folders of the environment's Python packages
    nvml: Any = None  # the module pynvml
    run: Run = lambda _argv: None  # as if no program was installed
    addresses: Callable[[], Addresses | None] = system_addresses
    way_to: Callable[[str], str | None] = field(default_factory=lambda: way_to)
    loads: Callable[[str], bool] = field(default_factory=lambda: can_load)


def probe(io: ProbeIO) -> Facts:
    """Probe every fact that a rule needs, each with its source."""
    facts = merge(_machine(io), probe_gpus(io.root, io.nvml, io.run))
    facts = merge(facts, probe_network(io.root, io.addresses))
    if facts.rdma:
        facts = merge(facts, Facts(verbs=io.loads("libibverbs.so.1"), sources=origin(verbs="dlopen")))
    facts = merge(merge(facts, _plugin(io, facts)), _imex(io.root, facts))
    facts = merge(facts, _packages(io.packages))
    return merge(facts, _job(io, facts))


def import_nvml(folders: Sequence[str] = ()) -> Any:
    """Import nvidia-ml-py, also from folders outside this Python's path. Return None where it is not installed."""
    sys.path += folders
    try:
        import pynvml  # noqa: PLC0415 - only where there is a driver to ask
    except ImportError:
        return None
    finally:
        del sys.path[len(sys.path) - len(folders) :]
    return pynvml


def run_program(argv: tuple[str, ...]) -> str | None:
    """Run a program inside an image, which has no `envbuilder.core.process`. Return None where it fails."""
    import subprocess  # noqa: PLC0415, TID251 - only where NVML does not answer

    try:
        return subprocess.run(argv, capture_output=True, check=True, text=True, timeout=15).stdout
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None


def way_to(host: str) -> str | None:
    """Return the address that the kernel would use to reach a host; nothing is sent."""
    try:
        family, kind, _, _, there = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as udp:
            udp.connect(there)
            return str(udp.getsockname()[0])
    except OSError:
        return None


def can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _machine(io: ProbeIO) -> Facts:
    root = io.root
    cpuinfo = text(root / "proc/cpuinfo")
    virtual = _virtual(root, cpuinfo)
    dmi = "/proc/cpuinfo and /sys/class/dmi/id" if virtual is not None else "neither CPU flags nor DMI say"
    try:
        numbers = os.statvfs(root / "dev/shm")
        shm, asked = numbers.f_frsize * numbers.f_blocks, "statvfs"
    except OSError:
        shm, asked = None, "/dev/shm cannot be read"
    return Facts(
        kernel=text(root / "proc/sys/kernel/osrelease") or platform.release(),
        cpu=_vendor(cpuinfo),
        virtual=virtual,
        container=next((name for mark, name in CONTAINERS if (root / mark).exists()), ""),
        shm=shm,
        topology_file=f"/{TOPOLOGY}" if (root / TOPOLOGY).exists() else "",
        sources=origin(
            kernel="/proc/sys/kernel/osrelease",
            cpu="/proc/cpuinfo",
            virtual=dmi,
            container="marks of the runtimes in /",
            shm=asked,
        ),
    )


def _vendor(cpuinfo: str | None) -> str | None:
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)", cpuinfo or "", re.MULTILINE)
    if vendor:
        return VENDORS.get(vendor[1], vendor[1].lower())
    return "arm" if re.search(r"^CPU implementer\s*:", cpuinfo or "", re.MULTILINE) else None


def _virtual(root: Path, cpuinfo: str | None) -> str | None:
    """Return the hypervisor's name, "" on bare metal, or None where it is not known."""
    kernel = (text(root / "proc/sys/kernel/osrelease") or "").lower()
    if "microsoft" in kernel:
        return "wsl"
    files = ("sys_vendor", "product_name", "bios_vendor")
    maker = " ".join(text(root / "sys/class/dmi/id" / name) or "" for name in files).lower()
    metal = "metal" in maker  # a bare-metal instance of a cloud names its cloud as well
    named = next((name for name in HYPERVISORS if name in maker), "")
    flags = re.search(r"^flags\s*:.*", cpuinfo or "", re.MULTILINE)
    if flags:
        return (named or "hypervisor") if re.search(r"\bhypervisor\b", flags[0]) else ""
    if named and not metal:
        return named
    return "" if maker.strip() else None


def _plugin(io: ProbeIO, facts: Facts) -> Facts:
    """Beside Slingshot, whether the plugin that NCCL would look for can be loaded."""
    if not any(SLINGSHOT.fullmatch(interface.name) for interface in facts.interfaces or ()):
        return Facts()
    chosen = io.environment.get("NCCL_NET_PLUGIN", "")
    library = f"libnccl-net-{chosen}.so" if chosen else "libnccl-net.so"
    return Facts(plugin=io.loads(library), sources=origin(plugin=f"dlopen of {library}"))


def _imex(root: Path, facts: Facts) -> Facts:
    """On superchips, the IMEX channels that this user may open."""
    if not facts.is_superchips:
        return Facts()
    folder = root / CHANNELS
    channels = [name for name in names(folder) or () if name.startswith("channel")]
    usable = tuple(name for name in channels if os.access(folder / name, os.R_OK | os.W_OK))
    return Facts(imex=usable, sources=origin(imex=f"/{CHANNELS}"))


def _packages(folders: tuple[Path, ...]) -> Facts:
    """Return the versions of NCCL and torch that are installed as Python packages."""
    versions: dict[str, str] = {}
    for folder in folders:
        for name in names(folder) or ():
            match = re.fullmatch(r"(nvidia_nccl_cu\d+|torch)-(\d[^-]*)\.dist-info", name)
            if match:
                versions.setdefault("torch" if match[1] == "torch" else "nccl", match[2])
    searched = ", ".join(map(str, folders))
    absent = f"not in {searched}" if searched else "no Python environment was given"
    nccl, torch = (searched if name in versions else absent for name in ("nccl", "torch"))
    return Facts(
        nccl=versions.get("nccl"), torch=versions.get("torch"), sources=origin(nccl=nccl, torch=torch)
    )


def _job(io: ProbeIO, facts: Facts) -> Facts:
    """Return the number of nodes of the job, and the interface that leads to another one."""
    env = io.environment
    hosts = expand_hosts(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "")
    here = env.get("SLURMD_NODENAME", "")
    peer = next((host for host in hosts if host != here), "") or env.get("MASTER_ADDR", "")
    nodes = next((int(env[name]) for name in NODES if env.get(name, "").isdigit() and int(env[name])), None)
    nodes = nodes or len(hosts) or None
    is_alone = "WORLD_SIZE" in env and env.get("WORLD_SIZE") == env.get("LOCAL_WORLD_SIZE")
    if nodes is None and (is_alone or env.get("MASTER_ADDR", "") in ("localhost", "127.0.0.1", "::1")):
        nodes = 1
    device = None
    if peer and nodes != 1:
        ours = io.way_to(peer)
        ports = facts.interfaces or ()
        owners = (port.name for port in ports for place in port.addresses or () if place.text == ours)
        device = next(owners, None)
    job = Job(nodes, peer, device, env.get("SLURM_JOB_ID", ""))
    return Facts(job=job, sources=origin(job="environment")) if job != Job() else Facts()


def expand_hosts(written: str) -> list[str]:
    """Expand Slurm's short form: n[01-03,7],login → n01 n02 n03 n7 login; at most 10000 names for each part."""
    hosts: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", written):
        pieces = enumerate(re.split(r"\[([^\]]*)\]", part))
        choices = [_numbers(piece) if index % 2 else [piece] for index, piece in pieces]
        if math.prod(map(len, choices)) > 10000:
            return []
        hosts += map("".join, itertools.product(*choices))
    return hosts


def _numbers(inner: str) -> list[str]:
    numbers: list[str] = []
    for piece in inner.split(","):
        first, dash, last = piece.partition("-")
        if dash and first.isdigit() and last.isdigit() and int(last) - int(first) < 10000:
            numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        else:
            numbers.append(piece)
    return numbers
