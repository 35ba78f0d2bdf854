"""`watch` on processes that look like ranks: real stacks and states of real processes, in files named as torch's are."""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuilder import runtime
from envbuilder.core.errors import LaunchError, UsageError
from envbuilder.core.process import ProcessRunner
from envbuilder.run.launch.script import PARTS
from envbuilder.run.watch import job_nodes, look
from envbuilder.run.watch.job_nodes import Watched, find_job, look_at, wait_for_hang
from envbuilder.run.watch.verdict import NodeLook, Verdict, judge
from tests.support.cluster import ALONE

runs_programs = pytest.mark.programs
FILES = {
    # A collective that never ends waits for one byte; one that works gets it at once.
    "site-packages/torch/distributed/distributed_c10d.py": """\
import os, time
pipe = os.pipe()[0]
def all_reduce(works=False):
    time.sleep(0.001) if works else os.read(pipe, 1)
def barrier():
    os.read(pipe, 1)
""",
    "site-packages/torch/utils/data/dataloader.py": "import time\ndef get(): time.sleep(600)\n",
    "train.py": """\
import os, signal, socket, subprocess, sys, time
sys.path.insert(0, "site-packages")
from torch.distributed.distributed_c10d import all_reduce, barrier
from torch.utils.data.dataloader import get
def step(works=False):
    all_reduce(works)
def validate():
    time.sleep(600)
def compute():
    while True: sum(range(10000))
def save():
    while True: open("checkpoint", "wb").write(bytes(1 << 20)); time.sleep(0.1)
def train():
    while True: step(True)
def stop():
    os.kill(os.getpid(), signal.SIGSTOP)
def end():
    sys.exit()
def meet():
    socket.create_connection(("192.0.2.2", 29500))
print("begun", flush=True)
globals()[sys.argv[1]]()
""",
}


@contextlib.contextmanager
def ranks(
    folder: Path, *functions: str, before: tuple[str, ...] = (), **variables: str
) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Processes, each with the function that it is in; the second line of the program's output is not waited for."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    common = {
        "PATH": os.environ["PATH"],
        "WORLD_SIZE": str(len(functions)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(os.getpid()),
        **variables,
    }
    started = [
        subprocess.Popen(
            [*before, sys.executable, "train.py", function],
            cwd=folder,
            env=common | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
        )
        for rank, function in enumerate(functions)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_nodes, "_SECONDS", 0.5)


def watch(*processes: "subprocess.Popen[bytes]", **options: bool) -> Verdict:
    time.sleep(0.3)  # the function is called after the line is written
    return look_at(find_job(str(processes[0].pid), Path("/nowhere")), ProcessRunner(os.environ), **options)


@runs_programs
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("validate", "rank 1 waits at train.py:8 in validate; rank 0 waits in all_reduce at train.py:6 in step"),
        ("stop", "rank 1 is stopped by a signal at train.py:16 in stop; rank 0 waits in all_reduce at train.py:6 in step"),
        ("get", "rank 1 waits for its data loader at train.py:22 in <module>; rank 0 waits in all_reduce at train.py:6 in step"),
        ("end", "of 2 ranks, rank 1 has no process; rank 0 waits in all_reduce at train.py:6 in step"),
        ("step", "all ranks are in all_reduce at train.py:6 in step"),
        (
            "barrier",
            (
                "the ranks are in different collectives: rank 0 in all_reduce at train.py:6 in step "
                "while rank 1 in barrier at train.py:22 in <module>"
            ),
        ),
    ],
)  # fmt: skip
def test_a_hang_names_who_waits_for_whom_and_where(tmp_path, function, message):
    with ranks(tmp_path, "step", function) as (first, second):
        if function == "end":
            second.wait()
        verdict = watch(first)
        assert (verdict.is_hang, verdict.message) == (True, message)
        assert ("--smoke --compare" in verdict.repair) == (function == "step")
        assert first.poll() is None


@runs_programs
def test_a_rank_that_nobody_answers_names_the_address(tmp_path):
    """As behind a firewall that drops a port, or on an interface that joins no nodes."""
    with ranks(tmp_path, "meet", before=ALONE) as (first,):
        verdict = watch(first)
    assert verdict.is_hang
    assert verdict.message == "rank 0 gets no answer from 192.0.2.2 port 29500 at train.py:20 in meet"
    assert "GLOO_SOCKET_IFNAME" in verdict.repair


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("020200C0:733C", "192.0.2.2 port 29500"),
        ("0000000000000000FFFF0000020200C0:733C", "192.0.2.2 port 29500"),
        ("B80D0120000000000000000001000000:0050", "2001:db8::1 port 80"),
    ],
)
def test_an_address_of_the_kernel_is_read_as_people_write_it(words, shown):
    assert look.peer(words) == shown


