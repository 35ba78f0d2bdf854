"""Real jobs: Slurm with a controller and two nodes, and two machines reached by SSH, each with a network and processes of its own.

The SIF is the real `cpu`; ranks speak gloo. What ends badly must end soon, say why, and leave no process behind.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuilder.core.cache import link_or_copy
from tests.support.cluster import Cluster, Machine, logged, machines, start_slurm, start_ssh, wait_until
from tests.support.tiny import make_tiny
from tests.support.workbench import ENVBUILDER, Built, Ended, assert_healthy, attempt, open_folder

pytestmark = [
    pytest.mark.builds,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="only root can make machines of namespaces with daemons in them"
    ),
]

SITE = "node_scratch: /tmp\nslurm: {cpus_per_rank: 1, time: '10'}\n"
PROGRAM = """\
import os, pathlib, signal, subprocess, sys, time
rank, mode = int(os.environ["RANK"]), sys.argv[1]

def save(*_):
    time.sleep(1)
    pathlib.Path(f"saved-{rank}").touch()
    sys.exit(0)

if mode == "save":
    signal.signal(signal.SIGTERM, save)
if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "600"], start_new_session=True)
pathlib.Path(f"started-{rank}").touch()
print("world of", os.environ["WORLD_SIZE"], flush=True)
if mode == "die" and rank == 2:
    while not pathlib.Path("die-now").exists():
        time.sleep(0.1)
    sys.exit(3)
if mode != "end":
    time.sleep(600)
"""
STARTED = 600  # seconds in which ranks run, however much other work the machine has: they import torch first
QUICK = 40  # seconds in which a job that fails must be gone, on a machine with other work


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with open_folder() as folder, machines(folder) as made:
        start_slurm(made)
        start_ssh(made)
        yield made


@pytest.fixture
def work(cluster: Cluster) -> Iterator[Path]:
    """A folder on the shared file system, whose name needs quoting; afterwards nothing of the job may be left."""
    with open_folder() as outer:
        folder = outer / "a folder"
        folder.mkdir(mode=0o755)
        (folder / "train.py").write_text(PROGRAM)
        (folder / "site.yaml").write_text(
            SITE + f"ssh: {{hosts: [n1, n2], options: ['-F', '{cluster.folder}/ssh_config']}}\n"
        )
        yield folder
        cluster.head.attempt("scancel", "--user=root", env=cluster.env)
        wait_until(f"nothing is left of {folder}", lambda: not cluster.left_over(), QUICK)


def launch(cluster: Cluster, work: Path, built: Built, where: str, *words: str) -> tuple[str, ...]:
    """The command line, entered on the cluster's head in the work folder."""
    machine = ("nsenter", "--target", str(cluster.head.pid), "--all", f"--wd={work}", "--")
    options = ("--ranks-per-node", "2", "--profile", "site.yaml", "--grace", "5")
    return (*machine, ENVBUILDER, "launch", where, str(built.sif), *options, *words)


def finish(cluster: Cluster, command: tuple[str, ...], timeout: float = 120) -> Ended:
    return subprocess.run(
        command, env=os.environ | cluster.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=timeout, check=False,
    )  # fmt: skip


def log_of(work: Path) -> str:
    return "\n".join(path.read_text() for path in sorted((work / "logs").glob("cpu-*.log")))


def started(work: Path) -> bool:
    return len(list(work.glob("started-*"))) == 4


def submit(cluster: Cluster, work: Path, built: Built, *words: str) -> str:
    """Submit a job of two nodes; returns its number when all four ranks run."""
    ended = finish(cluster, launch(cluster, work, built, "slurm", "--nodes", "2", *words))
    submitted = re.match(r"job (\d+) is submitted", ended.stdout)
    assert submitted, ended.stdout + ended.stderr
    return submitted[1]


