"""Checks for running: Apptainer, the driver for each recipe, memory, disk space, fabric and bus."""

import functools
import os
import re
import shutil
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from envbuilder.core.errors import CommandError, ToolError
from envbuilder.core.plain import counted
from envbuilder.core.process import Command
from envbuilder.core.system import account_hint, install_command, install_hint
from envbuilder.core.text.redact import plain
from envbuilder.node.doctor.machine import (
    CheckSubject,
    DoctorCode,
    DoctorItem,
    Fix,
    Machine,
    free_bytes,
    gigabytes,
)
from envbuilder.node.nccl.facts import PASS_THROUGH, TRANSLATING
from envbuilder.node.nccl.files import names, text

SHARED: Final = 1 << 30
SCRATCH: Final = 5 * 10**9
_SWITCHES: Final = {  # below /proc/sys: the file, the value that forbids, one that permits
    "kernel/unprivileged_userns_clone": ("0", "1"),
    "user/max_user_namespaces": ("0", "15000"),
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "0"),
}
_LIBCUDA: Final = "libcuda.so.1"
_DRIVER_FOLDERS: Final = ("/usr/local/nvidia/lib64", "/usr/lib/wsl/lib")  # of virtual machines and WSL
# PCI Express Base Specification 7.7.11, Access Control Services, among the extended capabilities of a bridge.
_EXTENDED: Final = 0x100  # where they begin; only root may read from there on
_ACS: Final = 0x000D
_CONTROL: Final = 6
_REDIRECT: Final = 0x0004 | 0x0008 | 0x0020  # request redirect, completion redirect, egress control


def check_apptainer(machine: Machine) -> Iterator[DoctorItem]:
    apptainer, refusal = CheckSubject(DoctorCode.APPTAINER, "Apptainer", "a SIF runs in it"), ""
    for name in ("Apptainer", "Singularity"):
        ask = Command(argv=(name.lower(), "--version"), why=f"ask for {name}'s version")
        try:
            answer = machine.runner.run(ask)
        except (CommandError, ToolError) as error:
            if not error.message.endswith("is not installed"):
                refusal = refusal or plain(error.message.splitlines()[-1])
            continue
        if version := re.search(r"\d+\.\d+(?:\.\d+)?\S*", answer):
            setuid = ", setuid" if has_setuid(machine) else ""
            yield replace(apptainer, name=name).ok(version[0] + setuid)
            return
    if refusal:
        repair = (
            account_hint(machine.uid)
            if "unknown userid" in refusal
            else "`apptainer --version` must print one"
        )
        yield apptainer.missing(f"is there, and does not start: {refusal}", repair)
        return
    yield apptainer.missing(
        "not installed",
        f"{install_hint('apptainer')}; on a cluster ask for the package `apptainer`, or look for a module: module avail apptainer",
    )


def has_setuid(machine: Machine) -> bool:
    """Whether Apptainer is setuid, and so needs neither user namespaces nor FUSE."""
    settings = machine.output_of("apptainer", "buildcfg", why="ask where Apptainer's helpers are") or ""
    folder = re.search(r"^LIBEXECDIR=(.+)$", settings, re.MULTILINE)
    try:
        return bool(folder and Path(folder[1], "apptainer/bin/starter-suid").stat().st_mode & stat.S_ISUID)
    except OSError:
        return False


def shut_switches(machine: Machine) -> tuple[str, str]:
    """Return the settings of the kernel that forbid user namespaces, and the commands that permit them."""
    folder = machine.root / "proc/sys"
    shut = {name: value for name, (forbids, value) in _SWITCHES.items() if text(folder / name) == forbids}
    commands = (f"sysctl -w {name.replace('/', '.')}={value}" for name, value in shut.items())
    return ", ".join(shut), "; ".join(commands)


def has_namespaces(machine: Machine) -> bool:
    """Return whether a program can be root in a user namespace with mounts of its own; AppArmor may allow the first alone."""
    words = ("unshare", "--user", "--map-root-user", "--mount", "true")
    return machine.output_of(*words, why="make a user namespace") is not None


