"""Checks for building: programs, Docker, disk space, the cache, and package sources."""

import os
import stat
import sys
from collections.abc import Iterator
from typing import Final

from envbuilder.core.cache import Store
from envbuilder.core.required_tools import BUILD_TOOLS, check_tools, tool_version
from envbuilder.node.doctor.item import DoctorCode, Fix, Item, Machine, State, free_bytes, gigabytes

SETUP: Final = "scripts/setup"
ROOM: Final = 15 * 10**9  # what a CUDA environment takes in cache and output together, measured
LEAST: Final = 3 * 10**9  # the same for one without CUDA
SKEW: Final = 60.0  # seconds; from there on signatures and certificates can look as if of another day


def check_python(_scene: Machine) -> Iterator[Item]:
    version = ".".join(map(str, sys.version_info[:3]))
    own = sys.prefix != sys.base_prefix
    yield Item(
        code=DoctorCode.PYTHON,
        name="Python",
        state=State.OK if own else State.WARNING,
        found=f"{version}, {'in a virtual environment' if own else 'without a virtual environment'}",
        why="its own packages keep envbuilder's versions apart from the system's",
        repair="" if own else SETUP,
    )


def check_build_tools(machine: Machine) -> Iterator[Item]:
    for tool in BUILD_TOOLS:
        findings = check_tools((tool,), machine.runner)
        found = "not installed" if findings else tool_version(tool, machine.runner) or "there"
        yield Item(
            code=DoctorCode.TOOL,
            name=tool.name,
            state=State.MISSING if findings else State.OK,
            found=findings[0].message if findings else found,
            why=f"a build uses it to {tool.why}",
            repair=f"apt-get install {tool.package}" if findings else "",
        )


def check_docker(machine: Machine) -> Iterator[Item]:
    """Check the Docker engine, which no build needs: it loads the image and runs `exec --in image`."""
    why = "`build` loads the image into it, and `exec --in image` runs there"
    server = machine.say("docker", "version", "--format", "{{.Server.Version}}", why="ask the Docker engine")
    if not server:
        yield Item(
            code=DoctorCode.DOCKER, name="Docker engine", state=State.WARNING, found="does not answer", why=why,
            repair=f"{SETUP}; or start it: systemctl start docker; or join its group: usermod -aG docker {machine.user}",
        )  # fmt: skip
        return
    recent = _major(server) >= 25
    yield Item(
        code=DoctorCode.DOCKER,
        name="Docker engine",
        state=State.OK if recent else State.WARNING,
        found=server,
        why=f"{why}; engines before 25 do not read OCI layouts",
        repair="" if recent else SETUP,
    )
    buildx = machine.say("docker", "buildx", "version", why="ask for buildx")
    yield Item(
        code=DoctorCode.BUILDX,
        name="buildx",
        state=State.OK if buildx else State.WARNING,
        found=(buildx or "").split(" ")[1] if " " in (buildx or "") else "not installed",
        why="`--engine docker` and bases that are images are built with it",
        repair="" if buildx else "apt-get install docker-buildx",
    )
    status = machine.say("docker", "info", "--format", "{{.DriverStatus}}", why="ask how images are stored")
    if status is None:
        state, found = State.UNKNOWN, "`docker info` does not say"
    elif "io.containerd.snapshotter" in status:
        state, found = State.OK, "containerd"
    else:
        state, found = State.WARNING, "the engine's own"
    yield Item(
        code=DoctorCode.IMAGE_STORE,
        name="image store",
        state=state,
        found=found,
        why="with containerd's the engine keeps the image's digest and takes only the layers that it lacks",
        repair=""
        if state is State.OK
        else 'write {"features": {"containerd-snapshotter": true}} into /etc/docker/daemon.json and restart the engine',
    )


def check_space(machine: Machine) -> Iterator[Item]:
    for name, path, setting in (
        ("cache space", machine.cache, "ENVBUILDER_CACHE"),
        ("output space", machine.output, "--output"),
    ):
        free = free_bytes(path)
        if free is None:
            state, found = State.UNKNOWN, f"{path} cannot be read"
        else:
            state = State.OK if free >= ROOM else State.WARNING if free >= LEAST else State.MISSING
            found = f"{gigabytes(free)} free at {path}"
        yield Item(
            code=DoctorCode.SPACE,
            name=name,
            state=state,
            found=found,
            why=f"an environment with CUDA takes up to {gigabytes(ROOM)}, one without {gigabytes(LEAST)}",
            repair=""
            if state is State.OK
            else f"`envbuilder cache --gc`, or point {setting} at a larger disk",
        )


