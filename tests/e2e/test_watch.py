"""Real jobs over gloo that hang, each for another reason, and healthy ones that take long: what `launch --watch` says of them.

For every change one of each runs; `tests/run/test_watch.py` has the others for every change, with processes that only look like ranks.
"""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import ALONE, logged, wait_until
from tests.support.workbench import ENVBUILDER, Built, open_folder

pytestmark = pytest.mark.builds

STARTED = 600  # seconds in which ranks run, however much other work the machine has
PROGRAM = """\
import os, signal, subprocess, sys, time
import torch, torch.distributed as dist
mode = sys.argv[1]
dist.init_process_group("gloo")
rank, x = dist.get_rank(), torch.ones(64)

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, at):
        if at == 9 and rank == 1:
            time.sleep(600)
        return torch.ones(2)

def step():
    dist.all_reduce(x)

def validate():
    time.sleep(600)

if mode == "loader":
    batches = iter(torch.utils.data.DataLoader(Images(), num_workers=1))
for number in range(12):
    if number == 9 and rank == 1:
        print("step 9", flush=True)
    if mode == "loader":
        next(batches)
    if number == 9 and rank == 1:
        if mode == "fewer":
            break
        if mode == "late":
            validate()
        if mode == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if mode == "files":
            open(sys.argv[2], "rb").read()
        if mode == "computing":
            while True:
                sum(range(10000))
        if mode == "compiling":
            subprocess.run([sys.executable, "-c", "while True: pass"])
        if mode == "checkpoint":
            while True:
                with open("checkpoint", "wb") as stream:
                    stream.write(bytes(8 << 20))
                    time.sleep(0.1)
    step()
if mode == "steps":
    print("step 9", flush=True)
    while True:
        step()
dist.barrier()
"""
HANGS = {
    "fewer": r"the ranks are in different collectives: rank 0 in all_reduce at train.py:\d+ in step while rank 1 in barrier at train.py:\d+",
    "late": r"rank 1 waits at train.py:\d+ in validate; rank 0 waits in all_reduce at train.py:\d+ in step",
    "stopped": r"rank 1 is stopped by a signal at train.py:\d+ in <module>; rank 0 waits in all_reduce",
    "loader": r"rank 1 waits for its data loader, whose process \d+ waits at train.py:\d+ in \S*__getitem__, at train.py",
    "files": r"rank 1 waits for a file system \(request_wait_answer in the kernel\) at train.py:\d+",
}
HEALTHY = ("computing", "compiling", "checkpoint", "steps")


@pytest.fixture
def work() -> Iterator[Path]:
    with open_folder() as outer:
        (outer / "train.py").write_text(PROGRAM)
        yield outer


@contextlib.contextmanager
def blocking_file(work: Path) -> Iterator[Path]:
    """A file in a file system whose server does not answer."""
    (work / "files").mkdir()
    (work / "files/data").write_bytes(os.urandom(3 << 20))
    (work / "mount").mkdir()
    subprocess.run(
        ["mksquashfs", work / "files", work / "files.sqfs", "-quiet"], check=True, stdout=subprocess.DEVNULL
    )
    server = subprocess.Popen(["squashfuse", "-f", work / "files.sqfs", work / "mount"])
    try:
        wait_until("it is mounted", (work / "mount/data").exists)
        server.send_signal(signal.SIGSTOP)
        yield work / "mount/data"
    finally:
        server.send_signal(signal.SIGCONT)
        subprocess.run(["fusermount", "-uz", work / "mount"], check=True)
        server.wait()


@contextlib.contextmanager
def watched(work: Path, cpu: Built, *words: object) -> Iterator[Path]:
    """A job of two ranks that is looked at when no rank has written for three seconds; yields its output."""
    output = work / "launch.log"
    options = ("--artifacts", cpu.output, "--ranks-per-node", "2", "--grace", "2", "--watch", "0.05")
    with logged(
        ENVBUILDER, "launch", "local", "cpu", *options, "--", "train.py", *words, output=output, cwd=work
    ) as job:

        def has_begun() -> bool:
            assert job.poll() is None, "the launch has ended"
            return "step 9" in output.read_text()

        wait_until("the ranks run", has_begun, STARTED)
        yield output
        job.send_signal(signal.SIGINT)
        assert job.wait(60) == 130


@pytest.mark.parametrize(
    "mode", ["fewer", *(pytest.param(mode, marks=pytest.mark.release) for mode in HANGS if mode != "fewer")]
)
def test_a_job_that_hangs_says_who_waits_for_whom(cpu, work, mode):
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(blocking_file(work)) if mode == "files" else ""
        output = stack.enter_context(watched(work, cpu, mode, path))
        wait_until("the hang is named", lambda: "hang: " in output.read_text(), 60)
        assert re.search(rf"^hang: {HANGS[mode]}", output.read_text(), re.MULTILINE), output.read_text()


@pytest.mark.release  # tests/run/test_watch.py has the same without torch
def test_a_rank_that_nobody_answers_names_the_address(cpu, work):
    (work / "meet.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.2", "MASTER_PORT": "29500"}
    env = {f"APPTAINERENV_{name}": value for name, value in variables.items()}
    line = (*ALONE, "apptainer", "exec", "--bind", work, cpu.sif, "python", "meet.py")
    with logged(*line, output=work / "log", cwd=work, env=os.environ | env) as job:

        def names_it() -> bool:
            assert job.poll() is None, (work / "log").read_text()
            seen = subprocess.run(
                [ENVBUILDER, "watch", str(job.pid)], capture_output=True, text=True, check=False
            )
            return "gets no answer from 192.0.2.2 port 29500  meet.py:2 in <module>" in seen.stdout

        wait_until("the address is named", names_it, STARTED)
        job.kill()


@pytest.mark.release  # tests/run/test_watch.py has the same for looks that a test makes up
@pytest.mark.parametrize("mode", HEALTHY)
def test_a_rank_that_is_busy_for_long_is_no_hang(cpu, work, mode):
    """`watch` looks at the job as often as a hang above takes to be named."""
    with watched(work, cpu, mode) as output:
        (folder,) = work.glob("logs/cpu-*/")
        for _ in range(3):
            seen = subprocess.run([ENVBUILDER, "watch", folder], capture_output=True, text=True, check=False)
            assert (seen.returncode, seen.stdout.partition(":")[0]) == (0, "no hang"), (
                seen.stdout + seen.stderr
            )
        assert "hang: " not in output.read_text()
