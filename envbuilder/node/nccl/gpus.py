"""The GPUs of this machine: from NVML, else from `nvidia-smi`, else from the kernel alone; their places from sysfs."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Optional

from envbuilder.node.nccl.facts import Facts, Gpu
from envbuilder.node.nccl.grid import find_matrices
from envbuilder.node.nccl.roots import Roots, names, text

if TYPE_CHECKING:
    from pathlib import Path

Run = Callable[["tuple[str, ...]"], Optional[str]]  # a program's output; None where it failed or is not there

NVIDIA = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")
ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
STATUSES = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
READ, NVLINK = 0, 2  # NVML_P2P_CAPS_INDEX
MOST_NVLINKS = 36
QUERY = ("nvidia-smi", "--query-gpu=index,name,pci.bus_id,driver_version", "--format=csv,noheader")


def probe_gpus(roots: Roots, nvml: Any, run: Run) -> Facts:
    """Probe GPUs, driver, links and P2P status; `nvml` is the module `pynvml`, or None."""
    seen = _from_kernel(roots)
    if not seen.gpus and not (roots.dev / "nvidiactl").exists():
        return seen
    found = _from_nvml(nvml) if nvml is not None else None
    if found is None:
        found = _from_nvidia_smi(run)
    if found is None:
        return _placed(seen, roots)
    driver = found.driver or seen.driver
    return _placed(replace(found, driver=driver), roots)


def bus_address(written: str) -> str:
    """00000000:3B:00.0 → 0000:3b:00.0"""
    domain, _, rest = written.strip().lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _from_kernel(roots: Roots) -> Facts:
    """Probe without the driver's library: the driver's version and the devices on the bus."""
    driver = text(roots.sys / "module/nvidia/version")
    source = "/sys/module/nvidia/version"
    if driver is None:
        told = re.search(
            r"Kernel Module\s+(?:for \S+\s+)?(\d+\.\d+(?:\.\d+)?)",
            text(roots.proc / "driver/nvidia/version") or "",
        )
        driver, source = (
            (told[1], "/proc/driver/nvidia/version") if told else (None, "the NVIDIA driver is not loaded")
        )
    devices = roots.sys / "bus/pci/devices"
    listed = names(devices)
    if listed is None:
        return Facts(driver=driver, sources=(("driver", source), ("gpus", f"{devices} cannot be read")))
    gpus = tuple(
        Gpu(name=_model(roots, bus), bus=bus)
        for bus in listed
        if text(devices / bus / "vendor") == NVIDIA
        and (text(devices / bus / "class") or "").startswith(DISPLAY_CLASSES)
    )
    told_by = (
        "PCI bus; NVML and `nvidia-smi` do not answer" if gpus else "there is no NVIDIA GPU on the PCI bus"
    )
    return Facts(gpus=gpus, driver=driver, sources=(("driver", source), ("gpus", told_by)))


def _model(roots: Roots, bus: str) -> str | None:
    found = re.search(
        r"^Model:\s*(.+)$", text(roots.proc / f"driver/nvidia/gpus/{bus}/information") or "", re.MULTILINE
    )
    return found[1].strip() if found else None


def _from_nvml(nvml: Any) -> Facts | None:
    """Probe with NVML; None where it does not start."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        driver = _decoded(nvml.nvmlSystemGetDriverVersion())
        handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
        gpus = tuple(
            Gpu(
                name=_decoded(nvml.nvmlDeviceGetName(handle)),
                bus=bus_address(_decoded(nvml.nvmlDeviceGetPciInfo(handle).busId)),
            )
            for handle in handles
        )
        facts = Facts(gpus=gpus, driver=driver, sources=(("gpus", "NVML"), ("driver", "NVML")))
        try:
            links, p2p = _nvml_matrices(nvml, handles, gpus)
        except nvml.NVMLError as error:
            return replace(facts, sources=(*facts.sources, ("links", f"NVML: {error}")))
        return replace(
            facts, links=links, p2p=p2p, sources=(*facts.sources, ("links", "NVML"), ("p2p", "NVML"))
        )
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _decoded(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _nvml_matrices(nvml: Any, handles: list[Any], gpus: tuple[Gpu, ...]) -> tuple[Any, Any]:
    wires = [_nvlinks(nvml, handle) for handle in handles]
    links, p2p = [], []
    for number, handle in enumerate(handles):
        row, statuses = [], []
        for other, another in enumerate(handles):
            if number == other:
                row.append("X")
                statuses.append("X")
                continue
            statuses.append(STATUSES.get(nvml.nvmlDeviceGetP2PStatus(handle, another, READ), "U"))
            direct = wires[number].count(gpus[other].bus or "")
            over_switch = min(wires[number].count("switch"), wires[other].count("switch"))
            count = direct or over_switch
            if not count and _says_nvlink(nvml, handle, another):
                count = 1
            level = nvml.nvmlDeviceGetTopologyCommonAncestor(handle, another)
            row.append(f"NV{count}" if count else ANCESTORS[level])
        links.append(tuple(row))
        p2p.append(tuple(statuses))
    return tuple(links), tuple(p2p)


def _says_nvlink(nvml: Any, handle: Any, another: Any) -> bool:
    """Ask NVML for the link of a pair whose ends are not known."""
    try:
        return bool(nvml.nvmlDeviceGetP2PStatus(handle, another, NVLINK) == 0)
    except nvml.NVMLError:
        return False


def _nvlinks(nvml: Any, handle: Any) -> list[str]:
    """Where each active NVLink of a GPU ends: the bus address of a GPU, or "switch"."""
    ends = []
    for number in range(MOST_NVLINKS):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(handle, number):
                continue
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            break
        try:
            kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, number)
        except nvml.NVMLError:
            kind = None
        if kind == SWITCH:
            ends.append("switch")
        else:
            ends.append(bus_address(_decoded(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number).busId)))
    return ends