def assert_watched(cluster: Cluster, work: Path, job: str) -> None:
    """From the head, `watch` sees what all four ranks on two nodes do."""
    machine = ("nsenter", "--target", str(cluster.head.pid), "--all", f"--wd={work}", "--")
    seen = finish(cluster, (*machine, ENVBUILDER, "watch", job))
    line = "no hang: ranks 0-3 wait at train.py:21 in <module>, and no rank waits in a collective\n"
    assert (seen.returncode, seen.stdout.startswith(line)) == (0, True), seen.stdout + seen.stderr
    assert re.findall(r"rank \d +(n\d) ", seen.stdout) == ["n1", "n1", "n2", "n2"]


def wait_for_end(cluster: Cluster, number: str) -> str:
    def state() -> str:
        shown = cluster.head.run("scontrol", "show", "job", number, env=cluster.env)
        return re.search(r"JobState=(\w+)", shown)[1]  # type: ignore[index]

    wait_until(f"job {number} has ended", lambda: state() not in ("RUNNING", "PENDING", "COMPLETING"), QUICK)
    return state()


@pytest.mark.parametrize("shape", ["torchrun", "tasks"])
def test_four_ranks_on_two_slurm_nodes_are_one_job(cluster, work, cpu, shape):
    command = launch(cluster, work, cpu, "slurm", "--nodes", "2", "--shape", shape, "--smoke", "--wait")
    ended = finish(cluster, command)
    log = log_of(work)
    assert ended.returncode == 0, log + ended.stderr
    assert "0: smoke: passed, 4 ranks, gloo" in log
    assert "4 ranks on 2 nodes, wanted 4" in log
    assert "frame #" not in log  # of the launcher of the second node, when the first has ended
    assert "OMP_NUM_THREADS" not in log
    assert re.search(r"n1 +0 .*\n.*n1 +1 .*\n.*n2 +0 .*\n.*n2 +1 ", log)
    assert_healthy(work / "logs")
    ranks = {path.name for path in work.glob("logs/cpu-*/rank-*.log")}
    assert ranks == {f"rank-{rank}.log" for rank in range(4)}


def test_the_ranks_run_from_a_copy_on_each_node(cluster, work, cpu):
    command = launch(cluster, work, cpu, "slurm", "--nodes", "2", "--local-copy", "--smoke", "--wait")
    ended = finish(cluster, command, timeout=400)
    log = log_of(work)
    assert ended.returncode == 0, log + ended.stderr
    assert "0: smoke: passed, 4 ranks, gloo" in log
    assert "this node has no copy" not in log
    for node in cluster.nodes:
        script = "sha256sum /tmp/envbuilder-0/sifs/cpu-*.sif; rm -r /tmp/envbuilder-0/sifs"
        shown = node.run("sh", "-c", script)
        digest, path = shown.split()
        assert path == f"/tmp/envbuilder-0/sifs/cpu-{digest}.sif"


@pytest.mark.parametrize(("shape", "code"), [("torchrun", "EB809"), ("tasks", "EB998")])
def test_a_rank_that_dies_ends_the_slurm_job(cluster, work, cpu, shape, code):
    """Each line is in the logs while the job runs: a rank dies only after this test has read one."""
    number = submit(cluster, work, cpu, "--shape", shape, "--", "train.py", "die")
    rank = work / f"logs/cpu-{number}/rank-0.log"
    wait_until("the job's log has the line", lambda: "0: world of 4\n" in log_of(work), STARTED)
    wait_until("the rank's log has the line", lambda: "world of 4\n" in rank.read_text())
    (work / "die-now").touch()
    assert wait_for_end(cluster, number) == "FAILED"
    assert re.search(rf"^launch: n1: \| cause: .*\[{code}\]", log_of(work), re.MULTILINE), log_of(work)


