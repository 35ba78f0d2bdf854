"""A cluster of real daemons on one machine: a head and two nodes, each with a network, a name and processes of its own.

Every machine is a set of Linux namespaces, so that a node has a host name, an address and a process table as on a real
cluster; files are shared, as on a parallel file system, but for `/tmp`. When a machine's first process ends the kernel ends
all others in it, so nothing outlives a test.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.registries import registry_command
from tests.support.workbench import (
    NO_ENGINE,
    ROOT,
    Built,
    Ended,
    attempt,
    build_command,
    cache_with_artifacts,
    link_tree,
    run,
)

NODES = ("n1", "n2")
NETWORK = "10.77.0"
REGISTRY = "head:5000"  # where the engines of the nodes look for one without TLS
CPUS = 4
# ALONE is before a program that has a network of its own, whose only other host, 192.0.2.2, answers nothing.
SET_UP = """
ip link set lo up
ip link add out type veth peer name far
ip addr add 192.0.2.1/24 dev out
ip link set far up
ip link set out up
ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev out nud permanent
exec "$@"
"""
ALONE = ("unshare", "--user", "--map-root-user", "--net", "sh", "-e", "-c", SET_UP, "alone")
FIRST = "while true; do sleep 3600 & wait; done"  # a shell, because the first process must reap orphans

SLURM_CONF = """\
ClusterName=test
SlurmctldHost=head
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
KillWait=5
SlurmctldTimeout=30
SlurmdTimeout=30
NodeName=n[1-2] CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=60 State=UP
"""
SSHD_CONF = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
PidFile none
AcceptEnv none
"""
SSH_CONFIG = """\
Host *
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""


@dataclass
class Machine:
    """One set of namespaces; `pid` is its first process, in the numbers of this machine."""

    name: str
    pid: int
    holder: "subprocess.Popen[bytes]"

    @property
    def enter(self) -> tuple[str, ...]:
        return ("nsenter", "--target", str(self.pid), "--all", "--")

    def run(self, *argv: object, **options: object) -> str:
        return run(*self.enter, *argv, **options)  # type: ignore[arg-type]

    def attempt(self, *argv: object, **options: object) -> Ended:
        return attempt(*self.enter, *argv, **options)  # type: ignore[arg-type]

    def processes(self) -> set[str]:
        """Return the command lines of all processes here, except the daemons and this query."""
        lines = self.run("ps", "-e", "-o", "pid=,args=").splitlines()
        words = [line.strip().partition(" ")[2] for line in lines]
        daemons = (
            "bash -c while true", "sleep 3600", "ps -e", "slurmd ", "slurmctld ", "munged ", "sshd: ",
            "/usr/sbin/sshd ",
        )  # fmt: skip
        return {line for line in words if not line.startswith(daemons)}


@dataclass
class Cluster:
    """The machines and where their daemons keep things."""

    folder: Path
    head: Machine
    nodes: tuple[Machine, ...]
    daemons: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self, machine: Machine, *argv: object) -> None:
        """Start a daemon that stays in the foreground; its output goes to a file of its name."""
        log = self.folder / f"{machine.name}-{Path(str(argv[0])).name}.log"
        with log.open("wb") as output:
            self.daemons.append(
                subprocess.Popen(
                    [*machine.enter, *map(str, argv)], env=os.environ | self.env, start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                )
            )  # fmt: skip

    def states(self) -> list[str]:
        said = self.head.attempt("sinfo", "--noheader", "--Node", "--format=%T", env=self.env)
        return said.stdout.split()

    def logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}"
            for path in sorted(self.folder.glob("*.log"))
        )

    def left_over(self) -> dict[str, set[str]]:
        return {node.name: found for node in self.nodes if (found := node.processes())}


def wait_until(what: str, true: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"after {seconds} s still not: {what}"
        time.sleep(0.1)


@contextlib.contextmanager
def logged(*argv: object, output: Path, **options: object) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a program in a session of its own; where the block fails, the error has all that the program printed."""
    with output.open("wb") as stream:
        running = subprocess.Popen(
            [str(word) for word in argv], start_new_session=True, stdin=subprocess.DEVNULL, stdout=stream,
            stderr=subprocess.STDOUT, **options,
        )  # type: ignore[call-overload]  # fmt: skip
    try:
        yield running
    except AssertionError as error:
        state = running.poll()
        how = "still runs" if state is None else f"has ended with exit code {state}"
        raise AssertionError(f"{error}\n{argv[0]} {how}\n{output.read_text(errors='replace')}") from None
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def _machine(name: str) -> Machine:
    namespaces = ("--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
    holder = subprocess.Popen(
        ["unshare", *namespaces, "bash", "-c", FIRST], stdin=subprocess.DEVNULL, start_new_session=True
    )
    children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
    wait_until(f"{name} runs", lambda: children.read_text().strip())
    machine = Machine(name=name, pid=int(children.read_text()), holder=holder)
    comm = Path(f"/proc/{machine.pid}/comm")
    wait_until(f"{name} has its namespaces", lambda: comm.read_text() == "bash\n")
    machine.run("hostname", name)
    machine.run("ip", "link", "set", "lo", "up")
    return machine


def _connect(head: Machine, nodes: tuple[Machine, ...]) -> None:
    network = (
        "nsenter",
        "--target",
        str(head.pid),
        "--net",
        "--",
        "ip",
    )  # process numbers stay those of this machine
    run(*network, "link", "add", "bridge", "type", "bridge")
    run(*network, "address", "add", f"{NETWORK}.1/24", "dev", "bridge")
    run(*network, "link", "set", "bridge", "up")
    for number, node in enumerate(nodes, start=2):
        run(*network, "link", "add", node.name, "type", "veth", "peer", "name", "eth0", "netns", node.pid)
        run(*network, "link", "set", node.name, "master", "bridge", "up")
        node.run("ip", "address", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
        node.run("ip", "link", "set", "eth0", "up")


def _own_files(folder: Path, machine: Machine) -> None:
    """A /tmp and an /etc/hosts that only this machine sees. A checkout below /tmp stays where it is."""
    files = folder / machine.name
    (files / "tmp").mkdir(parents=True)
    (files / "tmp").chmod(0o1777)
    if ROOT.is_relative_to("/tmp"):
        checkout = files / ROOT.relative_to("/")
        checkout.mkdir(parents=True)
        machine.run("mount", "--bind", ROOT, checkout)
    machine.run("mount", "--rbind", files / "tmp", "/tmp")
    machine.run("mount", "--bind", folder / "hosts", "/etc/hosts")


@contextlib.contextmanager
def machines(folder: Path) -> Iterator[Cluster]:
    """A head and two nodes that reach each other; every process in them ends with the context."""
    names = ("head", *NODES)
    hosts = [f"{NETWORK}.{number} {name}\n" for number, name in enumerate(names, start=1)]
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(hosts))
    started: list[Machine] = []
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for name in names:
            started.append(_machine(name))  # noqa: PERF401 - those that did start must end, too
        head, *nodes = started
        _connect(head, tuple(nodes))
        for machine in started:
            _own_files(folder, machine)
        yield Cluster(folder=folder, head=head, nodes=tuple(nodes), daemons=daemons)
    finally:
        for machine in started:
            machine.holder.kill()  # this also ends every process of the machine
        for process in (*daemons, *(machine.holder for machine in started)):
            process.wait()


def start_slurm(cluster: Cluster) -> None:
    """munge, a controller and a slurmd on each node, until both nodes are idle."""
    folder = cluster.folder
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(SLURM_CONF.format(folder=folder, cpus=CPUS))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    socket = folder / "munge.socket"
    cluster.start(
        cluster.head, "munged", "--foreground", "--force", "--key-file", key, "--socket", socket,
        "--pid-file", folder / "munge.pid", "--log-file", folder / "munge.log", "--seed-file", folder / "munge.seed",
    )  # fmt: skip
    wait_until("munge answers", socket.exists)
    cluster.start(cluster.head, "slurmctld", "-D", "-c")
    for node in cluster.nodes:
        (folder / node.name / "spool").mkdir()
        cluster.start(node, "slurmd", "-D", "-N", node.name)
    try:
        wait_until("both nodes are idle", lambda: cluster.states() == ["idle"] * len(NODES), 60)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{cluster.states()}\n{cluster.logs()}") from None


def start_ssh(cluster: Cluster) -> Path:
    """An sshd on each node; returns the client's configuration."""
    folder = cluster.folder
    for name in ("host_key", "user_key"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name)
    (folder / "sshd_config").write_text(SSHD_CONF.format(folder=folder))
    config = folder / "ssh_config"
    config.write_text(SSH_CONFIG.format(folder=folder))
    for node in cluster.nodes:
        node.run("mkdir", "-p", "/run/sshd")
        cluster.start(node, "/usr/sbin/sshd", "-D", "-e", "-f", folder / "sshd_config")
        wait_until(
            f"{node.name} answers",
            lambda name=node.name: cluster.head.attempt("ssh", "-F", config, name, "true").returncode == 0,
        )
    return config


def start_docker(cluster: Cluster) -> dict[str, str]:
    """A Docker engine on each node, for the head a context of the node's name, through SSH; returns the client's settings.

    Only in a network of its own may an engine have no bridge: it removes the docker0 that it finds.
    """
    folder, client = cluster.folder, {"DOCKER_CONFIG": str(cluster.folder / "client")}
    for node in cluster.nodes:
        node.run("mount", "-t", "tmpfs", "tmpfs", "/run")  # its socket is at Docker's default path
    cluster.head.run("mount", "--bind", start_ssh(cluster), "/etc/ssh/ssh_config")
    for node in cluster.nodes:
        settings = {
            "data-root": str(folder / node.name / "docker"), "features": {"containerd-snapshotter": True},
            "insecure-registries": [REGISTRY], "bridge": "none", "iptables": False, "ip6tables": False,
        }  # fmt: skip
        path = folder / node.name / "daemon.json"
        path.write_text(json.dumps(settings))
        cluster.start(node, "dockerd", "--config-file", path)
        place = f"host=ssh://{node.name}"
        cluster.head.run("docker", "context", "create", node.name, "--docker", place, env=client)
    for node in cluster.nodes:
        asked = ("docker", "--context", node.name, "version")
        wait_until(
            f"the engine of {node.name} answers",
            lambda asked=asked: cluster.head.attempt(*asked, env=client).returncode == 0,
        )
    return client


@dataclass(frozen=True)
class Far:
    """A head without an engine, two nodes with an engine each, and a registry that all of them reach."""

    cluster: Cluster
    client: dict[str, str]

    def attempt(self, recipe: Path, name: str, *options: str, fetched: Path | None = None) -> Ended:
        """Build on the head, without a network, from a cache with no layers: what `fetched` has, or else the user's own.

        A name that was built has its cache and its artifacts.
        """
        folder = self.cluster.folder / name
        is_new = not folder.exists()
        folder.mkdir(exist_ok=True)
        if is_new and fetched:
            (folder / "cache").mkdir(mode=0o700)
            link_tree(fetched / "artifacts", folder / "cache/artifacts")
        elif is_new:
            cache_with_artifacts(folder, recipe)
        command = build_command(recipe, folder / "out", "--runner", "buildkit", "--offline", *options)
        env = self.client | NO_ENGINE | {"ENVBUILDER_CACHE": str(folder / "cache")}
        return self.cluster.head.attempt(*command, env=env)

    def build(self, recipe: Path, name: str, *options: str, fetched: Path | None = None) -> tuple[Built, str]:
        """Build, and return the log too."""
        ended = self.attempt(recipe, name, *options, fetched=fetched)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        data = json.loads(ended.stdout)["data"][0]
        return Built(recipe.stem, self.cluster.folder / name / "out", data), ended.stderr

    def kept(self, node: str) -> list[str]:
        """Return the build records of the engine on that node."""
        du = ("docker", "--context", node, "buildx", "du", "--format", "{{.ID}}")
        return self.cluster.head.run(*du, env=self.client).split()


@contextlib.contextmanager
def open_far(folder: Path) -> Iterator[Far]:
    with machines(folder) as cluster:
        cluster.start(cluster.head, *registry_command(folder / "registry", REGISTRY))
        yield Far(cluster, start_docker(cluster))
