"""Checks for building: programs, Docker, disk space, the cache, and package sources."""

import platform
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from envbuilder.core.cache import Store
from envbuilder.core.errors import CommandError, ToolError, lacks_inodes
from envbuilder.core.plain import pasted
from envbuilder.core.process import Command
from envbuilder.core.processor import AARCH64
from envbuilder.core.system import install_command, install_hint
from envbuilder.node.doctor.machine import (
    CheckSubject,
    DoctorCode,
    DoctorItem,
    Fix,
    Machine,
    forbids_programs,
    free_bytes,
    gigabytes,
)
from envbuilder.node.doctor.node import has_namespaces, shut_switches
from envbuilder.runners.enter_sandbox import machine_has, trial
from envbuilder.runners.toolbox import bwrap_version, sandbox_trial
from envbuilder.sources.http.proxies import trouble

ROOM: Final = 15 * 10**9  # what a CUDA environment takes in cache and output together, measured
LEAST: Final = 3 * 10**9  # the same for one without CUDA
KERNEL: Final = (4, 8)  # since then a tracer decides after the filter of system calls (seccomp(2))
# Since then a filter may ask and let a call go on (seccomp_unotify(2)). proot needs that, because only one may trace.
KERNEL_FOR_PROOT: Final = (5, 5)
_DOCKER_VERSION: Final = Command(
    argv=("docker", "version", "--format", "{{.Server.Version}}"), why="ask the Docker engine"
)
APP: Final = "envbuilder-app"  # where the single file of a release unpacks its Python
SKEW: Final = 60.0  # seconds; beyond it certificates and signatures can seem expired or not yet valid


def check_python(_machine: Machine) -> Iterator[DoctorItem]:
    why = "its own packages keep envbuilder's versions apart from the system's"
    python = CheckSubject(DoctorCode.PYTHON, "Python", why)
    version = platform.python_version()
    if sys.prefix != sys.base_prefix:
        yield python.ok(f"{version}, in a virtual environment")
    elif Path(sys.prefix).parent.parent.name == APP:
        yield python.ok(f"{version}, of envbuilder's single file")
    else:
        message = f"{version}, without a virtual environment"
        yield python.warning(message, "install the wheel with `uv tool install`")


def check_runner(machine: Machine) -> Iterator[DoctorItem]:
    """Check what the sandbox needs of the kernel, and name the runner that works here."""
    why = "programs of a build run in their own, without a network and apart from your files"
    namespaces = CheckSubject(DoctorCode.NAMESPACES, "user namespaces", why)
    bwrap = bwrap_version(machine.runner)
    # A distribution may allow bubblewrap what it forbids other programs.
    tried = sandbox_trial()
    spaces = machine.output_of(*tried.argv, why=tried.why) is not None if bwrap else has_namespaces(machine)
    if spaces:
        yield namespaces.ok("can be made")
    else:
        switches, commands = shut_switches(machine)
        message = f"cannot be made ({switches or 'the kernel or a container forbids it'})"
        yield namespaces.warning(message, commands or "ask the administrators for user namespaces")

    needed = KERNEL if spaces else KERNEL_FOR_PROOT
    without = "" if spaces else " where namespaces are refused"
    why = f"the sandbox needs Linux {'.'.join(map(str, needed))}{without}"
    kernel = CheckSubject(DoctorCode.KERNEL, "kernel", why)
    release = re.match(r"(\d+)\.(\d+)", machine.kernel)
    is_new = release is not None and (int(release[1]), int(release[2])) >= needed
    docker = "`--runner buildkit` builds in a Docker engine"
    yield kernel.ok(machine.kernel) if is_new else kernel.warning(machine.kernel or "not Linux", docker)

    sandbox = CheckSubject(DoctorCode.TOOL, "bwrap", "a build uses it to build in a sandbox")
    yield sandbox.ok(bwrap or "envbuilder's own")  # which the first build fetches

    runner = CheckSubject(DoctorCode.RUNNER, "runner", "`build` makes the layers with it")
    if is_new:
        yield runner.ok("sandbox" if spaces else "sandbox, with proot: slower than with user namespaces")
    elif machine.output_of(*_DOCKER_VERSION.argv, why=_DOCKER_VERSION.why) and machine.output_of(
        "docker", "buildx", "version", why="ask for buildx"
    ):
        yield runner.warning("buildkit alone", docker)
    else:
        needs = f"mend the lines above; or {install_command('docker.io', 'docker-buildx')}"
        yield runner.missing("none works here", needs)