@pytest.mark.parametrize("shape", ["torchrun", "tasks"])
def test_near_the_end_of_its_time_every_rank_can_save(cluster, work, cpu, shape):
    """What `--signal=B:TERM@…` does: TERM to the script alone."""
    number = submit(cluster, work, cpu, "--shape", shape, "--", "train.py", "save")
    wait_until("all ranks run", lambda: started(work), STARTED)
    cluster.head.run("scancel", "--batch", "--signal=TERM", number, env=cluster.env)
    wait_for_end(cluster, number)
    assert len(list(work.glob("saved-*"))) == 4
    assert "the time limit of the job is 5 s away: sending TERM to every rank" in log_of(work)


def test_a_cancelled_job_leaves_nothing(cluster, work, cpu):
    number = submit(cluster, work, cpu, "--", "train.py", "deaf")
    wait_until("all ranks run", lambda: started(work), STARTED)
    assert_watched(cluster, work, number)
    cluster.head.run("scancel", number, env=cluster.env)
    assert wait_for_end(cluster, number) == "CANCELLED"


def test_a_wrong_partition_is_said_at_once(cluster, work, cpu):
    ended = finish(cluster, launch(cluster, work, cpu, "slurm", "--partition", "nope", "--smoke"))
    assert ended.returncode == 9, ended.stderr
    assert "invalid partition specified: nope" in ended.stderr
    assert "`sinfo` lists the partitions" in ended.stderr


def test_more_nodes_than_there_are_is_said_at_once(cluster, work, cpu):
    ended = finish(cluster, launch(cluster, work, cpu, "slurm", "--nodes", "3", "--smoke"))
    assert ended.returncode == 2, ended.stderr
    assert "the partition `main` gives a job 2 at most" in ended.stderr
    assert cluster.head.run("squeue", "--noheader", env=cluster.env) == ""


def test_a_script_for_a_site_names_what_its_nodes_lack_and_runs_when_it_is_there(cluster, work, cpu):
    """It is written in another folder than that of the nodes, and submitted from a third one."""
    folders = f"sifs: $SHARED/sifs\nprojects: {work}/projects\n"
    (work / "there.yaml").write_text(folders + SITE)
    desk, login = work / "my project", work / "login"
    (desk / ".git").mkdir(parents=True)
    login.mkdir()
    (desk / "train.py").write_text(PROGRAM)
    options = (
        "--shape", "tasks", "--ranks-per-node", "1", "--write", login / "job.sh", "--for", "../there.yaml",
    )  # fmt: skip
    command = (ENVBUILDER, "launch", "slurm", cpu.sif, *options, "--", "train.py", "end")
    written = attempt(*command, cwd=desk)
    assert written.returncode == 0, written.stderr
    assert f"it starts in {work}/projects/my project, from $SHARED/sifs/cpu.sif" in written.stderr
    assert str(desk) not in (login / "job.sh").read_text()

    def job() -> tuple[int, str]:
        """The exit code of the job, and its log."""
        line = ("sh", "-c", 'cd "$0" && rm -f *.log && exec sbatch --wait job.sh', login)
        ended = cluster.head.attempt(*line, env=cluster.env | {"SHARED": str(work / "shared")})
        (log,) = login.glob("cpu-*.log")
        return ended.returncode, log.read_text()

    place = f"{work}/projects/my project"
    code, log = job()
    lacking = f"this node lacks the SIF {work}/shared/sifs/cpu.sif, the folder {place};"
    assert (code, lacking in log) == (9, True), log
    shutil.copytree(desk, place)
    (work / "shared/sifs").mkdir(parents=True)
    link_or_copy(cpu.sif, work / "shared/sifs/cpu.sif")
    code, log = job()
    assert (code, "0: world of 1\n" in log, f"logs in {place}/logs/cpu-" in log) == (0, True, True), log


def test_a_job_that_slurm_cannot_start_has_no_log_and_it_is_said(cluster, work, cpu):
    """The folder of logs is in the `/tmp` of the head, and the node has another one."""
    command = launch(cluster, work, cpu, "slurm", "--wait", "--logs", "/tmp/logs", "--", "train.py", "end")
    ended = finish(cluster, command)
    assert (ended.returncode, "has failed: it wrote nothing to /tmp/logs/cpu-" in ended.stdout) == (9, True)
    assert "scontrol show job" in ended.stdout