def check_namespaces(machine: Machine) -> Iterator[DoctorItem]:
    """Try to make a user namespace; the switches explain a failure."""
    why = "Apptainer without setuid makes its own user namespace"
    namespaces = CheckSubject(DoctorCode.NAMESPACES, "user namespaces", why)
    switches, commands = shut_switches(machine)
    repair = commands or "ask the administrators for user namespaces or apptainer-suid"
    if has_namespaces(machine):
        message = "can be made" + (f"; for ordinary users {switches} may forbid it" if switches else "")
        is_shut_to_others = switches and machine.uid == 0
        yield namespaces.warning(message, repair) if is_shut_to_others else namespaces.ok(message)
        return
    judge = namespaces.warning if machine.uid == 0 or has_setuid(machine) else namespaces.missing
    yield judge(f"cannot be made ({switches or 'the kernel or a container forbids it'})", repair)


def check_fuse(machine: Machine) -> Iterator[DoctorItem]:
    fuse = CheckSubject(DoctorCode.FUSE, "FUSE", "without root or setuid, a SIF is mounted by squashfuse")
    device = machine.root / "dev/fuse"
    if not device.exists():
        command = ("modprobe", "fuse")
        load = functools.partial(machine.output_of, *command, why="load the kernel's FUSE")
        fix = Fix(command=" ".join(command), run=load)
        yield fuse.warning(f"{device} is not there", fix.command, fix if machine.uid == 0 else None)
        return
    open_to_all = stat.S_IMODE(device.stat().st_mode) & 0o006 == 0o006
    ours = os.access(device, os.R_OK | os.W_OK)
    path = machine.environment.get("PATH")
    lacking = [program for program in ("fusermount3", "squashfuse") if not shutil.which(program, path=path)]
    if not ours or not open_to_all:
        yield fuse.warning(f"{device} is not open to {'all' if ours else 'you'}", f"chmod 666 {device}")
    elif lacking:
        programs = " and no ".join(f"`{program}`" for program in lacking)
        message = f"no {programs} on PATH (Apptainer may bring its own)"
        yield fuse.warning(message, install_command("fuse3", "squashfuse"))
    else:
        yield fuse.ok(f"{device} and its helpers are there")


def check_driver(machine: Machine) -> Iterator[DoctorItem]:
    why = "the driver belongs to the machine, not to the image; each CUDA needs a minimum version"
    driver = CheckSubject(DoctorCode.DRIVER, "driver", why)
    version, gpus = machine.facts.driver, machine.facts.gpus
    if gpus is None:
        yield driver.unknown(machine.facts.source("gpus") or "GPUs could not be looked for")
    elif version:
        yield driver.ok(f"{version}, {counted(len(gpus), 'GPU')}")
    elif gpus:
        yield driver.warning(f"{len(gpus)} GPUs, and the NVIDIA driver is not loaded", "nvidia-smi")
    else:
        yield driver.ok("no NVIDIA GPU here; none is needed to build")
    if version:
        yield from _driver_libraries(machine)
        yield from machine.recipes(version, tuple(dict.fromkeys(gpu.name for gpu in gpus or () if gpu.name)))


def _driver_libraries(machine: Machine) -> Iterator[DoctorItem]:
    """Look for libcuda where Apptainer's `--nv` does."""
    why = (
        "`apptainer exec --nv` takes the driver's libraries from the cache of ldconfig, and from nowhere else"
    )
    libraries = CheckSubject(DoctorCode.DRIVER, "driver libraries", why)
    cached = machine.output_of("/sbin/ldconfig", "-p", why="ask for the libraries that Apptainer finds")
    if cached is None:
        yield libraries.unknown("`/sbin/ldconfig -p` does not answer")
    elif _LIBCUDA in cached:
        yield libraries.ok("in the cache of ldconfig")
    else:
        named = machine.environment.get("LD_LIBRARY_PATH", "").split(":")
        searched = filter(None, (*named, *_DRIVER_FOLDERS))
        here = (entry for entry in searched if (machine.root / entry.lstrip("/") / _LIBCUDA).exists())
        folder = next(here, "FOLDER")
        place = "" if folder == "FOLDER" else f", but in {folder}"
        yield libraries.warning(
            f"`{_LIBCUDA}` is not in the cache of ldconfig{place}: no program in a SIF sees a GPU",
            f"as root: echo {folder} >/etc/ld.so.conf.d/nvidia.conf && ldconfig; otherwise: export "
            f"APPTAINER_CONTAINLIBS={folder}/{_LIBCUDA},{folder}/libnvidia-ml.so.1",
        )