def check_programs(machine: Machine) -> Iterator[DoctorItem]:
    git = CheckSubject(
        DoctorCode.TOOL, "git", "it fetches the sources of a recipe that names a git repository"
    )
    if version := machine.output_of("git", "--version", why="ask for git's version"):
        yield git.ok(version.removeprefix("git version "))
    else:
        yield git.warning("not installed; no other recipe needs it", install_command("git"))
    temporary = Path(machine.environment.get("TMPDIR") or "/tmp")  # noqa: S108 - what programs use without it
    places = ("cache", machine.cache, "ENVBUILDER_CACHE"), ("TMPDIR", temporary, "TMPDIR")
    for name, path, setting in places:
        if forbids_programs(path):
            runs = CheckSubject(DoctorCode.EXECUTE, f"{name} noexec", "programs of a build run there")
            message = f"{path} lies on a file system that is mounted noexec"
            repair = f"point {setting} at a folder where programs may run"
            yield runs.missing(message, repair) if name == "cache" else runs.warning(message, repair)


def check_emulation(machine: Machine) -> Iterator[DoctorItem]:
    title = AARCH64.title
    why = f"a build for {title} runs programs of it by qemu; Linux 6.7 lets each user register that"
    emulation = CheckSubject(DoctorCode.EMULATION, "emulation", why)
    if machine.output_of(*trial(AARCH64.elf), why=f"register an emulator for {title}") is None:
        yield emulation.ok(f"none for {title}: Linux 6.7 brings it, or {install_command('qemu-user-static')}")
    elif machine_has(AARCH64.elf):
        yield emulation.ok(f"{title}, as registered on the machine")
    else:
        yield emulation.ok(f"{title}, in a namespace of the build")


def check_keyrings(machine: Machine) -> Iterator[DoctorItem]:
    """Check the keyrings that settings name. Without them the keys of envbuilder's own toolbox count."""
    for setting in ("ENVBUILDER_DEBIAN_KEYRING", "ENVBUILDER_UBUNTU_KEYRING"):
        path = machine.environment.get(setting)
        keyring = CheckSubject(DoctorCode.KEYRING, "keyring", "`lock` trusts no package list without it")
        if path and not Path(path).is_file():
            repair = f"correct {setting}, or unset it: envbuilder has keys of its own"
            yield keyring.missing(f"{path} is not there", repair)


def check_docker(machine: Machine) -> Iterator[DoctorItem]:
    """Check the Docker engine, which no build needs: it loads the image and runs `exec --in image`."""
    why = "`build` loads the image into it, and `exec --in image` runs there"
    engine = CheckSubject(DoctorCode.DOCKER, "Docker engine", why)
    try:
        server = machine.runner.run(_DOCKER_VERSION).strip()
    except (CommandError, ToolError) as error:
        if "permission denied" in error.message.lower():
            message = "runs, and does not let you in: permission denied on its socket"
            join = f"usermod -aG docker {machine.user}, then log in again"
            yield engine.warning(message, f"{join}; its members are as powerful as root")
        else:
            start = f"{install_hint('docker.io')}; or start it: systemctl start docker"
            yield engine.warning("does not answer", start)
        return
    engine = replace(engine, why=f"{why}; engines before 25 do not read OCI layouts")
    major = server.partition(".")[0]
    is_new = major.isdigit() and int(major) >= 25
    yield engine.ok(server) if is_new else engine.warning(server, install_hint("docker.io"))

    why = "`--runner buildkit` and bases that are images are built with it"
    buildx = CheckSubject(DoctorCode.BUILDX, "buildx", why)
    version = machine.output_of("docker", "buildx", "version", why="ask for buildx")
    if version:
        yield buildx.ok(" ".join(version.split()[1:2]) or version)
    else:
        yield buildx.warning("not installed", install_command("docker-buildx"))

    why = "with containerd's the engine keeps the image's digest and takes only the layers that it lacks"
    store = CheckSubject(DoctorCode.IMAGE_STORE, "image store", why)
    repair = 'write {"features": {"containerd-snapshotter": true}} into /etc/docker/daemon.json and restart the engine'
    words = ("docker", "info", "--format", "{{.DriverStatus}}")
    status = machine.output_of(*words, why="ask how images are stored")
    if status is None:
        yield store.unknown("`docker info` does not say", repair)
    elif "io.containerd.snapshotter" in status:
        yield store.ok("containerd")
    else:
        yield store.warning("the engine's own", repair)