def test_whoever_stops_waiting_learns_that_the_job_goes_on(cluster, work, cpu):
    """The job waits for another, which has both nodes."""
    full = (
        "sbatch", "--parsable", "--exclusive", "--nodes=2", "--chdir=/tmp", "--output=/dev/null",
        "--wrap=sleep 600",
    )  # fmt: skip
    cluster.head.run(*full, env=cluster.env)
    output = work / "launch.log"
    command = launch(cluster, work, cpu, "slurm", "--nodes", "2", "--wait", "--smoke")
    with logged(*command, output=output, env=os.environ | cluster.env) as running:
        wait_until("it says why it waits", lambda: " waits: " in output.read_text())
        (child,) = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGINT)
        assert running.wait(QUICK) == 130
    notice = re.search(r"job (\d+) goes on; to end it: (scancel \d+)", output.read_text())
    assert notice, output.read_text()
    state = ("squeue", "--noheader", "--format=%T", "--jobs", notice[1])
    assert cluster.head.run(*state, env=cluster.env) == "PENDING\n"
    cluster.head.run(*notice[2].split(), env=cluster.env)


@contextlib.contextmanager
def full_scratch(machine: Machine) -> Iterator[None]:
    """The node's /tmp has no room."""
    machine.run("mount", "-t", "tmpfs", "-o", "size=64k", "none", "/tmp")
    try:
        yield
    finally:
        machine.run("umount", "/tmp")


def test_a_full_scratch_is_found_before_a_rank_starts(cluster, work, cpu):
    with full_scratch(cluster.nodes[1]):
        number = submit(cluster, work, cpu, "--", "train.py", "end")
        assert wait_for_end(cluster, number) == "FAILED"
    log = log_of(work)
    assert re.search(r"launch: n2: /tmp/envbuilder-0 has [01] MB free, and 1024 MB are wanted", log), log
    assert "no rank was started, for a node is not ready" in log
    assert list(work.glob("started-*")) == []


def test_another_sif_than_the_one_that_was_looked_at_is_found(cluster, work, cpu, spacious):
    copy = spacious / "cpu.sif"
    copy.symlink_to(cpu.sif)
    other = Built("cpu", spacious, {})
    script = work / "job.sh"

    def write(*words: str) -> Ended:
        command = launch(cluster, work, other, "slurm", "--nodes", "2", *words, "--", "train.py", "end")
        return finish(cluster, command)

    write("--write", str(script))
    text = script.read_text()
    assert write("--dry-run").stdout == text
    script.write_text(text.replace(re.search(r"sif_sha256=(\w+)", text)[1], "0" * 64))  # type: ignore[index]
    line = 'cd "$0" && exec sbatch --wait ../job.sh'  # in the folder where its log is then
    submit = ("sh", "-c", line, str(work / "logs"))
    ended = finish(cluster, (*cluster.head.enter, *submit))
    assert ended.returncode != 0
    assert "this script was written for another file" in log_of(work)


# ---- builds


