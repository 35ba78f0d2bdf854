"""Checks for running: Apptainer, the driver for each recipe, memory, disk space, fabric and bus."""

import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from envbuilder.node.doctor.acs import redirects
from envbuilder.node.doctor.item import DoctorCode, Fix, Item, Machine, State, free_bytes, gigabytes
from envbuilder.node.nccl.facts import PASS_THROUGH, TRANSLATING
from envbuilder.node.nccl.roots import names, text

SHARED: Final = 1 << 30
SCRATCH: Final = 5 * 10**9
_SWITCHES: Final = (  # below /proc/sys: what must not be there, and how to set it
    ("kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)


def check_apptainer(machine: Machine) -> Iterator[Item]:
    why = "a SIF runs in it"
    said = machine.say("apptainer", "--version", why="ask for Apptainer's version")
    name = "Apptainer"
    if said is None:
        said, name = (
            machine.say("singularity", "--version", why="ask for Singularity's version"),
            "Singularity",
        )
    found = re.search(r"\d+\.\d+(?:\.\d+)?\S*", said or "")
    if not found:
        yield Item(
            code=DoctorCode.APPTAINER, name="Apptainer", state=State.MISSING, found="not installed", why=why,
            repair="scripts/setup; on a cluster ask for the package `apptainer`, or look for a module: module avail apptainer",
        )  # fmt: skip
        return
    yield Item(
        code=DoctorCode.APPTAINER,
        name=name,
        state=State.OK,
        found=found[0] + (", setuid" if has_setuid(machine) else ""),
        why=why,
    )


def has_setuid(machine: Machine) -> bool:
    """Whether Apptainer is setuid, and so needs neither user namespaces nor FUSE."""
    told = machine.say("apptainer", "buildcfg", why="ask where Apptainer's helpers are") or ""
    found = re.search(r"^LIBEXECDIR=(.+)$", told, re.MULTILINE)
    try:
        return bool(found and Path(found[1], "apptainer/bin/starter-suid").stat().st_mode & stat.S_ISUID)
    except OSError:
        return False


def check_namespaces(machine: Machine) -> Iterator[Item]:
    """Try to make a user namespace; the switches explain a failure."""
    why = "Apptainer without setuid, builds in a sandbox, and builds as an ordinary user make their own user namespace"
    sysctl = machine.roots.proc / "sys"
    shut = [(name, command) for name, value, command in _SWITCHES if text(sysctl / name) == value]
    works = (
        machine.say("unshare", "--user", "--map-root-user", "true", why="make a user namespace") is not None
    )
    if works:
        off = f"; for ordinary users {', '.join(name for name, _ in shut)} may forbid it" if shut else ""
        state, found = (State.WARNING if shut and machine.uid == 0 else State.OK), f"can be made{off}"
    else:
        needed = not (machine.uid == 0 or has_setuid(machine))
        state = State.MISSING if needed else State.WARNING
        found = f"cannot be made ({', '.join(name for name, _ in shut) or 'the kernel or a container forbids it'})"
    repair = (
        "; ".join(command for _, command in shut)
        or "ask the administrators for user namespaces or apptainer-suid"
    )
    yield Item(
        code=DoctorCode.NAMESPACES,
        name="user namespaces",
        state=state,
        found=found,
        why=why,
        repair="" if state is State.OK else repair,
    )


def check_subids(machine: Machine) -> Iterator[Item]:
    if machine.uid == 0:
        return
    lacking = []
    for file in ("subuid", "subgid"):
        lines = (text(machine.roots.root / "etc" / file) or "").splitlines()
        owners = {line.split(":")[0] for line in lines if line.count(":") == 2}
        if not owners & {machine.user, str(machine.uid)}:
            lacking.append(f"/etc/{file}")
    helper = shutil.which("newuidmap", path=machine.environment.get("PATH"))
    yield Item(
        code=DoctorCode.SUBIDS,
        name="subordinate ids",
        state=State.WARNING if lacking or not helper else State.OK,
        found=f"none for {machine.user} in {' and '.join(lacking)}"
        if lacking
        else "there"
        if helper
        else "there, but `newuidmap` is not installed",
        why="a build as an ordinary user installs packages whose files have many owners; running needs none",
        repair=f"usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {machine.user}"
        if lacking
        else ""
        if helper
        else "apt-get install uidmap",
    )


def check_fuse(machine: Machine) -> Iterator[Item]:
    device = machine.roots.dev / "fuse"
    why = "without root or setuid, a SIF is mounted by squashfuse"
    if not device.exists():
        fix = Fix(told="modprobe fuse", run=lambda: _modprobe(machine)) if machine.uid == 0 else None
        yield Item(
            code=DoctorCode.FUSE, name="FUSE", state=State.WARNING, found=f"{device} is not there", why=why,
            repair="modprobe fuse", fix=fix,
        )  # fmt: skip
        return
    open_to_all = stat.S_IMODE(device.stat().st_mode) & 0o006 == 0o006
    ours = os.access(device, os.R_OK | os.W_OK)
    path = machine.environment.get("PATH")
    lacking = [one for one in ("fusermount3", "squashfuse") if not shutil.which(one, path=path)]
    if not ours or not open_to_all:
        state, found = State.WARNING, f"{device} is not open to {'all' if ours else 'you'}"
        repair = f"chmod 666 {device}"
    elif lacking:
        state, found = (
            State.WARNING,
            f"no {' and no '.join(f'`{one}`' for one in lacking)} on PATH (Apptainer may bring its own)",
        )
        repair = "apt-get install fuse3 squashfuse"
    else:
        state, found, repair = State.OK, f"{device} and its helpers are there", ""
    yield Item(code=DoctorCode.FUSE, name="FUSE", state=state, found=found, why=why, repair=repair)


def _modprobe(machine: Machine) -> None:
    machine.say("modprobe", "fuse", why="load the kernel's FUSE")


def check_driver(machine: Machine) -> Iterator[Item]:
    facts = machine.facts
    gpus = facts.gpus
    if gpus is None:
        state, found = State.UNKNOWN, facts.source("gpus") or "GPUs could not be looked for"
    elif facts.driver:
        state, found = State.OK, f"{facts.driver}, {len(gpus)} GPU{'' if len(gpus) == 1 else 's'}"
    elif gpus:
        state, found = State.WARNING, f"{len(gpus)} GPUs, and the NVIDIA driver is not loaded"
    else:
        state, found = State.OK, "no NVIDIA GPU here; none is needed to build"
    yield Item(
        code=DoctorCode.DRIVER,
        name="driver",
        state=state,
        found=found,
        why="it belongs to the machine, never to an image; each CUDA needs a certain one",
        repair="nvidia-smi" if state is State.WARNING else "",
    )
    if facts.driver:
        yield from _recipes(machine, facts.driver)


def _recipes(machine: Machine, driver: str) -> Iterator[Item]:
    gpus = tuple(dict.fromkeys(gpu.name for gpu in machine.facts.gpus or () if gpu.name))
    for recipe in machine.needs(driver, gpus):
        yield Item(
            code=DoctorCode.RECIPE,
            name=f"recipe {recipe.name}",
            state=State.WARNING if recipe.messages else State.OK,
            found="; ".join(recipe.messages) or f"CUDA {recipe.cuda} runs on {driver}",
            why="an environment needs the driver of its CUDA and code for the GPU at hand",
            repair=f"envbuilder check {recipe.name} --host FILE" if recipe.messages else "",
        )


def check_memory(machine: Machine) -> Iterator[Item]:
    size = machine.facts.shm
    yield Item(
        code=DoctorCode.SHARED_MEMORY,
        name="/dev/shm",  # noqa: S108 - a name; no file is made
        state=State.UNKNOWN if size is None else State.OK if size >= SHARED else State.WARNING,
        found="cannot be read" if size is None else gigabytes(size),
        why="NCCL and DataLoader workers pass data through it; from 1 GB on it is enough for most",
        repair=""
        if size is None or size >= SHARED
        else "docker run --ipc=host; mount -o remount,size=50% /dev/shm",
    )
    has_rdma = bool(machine.facts.rdma)
    low = machine.memlock is not None and has_rdma
    yield Item(
        code=DoctorCode.LIMITS,
        name="locked memory",
        state=State.WARNING if low else State.OK,
        found="unlimited" if machine.memlock is None else f"{machine.memlock >> 10} kB",
        why="InfiniBand and RoCE lock the memory that they send from"
        + ("" if has_rdma else "; there is none here"),
        repair="ulimit -l unlimited; LimitMEMLOCK=infinity for slurmd; docker run --ulimit memlock=-1"
        if low
        else "",
    )


def check_scratch(machine: Machine) -> Iterator[Item]:
    env = machine.environment
    places = {
        "TMPDIR": env.get("TMPDIR") or "/tmp",  # noqa: S108 - what programs use without it
        "APPTAINER_CACHEDIR": env.get("APPTAINER_CACHEDIR") or str(machine.home / ".apptainer/cache"),
        "APPTAINER_TMPDIR": env.get("APPTAINER_TMPDIR") or env.get("TMPDIR") or "/tmp",  # noqa: S108
    }
    for path, settings in _grouped(places).items():
        free = free_bytes(Path(path))
        low = free is not None and free < SCRATCH
        yield Item(
            code=DoctorCode.SCRATCH,
            name=", ".join(settings),
            state=State.UNKNOWN if free is None else State.WARNING if low else State.OK,
            found=f"{path} cannot be read" if free is None else f"{gigabytes(free)} free at {path}",
            why="images that are pulled or unpacked go through it, and homes on clusters have small quotas",
            repair=f"export {settings[0]}=/scratch/$USER" if low else "",
        )


def _grouped(places: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for setting, path in places.items():
        found.setdefault(path, []).append(setting)
    return found


def check_bus(machine: Machine) -> Iterator[Item]:
    """Check IOMMU and ACS, which slow down or break transfers between GPUs of one node."""
    gpus = machine.facts.gpus or ()
    if len(gpus) < 2:
        return
    kinds = {gpu.iommu for gpu in gpus}
    metal = machine.facts.virtual == ""
    why = "with translation on bare metal, copies between GPUs over PCIe hang or arrive damaged"
    if None in kinds:
        state, found = State.UNKNOWN, "the kernel does not say how the GPUs' groups are mapped"
    elif kinds & TRANSLATING:
        state = State.WARNING if metal else State.OK
        found = f"translating ({', '.join(sorted(kind for kind in kinds if kind))})" + (
            "" if metal else ", in a virtual machine"
        )
    else:
        state, found = (
            State.OK,
            "pass-through" if kinds <= PASS_THROUGH else ", ".join(sorted(filter(None, kinds))),
        )
    yield Item(
        code=DoctorCode.IOMMU, name="IOMMU", state=state, found=found, why=why,
        repair="boot with iommu=pt: add it to GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub" if state is State.WARNING else "",
    )  # fmt: skip
    yield _acs(machine)


def _acs(machine: Machine) -> Item:
    why = "ACS sends traffic between GPUs under one switch up to the processor and back"
    bridges = machine.roots.sys / "bus/pci/devices"
    told = [
        redirects(bridges / name / "config") for name in names(bridges) or () if _is_bridge(bridges / name)
    ]
    gpus = machine.facts.gpus or ()
    apart = {
        (one.bus, other.bus)
        for one in gpus
        for other in gpus
        if one.switch and one.switch == other.switch and one.iommu_group != other.iommu_group
    }
    if any(told):
        state, found = State.WARNING, f"on at {sum(map(bool, told))} bridges"
    elif None not in told:
        state, found = State.OK, "off"
    elif apart:
        state, found = State.WARNING, "it was on at boot: GPUs under one switch are in different IOMMU groups"
    else:
        state, found = State.UNKNOWN, "only root can read it"
    repair = (
        "turn ACS off in the BIOS, or `setpci -s BRIDGE ECAP_ACS+6.w=0000` after each boot"
        if state is State.WARNING
        else ""
    )
    return Item(code=DoctorCode.ACS, name="ACS", state=state, found=found, why=why, repair=repair)


def _is_bridge(device: Path) -> bool:
    return (text(device / "class") or "").startswith("0x0604")


def check_fabric(machine: Machine) -> Iterator[Item]:
    rdma = machine.facts.rdma
    why = "NCCL uses InfiniBand or RoCE where a port is active, the library is in the image and its devices are open"
    if rdma is None:
        yield Item(
            code=DoctorCode.RDMA,
            name="RDMA",
            state=State.UNKNOWN,
            found=machine.facts.source("rdma") or "cannot be read",
            why=why,
        )
        return
    if not rdma:
        yield Item(
            code=DoctorCode.RDMA, name="RDMA", state=State.OK, found="no device: NCCL uses sockets", why=why
        )
        return
    active = [port for port in rdma if port.state == "ACTIVE"]
    devices = [name for name in names(machine.roots.dev / "infiniband") or () if name.startswith("uverbs")]
    shut = [
        name for name in devices if not os.access(machine.roots.dev / "infiniband" / name, os.R_OK | os.W_OK)
    ]
    trouble = (
        ["no port is active"] * (not active)
        + ["/dev/infiniband/uverbs* is not there"] * (not devices)
        + [f"{', '.join(shut)} is not open to you"] * bool(shut)
        + ["libibverbs is not installed"] * (machine.facts.verbs is False)
    )
    yield Item(
        code=DoctorCode.RDMA,
        name="RDMA",
        state=State.WARNING if trouble else State.OK,
        found="; ".join(trouble)
        or f"{len(active)} active ports: {', '.join(port.device for port in active)}",
        why=why,
        repair="ibstat; modprobe ib_uverbs; apt-get install rdma-core" if trouble else "",
    )


def has_slurm(environment: Mapping[str, str], root: Path) -> bool:
    """Whether Slurm is installed: such a machine runs environments and does not build them."""
    told = any(environment.get(name) for name in ("SLURM_JOB_ID", "SLURM_CONF"))
    return told or any((root / path).exists() for path in ("etc/slurm/slurm.conf", "run/slurm/conf"))


def check_slurm(machine: Machine) -> Iterator[Item]:
    if not has_slurm(machine.environment, machine.roots.root):
        return
    said = machine.say("sinfo", "--version", why="ask for Slurm's version")
    job = machine.environment.get("SLURM_JOB_ID", "")
    yield Item(
        code=DoctorCode.SLURM,
        name="Slurm",
        state=State.OK,
        found=(said or "its commands are not here") + (f", in job {job}" if job else ", not in a job"),
        why="`launch slurm` writes jobs for it; facts of a login node are not those of a compute node",
    )