def check_space(machine: Machine) -> Iterator[DoctorItem]:
    why = f"an environment with CUDA takes up to {gigabytes(ROOM)}, one without {gigabytes(LEAST)}"
    for name, path, setting in (
        ("cache space", machine.cache, "ENVBUILDER_CACHE"),
        ("output space", machine.output, "`build --output`"),
    ):
        space = CheckSubject(DoctorCode.SPACE, name, why)
        repair = f"`envbuilder cache --gc`, or point {setting} at a larger disk"
        free = free_bytes(path)
        if free is None:
            yield space.unknown(f"{path} cannot be read", repair)
            continue
        room = f"{gigabytes(free)} free at {path}"
        if inodes := lacks_inodes(path):
            yield space.missing(inodes, repair)
        elif free >= ROOM:
            yield space.ok(room)
        else:
            yield space.warning(room, repair) if free >= LEAST else space.missing(room, repair)


def check_cache(machine: Machine) -> Iterator[DoctorItem]:
    folder = machine.cache
    cache = CheckSubject(DoctorCode.CACHE, "cache", "builds use its files, so nobody else may write there")
    try:
        status = folder.lstat()
    except FileNotFoundError:
        yield cache.ok(f"{folder} is not there yet")
        return
    if stat.S_ISLNK(status.st_mode):
        repair = f"name the folder: ENVBUILDER_CACHE={pasted(folder.resolve())}"
        yield cache.missing(f"{folder} is a link", repair)
    elif status.st_uid != machine.uid:
        yield cache.missing(f"{folder} is not a folder of yours", "point ENVBUILDER_CACHE at another folder")
    elif status.st_mode & 0o022:
        command = f"chmod go-w {pasted(folder)}"
        fix = Fix(command=command, run=lambda: folder.chmod(stat.S_IMODE(status.st_mode) & ~0o022))
        yield cache.missing(f"others may write to {folder}", command, fix)
    else:
        yield cache.ok(f"{folder}, mode {status.st_mode & 0o777:o}")
        yield from _leftovers(machine)


def _leftovers(machine: Machine) -> Iterator[DoctorItem]:
    work = machine.cache / "work"
    left = Store(machine.cache, create=False).leftovers() if work.is_dir() else ()
    if left:
        leftovers = CheckSubject(
            DoctorCode.CACHE, "leftovers", "they take space; the next build removes them"
        )
        yield leftovers.warning(
            f"{len(left)} temporary folders of builds that were killed in {work}",
            "envbuilder doctor --fix",
            Fix(command=f"rm -r {pasted(*left)}", run=lambda: Store(machine.cache).sweep()),
        )


def check_sources(machine: Machine) -> Iterator[DoctorItem]:
    why = "`lock` and the first build fetch from it; later builds do not need it"
    source = CheckSubject(DoctorCode.SOURCES, "source", why)
    reached = machine.reach()
    for answer in reached:
        if answer.trouble:
            reason = trouble(answer.url, answer.trouble, machine.environment)
            mirror = (
                f"look at the network and the proxy, or let {answer.setting} name a mirror of {answer.url}"
            )
            repair = mirror if answer.setting else "correct the setting"
            yield source.warning(reason or f"{answer.url} {answer.trouble}", repair)
        else:
            yield source.ok(f"{answer.url} answers")
    yield _clock(machine, [answer.skew for answer in reached if answer.skew is not None])


def _clock(machine: Machine, skews: list[float]) -> DoctorItem:
    """Judge the clock by the source that differs least, then by what the kernel says."""
    why = "certificates and package lists are valid for certain days; logs of several nodes are compared by time"
    clock = CheckSubject(DoctorCode.CLOCK, "clock", why)
    repair = "timedatectl set-ntp true"
    off = min(skews, key=abs, default=None)
    near = "" if off is None else f"within {abs(off) + 1:.0f} s of a source's"
    if off is not None and abs(off) > SKEW:
        ahead = "ahead of" if off > 0 else "behind"
        return clock.warning(f"{abs(off):.0f} s {ahead} every source's", repair)
    if machine.clock is None:
        return clock.ok(near) if near else clock.unknown("neither the kernel nor a source says")
    synchronised, error = machine.clock
    if synchronised:
        return clock.ok(f"synchronised, at most {error:.3f} s off")
    message = "not synchronised, says the kernel"
    return clock.warning(f"{message}; {near}" if near else message, repair)