def test_recipes_are_built_as_an_array_on_the_nodes(cluster, work, bench):
    recipes, out = work / "recipes", work / "out"
    for name in ("one", "two"):
        make_tiny(recipes, name, (("filelock",) if name == "one" else ("filelock", "markupsafe")))
    (recipes / "none.yaml").write_text((recipes / "one.yaml").read_text())
    machine = ("nsenter", "--target", str(cluster.head.pid), "--all", f"--wd={work}", "--", "env")
    settings = [f"{name}={value}" for name, value in bench.env(bench.cache(1)).items()]
    words = ("build", "--all", "--recipes", recipes, "--output", out, "--offline", "--on", "slurm", "--wait")
    site = ("--profile", "site.yaml", "--sbatch=--exclusive")  # a node has room for all three
    ended = finish(cluster, (*machine, *settings, ENVBUILDER, *map(str, words), *site))
    rows = [re.split(r"  +", line) for line in ended.stdout.splitlines()]
    assert [row[:2] for row in rows] == [
        ["none", "failed, exit code 4"], ["one", "built"], ["two", "built"],
    ], ended.stderr  # fmt: skip
    assert {row[2] for row in rows} == {"n1", "n2"}
    assert ended.returncode == 4
    log = next(path for path in (out / "slurm").glob("build-*_0.log"))
    assert str(log) in ended.stderr
    assert "there is no lock" in log.read_text()
    assert {path.name for path in out.glob("*.sif")} == {"one.sif", "two.sif"}


# ---- SSH


@pytest.mark.parametrize(
    "way", [pytest.param((), id="ssh"), pytest.param(("--pdsh",), id="pdsh", marks=pytest.mark.release)]
)
def test_four_ranks_on_two_machines_reached_by_ssh_are_one_job(cluster, work, cpu, way):
    """By pdsh only before a release: `tests/run/test_launch.py` has its command."""
    ended = finish(cluster, launch(cluster, work, cpu, "ssh", *way, "--smoke"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert_healthy(work / "logs")
    assert "0: smoke: passed, 4 ranks, gloo" in ended.stdout
    ranks = {path.name for path in work.glob("logs/cpu-*/rank-*.log")}
    assert ranks == {f"rank-{rank}.log" for rank in range(4)}


@pytest.mark.release
@pytest.mark.parametrize("where", ["ssh", "slurm"])
def test_the_transports_between_two_machines_are_compared(cluster, work, cpu, where):
    """An interface that joins no machines fails. `tests/runtime/test_start.py` has the table for every change."""
    for node in cluster.nodes:
        node.run("ip", "link", "add", "apart", "type", "veth", "peer", "name", "end")
        node.run("ip", "link", "set", "end", "up")
        node.run("ip", "addr", "add", f"10.99.{node.name[1:]}.1/24", "dev", "apart")
        node.run("ip", "link", "set", "apart", "up")
    words = {"ssh": (), "slurm": ("--nodes", "2", "--shape", "tasks", "--wait")}[where]
    try:
        ended = finish(cluster, launch(cluster, work, cpu, where, *words, "--smoke", "--compare"), 400)
    finally:
        for node in cluster.nodes:
            node.run("ip", "link", "del", "apart")
    table = ended.stdout if where == "ssh" else log_of(work)
    assert ended.returncode == 0, table + ended.stderr
    assert re.search(r"^0: gloo  +8 MiB in ", table, re.MULTILINE), table
    assert re.search(r"^0: gloo on eth0  +8 MiB in ", table, re.MULTILINE), table
    assert re.search(r"^0: gloo on apart  fails: ", table, re.MULTILINE), table


@pytest.mark.parametrize(
    "way", [(), pytest.param(("--pdsh",), marks=pytest.mark.release)], ids=["ssh", "pdsh"]
)
def test_a_rank_that_dies_ends_the_job_on_all_machines(cluster, work, cpu, way):
    """By pdsh in a release: the golden script of `tests/run/test_launch.py` has the line that passes its exit code on."""
    (work / "die-now").touch()
    ended = finish(cluster, launch(cluster, work, cpu, "ssh", *way, "--", "train.py", "die"))
    assert ended.returncode not in (0, 124)
    assert "the ranks ended with exit code" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.release)])