def check_memory(machine: Machine) -> Iterator[DoctorItem]:
    why = "NCCL and DataLoader workers pass data through it; 1 GB is enough for most jobs"
    shared = CheckSubject(DoctorCode.SHARED_MEMORY, "/dev/shm", why)  # noqa: S108 - a name; no file is made
    size = machine.facts.shm
    if size is None:
        yield shared.unknown("cannot be read")
    elif size >= SHARED:
        yield shared.ok(gigabytes(size))
    else:
        yield shared.warning(gigabytes(size), "docker run --ipc=host; mount -o remount,size=50% /dev/shm")

    why = "InfiniBand and RoCE lock the memory that they send from"
    has_rdma = bool(machine.facts.rdma)
    locked = CheckSubject(
        DoctorCode.LIMITS, "locked memory", why if has_rdma else f"{why}; there is none here"
    )
    if machine.memlock is None:
        yield locked.ok("unlimited")
    elif not has_rdma:
        yield locked.ok(f"{machine.memlock >> 10} kB")
    else:
        yield locked.warning(
            f"{machine.memlock >> 10} kB",
            "ulimit -l unlimited; LimitMEMLOCK=infinity for slurmd; docker run --ulimit memlock=-1",
        )


def check_scratch(machine: Machine) -> Iterator[DoctorItem]:
    env = machine.environment
    places = {
        "TMPDIR": env.get("TMPDIR") or "/tmp",  # noqa: S108 - what programs use without it
        "APPTAINER_CACHEDIR": env.get("APPTAINER_CACHEDIR") or str(machine.home / ".apptainer/cache"),
        "APPTAINER_TMPDIR": env.get("APPTAINER_TMPDIR") or env.get("TMPDIR") or "/tmp",  # noqa: S108
    }
    why = "images that are pulled or unpacked go through it, and homes on clusters have small quotas"
    for path in dict.fromkeys(places.values()):
        settings = [setting for setting, place in places.items() if place == path]
        scratch = CheckSubject(DoctorCode.SCRATCH, ", ".join(settings), why)
        free = free_bytes(Path(path))
        if free is None:
            yield scratch.unknown(f"{path} cannot be read")
        elif free < SCRATCH:
            yield scratch.warning(f"{gigabytes(free)} free at {path}", f"export {settings[0]}=/scratch/$USER")
        else:
            yield scratch.ok(f"{gigabytes(free)} free at {path}")


def check_bus(machine: Machine) -> Iterator[DoctorItem]:
    """Check IOMMU and ACS, which slow down or break transfers between GPUs of one node."""
    gpus = machine.facts.gpus or ()
    if len(gpus) < 2:
        return
    why = "with translation on bare metal, copies between GPUs over PCIe hang or arrive damaged"
    iommu = CheckSubject(DoctorCode.IOMMU, "IOMMU", why)
    kinds = {gpu.iommu for gpu in gpus}
    listed = ", ".join(sorted(kind for kind in kinds if kind))
    if None in kinds:
        yield iommu.unknown("the kernel does not say how the GPUs' groups are mapped")
    elif not kinds & TRANSLATING:
        yield iommu.ok("pass-through" if kinds <= PASS_THROUGH else listed)
    elif machine.facts.virtual == "":
        yield iommu.warning(
            f"translating ({listed})",
            "boot with iommu=pt: add it to GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub",
        )
    else:
        yield iommu.ok(f"translating ({listed}), in a virtual machine")
    yield _acs(machine)


def _acs(machine: Machine) -> DoctorItem:
    why = "ACS sends traffic between GPUs under one switch up to the processor and back"
    acs = CheckSubject(DoctorCode.ACS, "ACS", why)
    repair = "turn ACS off in the BIOS, or `setpci -s BRIDGE ECAP_ACS+6.w=0000` after each boot"
    folder = machine.root / "sys/bus/pci/devices"
    devices = [folder / name for name in names(folder) or ()]
    bridges = [device for device in devices if (text(device / "class") or "").startswith("0x0604")]
    answers = [redirects(bridge / "config") for bridge in bridges]
    if any(answers):
        return acs.warning(f"on at {sum(map(bool, answers))} bridges", repair)
    if None not in answers:
        return acs.ok("off")
    if machine.facts.split_switches:
        return acs.warning("it was on at boot: GPUs under one switch are in different IOMMU groups", repair)
    return acs.unknown("only root can read it")