@runs_programs
@pytest.mark.parametrize("function", ["compute", "save", "train"])
def test_a_rank_that_goes_on_is_no_hang(tmp_path, function):
    with ranks(tmp_path, "train" if function == "train" else "step", function) as (first, _):
        verdict = watch(first)
        assert (verdict.is_hang, "go" in verdict.message) == (False, True), verdict.text(0)


@runs_programs
def test_a_rank_that_computes_and_gets_no_core_is_no_hang(tmp_path):
    """Another process with a higher priority has its core."""
    with ranks(tmp_path, "step", "compute") as (first, second), ranks(tmp_path, "compute") as (other,):
        for process, policy in ((second, os.SCHED_IDLE), (other, os.SCHED_OTHER)):
            os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
            os.sched_setscheduler(process.pid, policy, os.sched_param(0))
        verdict = watch(first)
        assert (verdict.is_hang, verdict.ranks[1].is_active) == (False, True), verdict.text(0)


@runs_programs
def test_the_ranks_are_ended_when_that_is_asked_for(tmp_path):
    with ranks(tmp_path, "step", "stop") as started:
        watch(*started, ends=True)
        assert [process.wait(5) for process in started] == [-signal.SIGTERM] * 2


@runs_programs
def test_where_no_stack_can_be_read_the_rank_itself_prints_it(tmp_path):
    """As in a container that allows no ptrace, in a job of `launch`: its stderr is a file of torchrun's."""
    script = "import envbuilder_start, os\ndef wait_long(): os.read(0, 1)\nwait_long()\n"
    env = {"PYTHONPATH": str(runtime.path("start")), "ENVBUILDER_WHOLE_LINES": "1", "RANK": "0"}
    with (
        (tmp_path / "stderr").open("wb") as log,
        subprocess.Popen([sys.executable, "-c", script], env=env, stdin=subprocess.PIPE, stderr=log) as rank,
    ):
        while not int(re.findall(r"SigCgt:\s*(\w+)", look.text(rank.pid, "status"))[0], 16) >> (
            look.STACKS - 1
        ):
            time.sleep(0.1)
        spec = {"job": "", "pid": rank.pid, "py_spy": "", "seconds": 0, "ends": False, "folder": ""}
        node = NodeLook.model_validate_json(json.dumps(look.look(spec)))
        rank.communicate(b"x")
    assert [frame[0] for frame in node.ranks[0].stack] == ["wait_long", "<module>"]


RAS = """\
NCCL version 2.30.7 compiled with CUDA 13.3

Errors
======

Warnings
========

#0-0 (cabd42c38d512d9e) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 10
  Rank 2 has launched up to operation 9 -- GPU 0 managed by process 2755 on node 192.0.2.2

"""


