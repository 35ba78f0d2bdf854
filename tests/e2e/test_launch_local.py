"""`launch local` in the real SIF and the real image: two ranks that speak, one that dies, and an end that leaves nothing."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import logged, wait_until
from tests.support.workbench import (
    ENVBUILDER,
    NOBODY,
    ROOT,
    Built,
    Ended,
    as_nobody,
    assert_healthy,
    open_folder,
)

pytestmark = pytest.mark.builds

STARTED = 600  # seconds in which ranks run, however much other work the machine has
PROGRAM = """\
import os, pathlib, signal, subprocess, sys, time
if sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "600"], start_new_session=True)
pathlib.Path("started-" + os.environ["RANK"]).touch()
names = ("GIVEN", "TORCH_CUDA_ARCH_LIST", "AR", "CUDA_PATH")
print("given", *(os.environ.get(name, "-") for name in names), os.environ["PATH"].partition(":")[0], flush=True)
if sys.argv[1] == "die" and os.environ["RANK"] == "1":
    sys.exit(3)
time.sleep(600)
"""


@pytest.fixture
def work() -> Iterator[Path]:
    with open_folder() as outer:
        folder = outer / "a folder"
        folder.mkdir()
        (folder / "train.py").write_text(PROGRAM)
        yield folder


@pytest.fixture(params=["sif", "image"])
def line(request: pytest.FixtureRequest, cpu: Built) -> tuple[object, ...]:
    options = ("--artifacts", cpu.output, "--in", request.param, "--ranks-per-node", "2", "--grace", "2")
    return (ENVBUILDER, "launch", "local", "cpu", *options)


def launch(work: Path, *argv: object, **variables: str) -> Ended:
    return subprocess.run(
        [str(word) for word in argv], cwd=work, env=os.environ | {"GIVEN": "by me"} | variables, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def left_over(job: str) -> list[str]:
    """The processes that carry the job's mark, in a container or not."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"ENVBUILDER_JOB={job}".encode() in path.read_bytes():
                processes.append(path.parent.name)
        except OSError:  # it has just ended
            continue
    return processes


def test_a_script_that_is_not_there_is_said_before_it_runs(line, work):
    said = launch(work, *line, "--dry-run", "--", "trian.py")
    assert said.returncode == 0
    assert said.stderr == f"warning: there is no `trian.py` in {work}, where the ranks start\n"


def test_a_script_that_was_edited_is_kept_when_it_is_written_again(line, work):
    write = (*line, "--write", "job.sh", "--", "train.py")
    assert [launch(work, *write).stderr for _ in range(2)] == ["", ""]
    edited = (work / "job.sh").read_text() + "echo mine\n"
    (work / "job.sh").write_text(edited)
    assert launch(work, *write).stderr == "the earlier `job.sh` is kept as `job.sh~`\n"
    assert (work / "job.sh~").read_text() == edited
    assert "echo mine" not in (work / "job.sh").read_text()


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("./tool", "it has no /nonexistent/python, which the first line of ./tool names"),
        ("pyhton", "it has no program pyhton"),
        ("/opt/none.py", "it has no file /opt/none.py"),
    ],
)
def test_a_program_that_the_container_cannot_start_is_said_before_a_rank_starts(line, work, program, why):
    (work / "tool").write_text("#!/nonexistent/python\n")
    (work / "tool").chmod(0o755)
    ended = launch(work, *line, "--", program, "train.py")
    assert (ended.returncode, f"cannot start the program: {why}\n" in ended.stderr) == (9, True), ended.stderr
    assert "Traceback" not in ended.stderr


def test_two_ranks_are_one_job(line, work):
    ended = launch(work, *line, "--smoke")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert_healthy(work / "logs")
    assert "0: smoke: passed, 2 ranks, gloo" in ended.stdout


def test_a_rank_that_dies_ends_the_job_and_settings_have_arrived(line, work):
    """The site's are passed on purpose. What is left out of the shell's is said once."""
    (work / "site.yaml").write_text('env: {TORCH_CUDA_ARCH_LIST: "8.0"}\n')
    shell = {"AR": "gcc-ar-99", "CUDA_PATH": "/opt/cuda-11", "TORCH_CUDA_ARCH_LIST": "7.0"}
    ended = launch(work, *line, "--", "train.py", "die", ENVBUILDER_SITE=str(work / "site.yaml"), **shell)
    assert ended.returncode not in (0, 124)
    assert "the ranks ended with exit code" in ended.stderr
    assert re.search(r"^launch: \S+: \| cause: .*\[EB809\]", ended.stderr, re.MULTILINE), ended.stderr
    assert "failed (exitcode: 3) local_rank: 1" in ended.stderr
    assert "1: given by me 8.0 - - /opt/env/bin" in ended.stdout
    names = re.findall(r"kept out of the environment: ?([^;(]+\b)", ended.stderr)
    assert names == ["AR TORCH_CUDA_ARCH_LIST", "CUDA_PATH"]
    (log,) = work.glob("logs/cpu-*/rank-1.log")
    assert "given by me" in log.read_text()
    job = re.search(r"job (\S+):", ended.stderr)
    assert job
    assert left_over(job[1]) == []


