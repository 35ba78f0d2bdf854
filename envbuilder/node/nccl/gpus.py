"""The GPUs of this machine: from NVML, else from `nvidia-smi`, else from the kernel alone; their places from sysfs."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Optional, Tuple

from envbuilder.node.nccl.facts import Facts, Gpu, Nic, merge, origin
from envbuilder.node.nccl.files import names, text

if TYPE_CHECKING:
    from pathlib import Path

Run = Callable[["tuple[str, ...]"], Optional[str]]  # a program's output; None where it failed or is not there

Matrix = Tuple[Tuple[str, ...], ...]

CELL = re.compile(r"X|SYS|SOC|NODE|PHB|PXB|PIX|NV\d+|C2C|OK|CNS|GNS|TNS|NS|DR|U")
UNDERLINE = re.compile(r"\x1b\[[0-9;]*m")
BUS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
NVIDIA = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")
ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
STATUSES = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
READ, NVLINK = 0, 2  # NVML_P2P_CAPS_INDEX
MOST_NVLINKS = 36
_SILENT = origin(gpus="the driver's device is here; NVML and `nvidia-smi` do not answer")
QUERY = ("nvidia-smi", "--query-gpu=index,name,pci.bus_id,driver_version", "--format=csv,noheader")


def probe_gpus(root: Path, nvml: Any, run: Run) -> Facts:
    """Probe GPUs, driver, links and P2P status; `nvml` is the module `pynvml`, or None."""
    seen = _from_kernel(root)
    if not seen.gpus and not any((root / "dev" / name).exists() for name in ("nvidiactl", "dxg")):  # dxg: WSL
        return seen
    facts = _from_nvml(nvml) if nvml is not None else None
    if facts is None:
        facts = _from_nvidia_smi(run) or (seen if seen.gpus else replace(seen, gpus=None, sources=_SILENT))
    placed = tuple(_place(gpu, root) if gpu.bus else gpu for gpu in facts.gpus or ())
    return replace(facts, driver=facts.driver or seen.driver, gpus=None if facts.gpus is None else placed)


def bus_address(written: str) -> str:
    """00000000:3B:00.0 → 0000:3b:00.0"""
    domain, _, rest = written.strip().lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _from_kernel(root: Path) -> Facts:
    """Probe without the driver's library: the driver's version and the devices on the bus."""
    driver, source = text(root / "sys/module/nvidia/version"), "/sys/module/nvidia/version"
    if driver is None:
        module = text(root / "proc/driver/nvidia/version") or ""
        match = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+\.\d+(?:\.\d+)?)", module)
        driver = match[1] if match else None
        source = "/proc/driver/nvidia/version" if match else "the NVIDIA driver is not loaded"
    devices = root / "sys/bus/pci/devices"
    listed = names(devices)
    if listed is None:
        return Facts(driver=driver, sources=origin(driver=source, gpus=f"{devices} cannot be read"))
    gpus = tuple(
        Gpu(name=_model(root, bus), bus=bus)
        for bus in listed
        if text(devices / bus / "vendor") == NVIDIA
        and (text(devices / bus / "class") or "").startswith(DISPLAY_CLASSES)
    )
    silent = "PCI bus; NVML and `nvidia-smi` do not answer"
    bus_says = silent if gpus else "there is no NVIDIA GPU on the PCI bus"
    return Facts(gpus=gpus, driver=driver, sources=origin(driver=source, gpus=bus_says))


def _model(root: Path, bus: str) -> str | None:
    information = text(root / f"proc/driver/nvidia/gpus/{bus}/information") or ""
    model = re.search(r"^Model:\s*(.+)$", information, re.MULTILINE)
    return model[1].strip() if model else None


def _from_nvml(nvml: Any) -> Facts | None:
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
        facts = Facts(gpus=gpus, driver=driver, sources=origin(gpus="NVML", driver="NVML"))
        try:
            links, p2p = _nvml_matrices(nvml, handles, gpus)
        except nvml.NVMLError as error:
            return merge(facts, Facts(sources=origin(links=f"NVML: {error}")))
        return merge(facts, Facts(links=links, p2p=p2p, sources=origin(links="NVML", p2p="NVML")))
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _decoded(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _nvml_matrices(nvml: Any, handles: list[Any], gpus: tuple[Gpu, ...]) -> tuple[Matrix, Matrix]:
    """Return the links as `nvidia-smi topo -m` and the statuses as `nvidia-smi topo -p2p r`."""
    ends = [_nvlinks(nvml, handle) for handle in handles]

    def link(number: int, other: int) -> str:
        pair = (handles[number], handles[other])
        direct = ends[number].count(gpus[other].bus or "")
        over_switch = min(ends[number].count("switch"), ends[other].count("switch"))
        count = direct or over_switch or _says_nvlink(nvml, *pair)
        return f"NV{count:d}" if count else ANCESTORS[nvml.nvmlDeviceGetTopologyCommonAncestor(*pair)]

    def status(number: int, other: int) -> str:
        return STATUSES.get(nvml.nvmlDeviceGetP2PStatus(handles[number], handles[other], READ), "U")

    return _square(len(gpus), link), _square(len(gpus), status)


def _square(size: int, cell: Callable[[int, int], str]) -> Matrix:
    every = range(size)
    return tuple(tuple("X" if row == column else cell(row, column) for column in every) for row in every)


def _says_nvlink(nvml: Any, handle: Any, another: Any) -> bool:
    """Ask NVML for the link of a pair whose ends are not known."""
    try:
        return bool(nvml.nvmlDeviceGetP2PStatus(handle, another, NVLINK) == 0)
    except nvml.NVMLError:
        return False


def _nvlinks(nvml: Any, handle: Any) -> list[str]:
    """Return the end of each active NVLink of a GPU: the bus address of another GPU, or "switch"."""
    ends = []
    for number in range(MOST_NVLINKS):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(handle, number):
                continue
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            break
        try:
            is_switch = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, number) == SWITCH
        except nvml.NVMLError:
            is_switch = False
        end = None if is_switch else nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number)
        ends.append(bus_address(_decoded(end.busId)) if end else "switch")
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
    facts = Facts(gpus=gpus, driver=rows[0][3], sources=origin(gpus="nvidia-smi", driver="nvidia-smi"))
    for kind, options in (("links", ("-m",)), ("p2p", ("-p2p", "r"))):
        matrix, nics = _topology(run(("nvidia-smi", "topo", *options)) or "", len(gpus))
        if matrix:
            known: dict[str, Any] = {kind: matrix, "nics": nics or facts.nics}
            source = origin(**{kind: f"nvidia-smi topo {' '.join(options)}"})
            facts = merge(facts, Facts(**known, sources=source))
    return facts


def _topology(output: str, gpus: int) -> tuple[Matrix, tuple[Nic, ...]]:
    """Read a matrix as `nvidia-smi topo` prints it, and the links of adapters to the GPUs.

    What people paste, and what happens to it on the way, is for `envbuilder.node.pasted`.
    """
    lines = [line.split() for line in UNDERLINE.sub("", output).splitlines()]
    head = next((words for words in lines if words[:1] == ["GPU0"]), [])
    names = list(itertools.takewhile(lambda word: word not in ("CPU", "NUMA"), head))
    rows = {words[0]: words[1 : len(names) + 1] for words in lines if words and words != head}
    wanted = [f"GPU{number}" for number in range(gpus)]
    cells = [rows.get(name, []) for name in wanted]
    if [name for name in names if name.startswith("GPU")] != wanted:
        return (), ()
    if not all(len(row) == len(names) and all(map(CELL.fullmatch, row)) for row in cells):
        return (), ()
    every = range(gpus)
    if any((cells[row][column] == "X") != (row == column) for row in every for column in every):
        return (), ()
    models = {words[0][:-1]: words[1] for words in lines if len(words) == 2 and words[0].endswith(":")}
    nics = tuple(
        Nic(models.get(name, name), tuple(row[column] for row in cells))
        for column, name in enumerate(names)
        if not name.startswith(("GPU", "NVMe"))
    )
    return tuple(tuple(row[:gpus]) for row in cells), nics


def _place(gpu: Gpu, root: Path) -> Gpu:
    device = root / "sys/bus/pci/devices" / (gpu.bus or "")
    if not device.exists():
        return gpu
    written = text(device / "numa_node") or ""
    numa = int(written) if written.isdigit() else None
    group = (device / "iommu_group").resolve().name if (device / "iommu_group").is_symlink() else None
    iommu = _iommu_type(root, group)
    return replace(gpu, numa=numa, iommu=iommu, iommu_group=group, switch=_switch(device))


def _iommu_type(root: Path, group: str | None) -> str | None:
    """Return DMA or DMA-FQ (translating), identity (pass-through) or off. Old kernels without `type` tell it by boot flags."""
    folder = root / "sys/kernel/iommu_groups"
    if group is None:
        return None if names(folder) else "off"
    if kind := text(folder / group / "type"):
        return kind
    return "identity" if "iommu=pt" in (text(root / "proc/cmdline") or "").split() else None


def _switch(device: Path) -> str | None:
    """Return the upstream port of the nearest PCIe switch. A switch is a pair of upstream and downstream port."""
    chain = [part for part in device.resolve().parts if BUS.fullmatch(part)]
    if not chain:
        return None
    return chain[-3] if len(chain) >= 4 else ""