@runs_programs
def test_nccl_is_asked_for_its_counts(tmp_path):
    """A server with the protocol and the words of NCCL 2.30.7, as it answered about four ranks on one H200."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        channel, _ = server.accept()
        with channel, channel.makefile("rwb") as stream:
            for reply in (b"SERVER PROTOCOL 2\n", b"OK\n", RAS.encode()):
                stream.readline()
                stream.write(reply)
                stream.flush()

    thread = threading.Thread(target=answer)
    thread.start()
    with (
        server,
        ranks(tmp_path, "step", "step", NCCL_RAS_ADDR=f"127.0.0.1:{server.getsockname()[1]}") as started,
    ):
        verdict = watch(*started)
    thread.join()
    assert "  NCCL: Rank 2 has launched up to operation 9 -- GPU 0 managed by process 2755" in verdict.text(0)
    assert verdict.message.startswith("NCCL counts differ between the ranks; ranks 0-1 wait in all_reduce")


@runs_programs
def test_the_recorder_is_asked_for_a_dump_and_its_dumps_are_compared(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    for rank in (0, 1):
        os.mkfifo(tmp_path / f"{rank}.pipe")
    pipes = [os.open(tmp_path / f"{rank}.pipe", os.O_RDONLY | os.O_NONBLOCK) for rank in (0, 1)]
    with ranks(
        tmp_path, "step", "step", ENVBUILDER_JOB="7", TORCH_NCCL_DEBUG_INFO_PIPE_FILE=f"{tmp_path}/"
    ) as started:
        for rank, last in ((0, 10), (1, 9)):
            entries = [
                {"collective_seq_id": at, "profiling_name": "nccl:all_reduce", "state": "completed" if at < 10 else "scheduled",
                 "process_group": ["0", "default_pg"], "input_sizes": [[64]]}
                for at in range(1, last + 1)
            ]  # fmt: skip
            dump = {
                "entries": entries,
                "rank": rank,
                "pg_config": {"0": {"desc": "default_pg", "ranks": "[0, 1]"}},
            }
            (logs / f"recorder_{rank}").write_text(json.dumps(dump))
        verdict = look_at(Watched(job="7", folder=logs), ProcessRunner(os.environ))
        assert [os.read(pipe, 9) for pipe in pipes] == [b"1\n", b"1\n"]
        assert [process.poll() for process in started] == [None, None]
    assert (verdict.is_hang, "which rank 1 never launched (newest: 9)" in verdict.message) == (True, True), (
        verdict.message
    )
    for pipe in pipes:
        os.close(pipe)


def test_a_job_is_found_by_its_number_its_folder_or_a_process(tmp_path):
    for name in ("a100-7", "my-env-20261127-101112-99"):
        (tmp_path / name).mkdir()
    (tmp_path / "a100-7/nodes").write_text("ssh -p 22 -- me@n1 \nssh -p 22 -- n2 \n")
    by_number = find_job("7", tmp_path)
    assert by_number == find_job(str(tmp_path / "a100-7"), tmp_path)
    assert (by_number.job, by_number.ways) == (
        "7",
        (("ssh", "-p", "22", "--", "me@n1"), ("ssh", "-p", "22", "--", "n2")),
    )
    assert find_job("20261127-101112-99", tmp_path).job == "20261127-101112-99"
    assert find_job(str(os.getpid()), tmp_path).pid == os.getpid()
    assert find_job(str(2**22 + 1), tmp_path).ways[0][:2] == ("srun", f"--jobid={2**22 + 1}")
    with pytest.raises(UsageError, match="`nothing` is no folder"):
        find_job("nothing", tmp_path)


def test_commands_that_others_may_have_written_are_not_run(tmp_path):
    (tmp_path / "a100-7").mkdir()
    (tmp_path / "a100-7/nodes").write_text("ssh n1\n")
    (tmp_path / "a100-7/nodes").chmod(0o664)
    with pytest.raises(UsageError, match="another user may have written"):
        find_job("7", tmp_path)


@pytest.mark.parametrize(
    ("function", "file", "changes", "is_hang"),
    [
        ("backward", "torch/autograd/graph.py", {}, True),
        ("backward", "torch/autograd/graph.py", {"cpu": 4.0}, False),
        ("backward", "torch/autograd/graph.py", {"is_active": True}, False),
        ("synchronize", "torch/cuda/__init__.py", {"cpu": 1.0}, True),
        ("all_reduce", "torch/distributed/distributed_c10d.py", {"bytes": 1e6}, False),
        ("all_reduce", "torch/distributed/distributed_c10d.py", {"switches": 900.0}, False),
        ("all_reduce", "torch/distributed/distributed_c10d.py", {"is_still": False}, False),
    ],
)
def test_a_long_backward_pass_computes_and_a_wait_for_the_gpu_does_not(function, file, changes, is_hang):
    stack = [(function, f"/opt/env/lib/python3.11/site-packages/{file}", 9), ("step", "/home/me/train.py", 7)]
    row = {
        "rank": 0, "world": 1, "pid": 9, "host": "n1", "state": "S", "cpu": 0.0, "bytes": 0.0, "is_active": False,
        "switches": 0.0, "files": "", "peers": (), "is_still": True, "workers": (), "stack": stack,
    }  # fmt: skip
    verdict = judge([NodeLook(ranks=({**row, **changes},), ras="", gpus=())])
    assert verdict.is_hang == is_hang, verdict.text(0)


@runs_programs
def test_the_ways_to_the_nodes_are_read_as_they_were_written():
    settings = "hosts=('me@n 1' n2) ssh_options=(-F \"it's here\")"
    functions = (PARTS / "supervise.sh").read_text()
    line = (f"{settings}\n{functions}\nways", f"hosts=(localhost)\n{functions}\nways")
    ssh, local = (
        subprocess.run(["bash", "-euc", text], capture_output=True, text=True, check=True).stdout
        for text in line
    )
    options = ["ssh", "-F", "it's here", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--"]
    assert [shlex.split(way) for way in ssh.splitlines()] == [[*options, "me@n 1"], [*options, "n2"]]
    assert local == ""


@runs_programs
def test_a_node_that_cannot_be_reached_is_an_error(tmp_path):
    watched = Watched(job="7", folder=tmp_path, ways=(("false",),))
    with pytest.raises(LaunchError, match="cannot look at the ranks"):
        look_at(watched, ProcessRunner(os.environ))


def test_a_hang_is_reported_once_for_each_silence_and_looked_at_twice(tmp_path):
    (tmp_path / "rank-0.log").touch()
    hang, healthy = (
        judge([]).model_copy(update={"is_hang": is_hang, "ranks": (rank,)})
        for is_hang in (True, False)
        for rank in [None]
    )
    looks, reports = [healthy, hang, healthy, hang, hang], []

    def next_look() -> Verdict:
        return looks.pop(0) if looks else judge([])

    os.utime(tmp_path / "rank-0.log", (1, 1))

    def report(verdict: Verdict) -> None:
        reports.append(len(looks))
        os.utime(tmp_path / "rank-0.log", (2, 2))  # it wrote again, and is silent again

    wait_for_hang(Watched(folder=tmp_path), 0.001, next_look, report)
    assert (reports, looks) == ([0], [])