def redirects(config: Path) -> bool | None:
    """Whether a bridge's ACS sends traffic between its devices upward; None where unreadable."""
    try:
        space = config.read_bytes()
    except OSError:
        return None
    if len(space) <= _EXTENDED:
        return None
    place, seen = _EXTENDED, set[int]()
    while place >= _EXTENDED and place + 8 <= len(space) and place not in seen:
        seen.add(place)
        head: int = struct.unpack_from("<I", space, place)[0]
        if head & 0xFFFF == _ACS:
            control: int = struct.unpack_from("<H", space, place + _CONTROL)[0]
            return bool(control & _REDIRECT)
        place = head >> 20
    return False


def check_fabric(machine: Machine) -> Iterator[DoctorItem]:
    why = "NCCL uses InfiniBand or RoCE where a port is active, the library is in the image and its devices are open"
    fabric = CheckSubject(DoctorCode.RDMA, "RDMA", why)
    rdma = machine.facts.rdma
    if rdma is None:
        yield fabric.unknown(machine.facts.source("rdma") or "cannot be read")
        return
    if not rdma:
        yield fabric.ok("no device: NCCL uses sockets")
        return
    active = [port.device for port in rdma if port.state == "ACTIVE"]
    folder = machine.root / "dev/infiniband"
    devices = [name for name in names(folder) or () if name.startswith("uverbs")]
    shut = [name for name in devices if not os.access(folder / name, os.R_OK | os.W_OK)]
    trouble = (
        ["no port is active"] * (not active)
        + ["/dev/infiniband/uverbs* is not there"] * (not devices)
        + [f"{', '.join(shut)} is not open to you"] * bool(shut)
        + ["libibverbs is not installed"] * (machine.facts.verbs is False)
    )
    if trouble:
        repair = f"ibstat; modprobe ib_uverbs; {install_command('rdma-core')}"
        yield fabric.warning("; ".join(trouble), repair)
    else:
        yield fabric.ok(f"{len(active)} active ports: {', '.join(active)}")


def has_slurm(environment: Mapping[str, str], root: Path) -> bool:
    """Whether Slurm is installed. Such a machine runs environments and does not build them."""
    named = any(environment.get(name) for name in ("SLURM_JOB_ID", "SLURM_CONF"))
    return named or any((root / path).exists() for path in ("etc/slurm/slurm.conf", "run/slurm/conf"))


def check_slurm(machine: Machine) -> Iterator[DoctorItem]:
    if not has_slurm(machine.environment, machine.root):
        return
    why = "`launch slurm` writes jobs for it; facts of a login node are not those of a compute node"
    slurm = CheckSubject(DoctorCode.SLURM, "Slurm", why)
    version = machine.output_of("sinfo", "--version", why="ask for Slurm's version")
    job = machine.environment.get("SLURM_JOB_ID", "")
    where = f"in job {job}" if job else "not in a job"
    yield slurm.ok(f"{version or 'its commands do not answer'}, {where}")


def check_locks(machine: Machine) -> Iterator[DoctorItem]:
    """Find locks of torch's load() older than any compilation, for which torch 2.13 and older wait forever."""
    folder = machine.environment.get("TORCH_EXTENSIONS_DIR") or machine.home / ".cache/torch_extensions"
    old: list[str] = []
    for path in Path(folder).rglob("lock"):
        with suppress(FileNotFoundError):
            if path.is_file() and machine.now - path.lstat().st_mtime > 3600:
                old.append(str(path))
    if old:
        why = "torch 2.13 and older waits forever for a lock that a killed compilation left"
        yield CheckSubject(DoctorCode.LOCKS, "extension locks", why).warning(
            f"{len(old)} older than an hour below {folder}", f"rm {' '.join(old)}  # when nothing compiles"
        )