def check_cache(machine: Machine) -> Iterator[Item]:
    cache = machine.cache
    why = "what is built comes out of it, so nobody else may write there"
    try:
        status = cache.lstat()
    except FileNotFoundError:
        yield Item(
            code=DoctorCode.CACHE, name="cache", state=State.OK, found=f"{cache} is not there yet", why=why
        )
        return
    owned = not stat.S_ISLNK(status.st_mode) and status.st_uid == machine.uid
    closed = not status.st_mode & 0o022
    if not owned:
        yield Item(
            code=DoctorCode.CACHE, name="cache", state=State.MISSING, found=f"{cache} is not a folder of yours", why=why,
            repair="point ENVBUILDER_CACHE at another folder",
        )  # fmt: skip
        return
    if not closed:
        command = f"chmod go-w {cache}"
        yield Item(
            code=DoctorCode.CACHE,
            name="cache",
            state=State.MISSING,
            found=f"others may write to {cache}",
            why=why,
            repair=command,
            fix=Fix(told=command, run=lambda: cache.chmod(stat.S_IMODE(status.st_mode) & ~0o022)),
        )
        return
    yield Item(
        code=DoctorCode.CACHE,
        name="cache",
        state=State.OK,
        found=f"{cache}, mode {status.st_mode & 0o777:o}",
        why=why,
    )
    yield from _leftovers(machine)


def _leftovers(machine: Machine) -> Iterator[Item]:
    """Report temporary folders of killed builds that no process holds."""
    work = machine.cache / "work"
    left = Store(machine.cache, create=False).leftovers() if work.is_dir() else ()
    if left:
        yield Item(
            code=DoctorCode.CACHE,
            name="leftovers",
            state=State.WARNING,
            found=f"{len(left)} temporary folders of builds that were killed in {work}",
            why="they take space; the next build removes them",
            repair="envbuilder doctor --fix",
            fix=Fix(told=f"rm -r {' '.join(map(str, left))}", run=lambda: Store(machine.cache).sweep()),
        )


def check_sources(machine: Machine) -> Iterator[Item]:
    reached = machine.reach()
    for one in reached:
        yield Item(
            code=DoctorCode.SOURCES,
            name="source",
            state=State.WARNING if one.trouble else State.OK,
            found=f"{one.url} {one.trouble or 'answers'}",
            why="`lock` and the first build fetch from it; later ones need it no more",
            repair="look at the network, the proxy, or the settings of docs/reference/settings.md (ENVBUILDER_INDEX, …)"
            if one.trouble
            else "",
        )
    yield from _clock(machine, [one.skew for one in reached if one.skew is not None])


def _clock(machine: Machine, skews: list[float]) -> Iterator[Item]:
    why = "certificates and signed package lists hold for certain days; ranks on nodes compare their logs by time"
    repair = "timedatectl set-ntp true"
    off = min(skews, key=abs) if skews else None
    if off is not None and abs(off) > SKEW:
        ahead = "ahead of" if off > 0 else "behind"
        yield Item(
            code=DoctorCode.CLOCK, name="clock", state=State.WARNING, found=f"{abs(off):.0f} s {ahead} every source's", why=why,
            repair=repair,
        )  # fmt: skip
    elif machine.clock is None:
        state = State.UNKNOWN if off is None else State.OK
        found = (
            "neither the kernel nor a source says"
            if off is None
            else f"within {abs(off) + 1:.0f} s of a source's"
        )
        yield Item(code=DoctorCode.CLOCK, name="clock", state=state, found=found, why=why)
    else:
        synchronised, error = machine.clock
        yield Item(
            code=DoctorCode.CLOCK,
            name="clock",
            state=State.OK if synchronised or off is not None else State.WARNING,
            found=f"synchronised, at most {error:.3f} s off"
            if synchronised
            else "not synchronised, says the kernel"
            + (f"; within {abs(off) + 1:.0f} s of a source's" if off is not None else ""),
            why=why,
            repair="" if synchronised else repair,
        )


def check_locks(machine: Machine) -> Iterator[Item]:
    """Locks of torch's load() older than any compilation takes; whoever finds one waits for ever (torch 2.13 and older)."""
    folder = machine.environment.get("TORCH_EXTENSIONS_DIR", "") or str(
        machine.home / ".cache/torch_extensions"
    )
    old: list[str] = []
    for parent, _, names in os.walk(folder):
        if "lock" in names:
            path = os.path.join(parent, "lock")  # noqa: PTH118 - os.walk gives texts
            try:
                age = machine.now - os.lstat(path).st_mtime
            except FileNotFoundError:
                continue
            if age > 3600:
                old.append(path)
    if old:
        yield Item(
            code=DoctorCode.LOCKS,
            name="extension locks",
            state=State.WARNING,
            found=f"{len(old)} older than an hour below {folder}",
            why="torch 2.13 and older waits without an end for a lock that a killed compilation left",
            repair=f"rm {' '.join(old)}  # when nothing compiles",
        )


def _major(version: str) -> int:
    head = version.partition(".")[0]
    return int(head) if head.isdigit() else 0