def test_whoever_ends_the_ssh_launch_ends_it_everywhere(cluster, work, cpu, number):
    """Also ranks that take no notice of TERM, and what they started in a session of its own. By KILL only before a release."""
    command = launch(cluster, work, cpu, "ssh", "--", "train.py", "deaf")
    with logged(*command, output=work / "launch.log", env=os.environ | cluster.env) as running:
        wait_until("all ranks run", lambda: started(work), STARTED)
        assert len(cluster.left_over()) == 2
        (logs,) = work.glob("logs/cpu-*/")
        assert_watched(cluster, work, logs.name.removeprefix("cpu-"))
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        for pid in children or [str(running.pid)]:
            os.kill(int(pid), number)
        running.wait(QUICK)
        wait_until("nothing is left", lambda: not cluster.left_over(), QUICK)


def test_a_machine_that_does_not_answer_is_named(cluster, work, cpu):
    command = launch(cluster, work, cpu, "ssh", "--hosts", "n1,10.77.0.99", "--", "train.py", "end")
    began = time.monotonic()
    ended = finish(cluster, command)
    assert time.monotonic() - began < QUICK
    assert ended.returncode == 9, ended.stderr
    assert "10.77.0.99 does not answer over SSH" in ended.stderr
    assert list(work.glob("started-*")) == []


def test_a_full_scratch_of_a_machine_reached_by_ssh_is_found(cluster, work, cpu):
    with full_scratch(cluster.nodes[1]):
        ended = finish(cluster, launch(cluster, work, cpu, "ssh", "--", "train.py", "end"))
    assert ended.returncode == 9, ended.stderr
    assert re.search(r"launch: n2: /tmp/envbuilder-0 has [01] MB free, and 1024 MB are wanted", ended.stderr)
    assert list(work.glob("started-*")) == []


def test_a_machine_that_is_lost_ends_the_job_everywhere(cluster, work, cpu):
    """Its cable is pulled while ranks run there; it hears of the end through the file system."""
    site = work / "site.yaml"
    impatient = "'-o', 'ServerAliveInterval=1', '-o', 'ServerAliveCountMax=2', '-F'"
    site.write_text(site.read_text().replace("'-F'", impatient))
    running = subprocess.Popen(
        launch(cluster, work, cpu, "ssh", "--", "train.py", "wait"), env=os.environ | cluster.env,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    wait_until("all ranks run", lambda: started(work), STARTED)
    cluster.nodes[1].run("ip", "link", "set", "eth0", "down")
    try:
        printed, _ = running.communicate(timeout=QUICK)
        wait_until("nothing is left", lambda: not cluster.left_over(), QUICK)
    finally:
        cluster.nodes[1].run("ip", "link", "set", "eth0", "up")
    assert running.returncode == 255
    assert "n2 does not answer over SSH, or the connection broke" in printed


@pytest.mark.parametrize("where", ["ssh", "slurm"])
def test_a_port_in_use_is_said_before_a_rank_starts(cluster, work, cpu, where):
    script, log = work / "job.sh", work / "port.log"
    options = ("--nodes", "2", "--write", str(script))
    finish(cluster, launch(cluster, work, cpu, where, *options, "--", "train.py", "end"))
    text = script.read_text()
    script.write_text(re.sub(r"MASTER_PORT=\$\(\(.*?\)\)", "MASTER_PORT=20999", text))
    listener = subprocess.Popen(
        [*cluster.nodes[0].enter, "python3", "-m", "http.server", "20999", "--bind", "0.0.0.0"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until("the port is taken", lambda: "20999" in cluster.nodes[0].run("ss", "-ltn"))
        start = {"ssh": ("bash",), "slurm": ("sbatch", "--wait", f"--output={log}")}[where]
        ended = finish(cluster, (*cluster.head.enter, *start, str(script)))
    finally:  # not nsenter, whose child would stay as a zombie where process 1 waits for no orphan, as in a code host's container
        cluster.nodes[0].run("pkill", "--full", "http.server 20999")
        listener.wait()
    assert ended.returncode == 9, ended.stderr
    assert "port 20999 is in use on n1" in (log.read_text() if where == "slurm" else ended.stderr)
    assert list(work.glob("started-*")) == []