def test_ctrl_c_leaves_nothing(line, work):
    """Not even what takes no notice of TERM, or has a session of its own."""
    command = (*line, "--", "train.py", "deaf")
    with logged(*command, output=work / "launch.log", cwd=work) as running:

        def all_run() -> bool:
            assert running.poll() is None, "the launch has ended"
            return len(list(work.glob("started-*"))) == 2

        wait_until("all ranks run", all_run, STARTED)
        (logs,) = work.glob("logs/cpu-*/torchrun")
        job = logs.parent.name.removeprefix("cpu-")
        assert len(left_over(job)) > 2
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130
        wait_until("nothing is left", lambda: not left_over(job))


def test_an_image_that_was_built_anew_is_not_taken_for_the_one_that_was_looked_at(cpu, work):
    script = work / "job.sh"
    words = ("--in", "image", "--write", script, "--", "train.py", "die")
    assert (
        launch(work, ENVBUILDER, "launch", "local", "cpu", "--artifacts", cpu.output, *words).returncode == 0
    )
    script.write_text(re.sub(r"image_id=\S+", "image_id=sha256:0", script.read_text()))
    ended = launch(work, "bash", script)
    assert ended.returncode == 9
    assert "this script was written for another image" in ended.stderr
    assert list(work.glob("started-*")) == []


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can close /dev/fuse in a namespace, and be another user"
)
def test_where_fuse_is_closed_the_reason_and_its_repair_are_said(cpu, work):
    script, scratch, closed, devices = (work / name for name in ("job.sh", "scratch", "closed", "devices"))
    words = ("--write", script, "--", "train.py", "die")
    assert (
        launch(work, ENVBUILDER, "launch", "local", "cpu", "--artifacts", cpu.output, *words).returncode == 0
    )
    scratch.mkdir()
    for folder in (scratch, work / "logs"):
        os.chown(folder, NOBODY, NOBODY)
    closed.touch(mode=0o000)
    devices.mkdir()
    for name, repair in (
        (f"mount --bind '{closed}' /dev/fuse", "/dev/fuse: Permission denied; repair: as root, `chmod 666 /dev/fuse`"),
        (
            f"mount -t tmpfs none '{devices}' && cp -a /dev/null /dev/zero /dev/urandom /dev/fd '{devices}' && mount --move '{devices}' /dev",
            "try 'modprobe fuse' first; repair: as root, `modprobe fuse`",
        ),
    ):  # fmt: skip
        command = ("unshare", "--mount", "bash", "-c", f'{name} && exec "$@"', "bash")
        ended = launch(work, *command, *as_nobody("env", f"TMPDIR={scratch}", "bash", script))
        assert ended.returncode == 9, ended.stderr
        assert "no container starts here: container creation failed: " in ended.stderr
        assert f"{repair}\n" in ended.stderr
        assert "damaged" not in ended.stderr
    assert list(work.glob("started-*")) == []


def test_the_benchmark_of_gpus_names_what_did_not_run_and_what_is_wrong(cpu: Built, work: Path):
    """On the rare day with a GPU, it must not fail itself, nor pass over a row."""
    (work / cpu.sif.name).symlink_to(cpu.sif)
    (work / "broken").write_text('#!/bin/sh\n[ "$1" != diagnose ] || exit 1\n')
    (work / "broken").chmod(0o755)
    options = ("--without-gpu", "--as", "root" if os.geteuid() == 0 else "user", "--shell", "clean", "--only")
    command = (ROOT / "bench/gpu", work, *options, "`apptainer exec`", "a kernel", "a module that is missing")

    good = launch(work, *command, "--results", work / "results", "--envbuilder", ENVBUILDER)
    assert good.returncode == 3, good.stderr
    rows = [line.split(" | ") for line in (work / "results/gpu.md").read_text().splitlines()]
    assert [row[1:3] for row in rows if row[0] in ("| 00", "| 01", "| 02")] == [
        ["`apptainer exec`", "right"],
        ["a kernel", "not run: it needs a GPU"],
        ["a module that is missing", "EB988"],
    ]
    assert "2 of 3 right. Wrong: none. Not run: a kernel." in good.stdout

    bad = launch(work, *command[:-2], command[-1], "--envbuilder", work / "broken")
    assert bad.returncode == 1, bad.stderr
    assert "Wrong: a module that is missing. Not run: none." in bad.stdout

    (work / cpu.sif.name).unlink()
    assert launch(work, *command, "--envbuilder", ENVBUILDER).returncode == 2