def _from_nvidia_smi(run: Run) -> Facts | None:
    listed = run(QUERY)
    if not listed:
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in listed.strip().splitlines()]
    rows = [row for row in rows if len(row) == 4 and row[0].isdigit()]
    if not rows:
        return None
    gpus = tuple(Gpu(name=row[1], bus=bus_address(row[2])) for row in rows)
    facts = Facts(gpus=gpus, driver=rows[0][3], sources=(("gpus", "nvidia-smi"), ("driver", "nvidia-smi")))
    for field, kind, option in (("links", "links", ("-m",)), ("p2p", "p2p", ("-p2p", "r"))):
        found = [
            one
            for one in find_matrices(run(("nvidia-smi", "topo", *option)) or "")
            if one.kind == kind and not one.damage
        ]
        if len(found) == 1 and found[0].gpus == len(gpus):
            source = ((field, f"nvidia-smi topo {' '.join(option)}"),)
            facts = replace(facts, **{field: found[0].cells}, sources=(*facts.sources, *source))  # type: ignore[arg-type]
    return facts


def _placed(facts: Facts, roots: Roots) -> Facts:
    """Add to each GPU its place in sysfs."""
    if facts.gpus is None:
        return facts
    placed = tuple(_place(gpu, roots) if gpu.bus else gpu for gpu in facts.gpus)
    return replace(facts, gpus=placed)


def _place(gpu: Gpu, roots: Roots) -> Gpu:
    device = roots.sys / "bus/pci/devices" / (gpu.bus or "")
    if not device.exists():
        return gpu
    numa = text(device / "numa_node")
    group = (device / "iommu_group").resolve().name if (device / "iommu_group").is_symlink() else None
    return replace(
        gpu,
        numa=int(numa) if numa and numa.isdigit() else None,
        iommu=_iommu_type(roots, group),
        iommu_group=group,
        switch=_switch(device),
    )


def _iommu_type(roots: Roots, group: str | None) -> str | None:
    """DMA, DMA-FQ (translating), identity (pass-through), off; from the boot flags where the kernel has no `type` yet."""
    if group is None:
        groups = names(roots.sys / "kernel/iommu_groups")
        return "off" if not groups else None
    told = text(roots.sys / "kernel/iommu_groups" / group / "type")
    if told:
        return told
    return "identity" if "iommu=pt" in (text(roots.proc / "cmdline") or "").split() else None


def _switch(device: Path) -> str | None:
    """The upstream port of the nearest PCIe switch: below a root port stand pairs of upstream and downstream port."""
    chain = [
        part
        for part in device.resolve().parts
        if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", part)
    ]
    above = chain[:-1]
    if not chain:
        return None
    return above[-2] if len(above) >= 3 else ""
