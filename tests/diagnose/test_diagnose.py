"""Known failures in logs: each by real-shaped excerpts of every version, none in good logs, and the cause before its consequences."""

import gzip
import io
import json
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from docs import make_diagnose
from envbuilder import cli
from envbuilder.builder.slots import NVCC_MEMORY
from envbuilder.commands.diagnose import findings
from envbuilder.diagnose import Diagnosis, LogError, Role, as_text, diagnose, logs
from envbuilder.diagnose.catalogue import load_catalogue, load_messages
from envbuilder.diagnose.collectives import CollectiveVerdict, Ranks
from envbuilder.diagnose.logs import plain, rank_of, rank_of_file, time_of, unlabelled
from envbuilder.diagnose.recorder import read_dump
from tests.support.excerpts import CLEAN, EXCERPTS, FOLDER, Excerpt

LOAD_MESSAGES = Path(__file__).parents[2] / "envbuilder/runtime/lib/envbuilder_extensions/messages.json"
CATALOGUE = load_catalogue()


def read(text: bytes | str) -> Diagnosis:
    return diagnose(["-"], io.BytesIO(text.encode() if isinstance(text, str) else text))


def folder(path: Path, **logs: str | bytes) -> Diagnosis:
    """Diagnose a folder of these logs; `a` becomes `a.log`."""
    for name, text in logs.items():
        (path / f"{name}.log").write_bytes(text.encode() if isinstance(text, str) else text)
    return diagnose([str(path)], io.BytesIO())


def codes(diagnosis: Diagnosis) -> list[str]:
    return [one.failure.code for one in diagnosis.incidents]


def check(excerpt: Excerpt, diagnosis: Diagnosis) -> None:
    if excerpt.beside:
        assert {excerpt.code, excerpt.beside} <= set(codes(diagnosis))
    else:
        assert codes(diagnosis)[:1] == [excerpt.code]


def test_the_catalogue_knows_at_least_sixty_failures_each_with_two_excerpts():
    counts = {failure.code: 0 for failure in CATALOGUE}
    for excerpt in EXCERPTS:
        counts[excerpt.code] += 1
    assert len(counts) >= 60
    assert [code for code, count in counts.items() if count < 2] == []


@pytest.mark.parametrize("excerpt", EXCERPTS, ids=lambda one: f"{one.code} {one.note}")
def test_an_excerpt_is_known(excerpt: Excerpt):
    check(excerpt, read(excerpt.text))


@pytest.mark.parametrize("path", CLEAN, ids=lambda path: path.stem)
def test_a_good_log_has_no_failure(path: Path):
    diagnosis = diagnose([str(path)], io.BytesIO())
    assert (codes(diagnosis), diagnosis.logs) == ([], 1)


HEALTHY = re.split(rb"^=== ", (FOLDER / "healthy.txt").read_bytes(), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("part", HEALTHY, ids=lambda part: part.partition(b"\n")[0].decode())
def test_what_programs_say_in_good_runs_is_no_failure(part: bytes):
    assert codes(read(part.partition(b"\n")[2])) == []


WRAPPERS: dict[str, Callable[[bytes], bytes]] = {
    "colours": lambda line: b"\x1b[1;31m" + line + b"\x1b[0m",
    "torchrun": lambda line: b"[default3]:" + line,
    "mpirun": lambda line: b"[1,3]<stderr>:" + line,
    "ray": lambda line: b"(TrainWorker pid=4411, ip=10.0.0.3) " + line,
    "srun": lambda line: b" 3: " + line,
    "time": lambda line: b"2026-07-01T10:00:00.120Z " + line,
    "compose": lambda line: b"trainer-1  | " + line,
    "progress": lambda line: b"12%|#2   | 12/100 [00:01<00:09]\r 13%|#3   | 13/100 [00:01<00:09]\r" + line,
    "windows": lambda line: line + b"\r",
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_what_others_put_around_a_line_does_not_hide_it(wrap: Callable[[bytes], bytes]):
    # The label would change the ranks of some, and come between the parts of a broken line.
    kept = [
        one for one in EXCERPTS if one.code not in ("EB976", "EB977") and not one.note.endswith("(broken)")
    ]
    for excerpt in kept:
        text = b"\n".join(wrap(line) for line in excerpt.text.splitlines())
        check(excerpt, read(text))


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 300), noise=st.integers(0, 4), at=st.sampled_from(EXCERPTS))
def test_the_size_of_blocks_changes_nothing(size: int, noise: int, at: Excerpt):
    text = b"INFO step 1 loss 0.5\n" * noise + at.text
    whole = read(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "BLOCK", max(size, max(map(len, text.splitlines())) + 1))
        cut = read(text)
    assert cut == whole


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "1 log, 0 lines"),
        ("fine\n", "1 log, 1 line"),
        ("fine", "1 log, 1 line"),
        ("fine\nfine", "1 log, 2 lines"),
        ("fine\nfine\n", "1 log, 2 lines"),
    ],
)
def test_lines_are_counted_whether_the_last_one_ends_or_not(text: str, told: str):
    assert as_text(read(text)).splitlines()[0] == f"no known failure ({told})"


def test_without_a_known_failure_each_rank_has_a_last_line_and_errors_stand_first(tmp_path: Path):
    text = as_text(
        folder(
            tmp_path,
            a="[rank0]: step 9\n[rank1]: ERROR the pump stopped\n[rank1]: step 9\n[rank0]: step 10\n",
            b="[rank2]:[E1201 08:10:01.5 pump.cpp:7] no water\n\n",
        )
    )
    assert [line.strip() for line in text.splitlines() if str(tmp_path) in line] == [
        f"{tmp_path}/a.log:2: [rank1]: ERROR the pump stopped",
        f"{tmp_path}/b.log:1: [rank2]:[E1201 08:10:01.5 pump.cpp:7] no water",
        f"{tmp_path}/a.log:4: [rank0]: step 10",
    ]


def test_an_exception_whose_message_begins_on_the_next_line_is_quoted_with_it():
    text = (
        "[rank2]: Traceback (most recent call last):\n[rank0]: step 9\n[rank2]:   File x\n"
        "[rank2]: acme.PlanError:\n[rank0]: step 10\n[rank2]:\n[rank2]:   the plan has no steps\n"
    )
    (incident,) = read(text).incidents
    assert incident.details == ["acme.PlanError: the plan has no steps"]
    (cut,) = read(text[: text.index("[rank0]: step 10")]).incidents
    assert cut.details == ["acme.PlanError:"]


NO_HEAD = "  File \"/home/ann/model.py\", line 8, in forward\n    return self.table[key]\n{between}KeyError: 'img_88'\n"


def test_a_traceback_without_its_head_ends_with_an_exception_that_follows_closely():
    assert codes(read(NO_HEAD.format(between=""))) == ["EB997"]
    assert codes(read(NO_HEAD.format(between="step\n" * 20))) == []


def test_two_messages_of_watchdogs_on_one_line_are_read_as_two():
    lines = watchdog(0, 70).strip(), watchdog(1, 71).strip()
    for glue in ("", " "):
        for before in ("", " 13/620 [01:07<50:20] "):
            diagnosis = read(before + glue.join(lines) + "\n")
            assert codes(diagnosis) == ["EB974"]
            assert diagnosis.ranks == (0, 1)


NO_GPU = "RuntimeError: No CUDA GPUs are available\n"


def test_a_place_is_the_line_of_the_file(tmp_path: Path):
    (found,) = folder(tmp_path, a="fine\n" * 41 + NO_GPU).incidents
    assert found.place.where == f"{tmp_path}/a.log:42"


def test_the_answer_says_how_many_logs_were_read_as_those_of_one_job(tmp_path: Path):
    assert "of one job" not in as_text(folder(tmp_path, a=NO_GPU))
    end = "2 logs were read as those of one job; for several jobs, name the logs of one"
    assert as_text(folder(tmp_path, b="fine\n")).endswith(end)


def test_an_endless_line_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logs, "BLOCK", 1000)
    bar = b"".join(b"%d/9999 it/s\r" % number for number in range(5000))
    diagnosis = read(bar + b"CUDA out of memory. Tried to allocate 2.00 GiB\r" + bar)
    assert codes(diagnosis) == ["EB900"]
    assert diagnosis.incidents[0].place.where == "<stdin>:1"


def test_the_first_exception_is_the_cause_and_the_others_wait_for_it(tmp_path: Path):
    timeout = (
        "[rank{0}]:[E302 10:30:30.1 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600011 milliseconds\n"
    )
    agent = (
        "W0302 10:30:31.0 9 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 41 closing signal SIGTERM\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n  rank      : 3 (local_rank: 3)\n"
        "srun: error: cn-1: task 0: Exited with exit code 1\n"
    )
    found = folder(
        tmp_path, **{f"rank{rank}": timeout.format(rank) for rank in (0, 1, 2)}, slurm=agent,
        rank3='step 8\nTraceback (most recent call last):\n  File "/w/t.py", line 3, in f\nValueError: no voxel\n',
    ).incidents  # fmt: skip
    assert (found[0].failure.code, found[0].place.where) == ("EB997", f"{tmp_path}/rank3.log:4")
    assert found[0].details == ["ValueError: no voxel"]
    assert {one.failure.code for one in found[1:]} == {"EB977", "EB993", "EB994", "EB998"}
    assert {one.role for one in found[1:]} == {Role.CONSEQUENCE}


def test_the_rank_that_the_launcher_blames_comes_before_the_other_exceptions(tmp_path: Path):
    head = "Traceback (most recent call last):\n  File x\n"
    blamed = "Root Cause (first observed failure):\n  rank      : 5 (local_rank: 1)\n"
    logs = {"rank_0": f"{head}KeyError: 'image'\n", "rank_5": f"{head}IndexError: 12\n", "agent": blamed}
    (found, *_) = folder(tmp_path, **logs).incidents
    assert (found.failure.code, found.ranks, found.details[0]) == ("EB997", {0, 5}, "IndexError: 12")


def test_a_killed_worker_beside_the_killer_is_a_matter_of_memory():
    diagnosis = read(
        "[rank1]: RuntimeError: DataLoader worker (pid 227190) is killed by signal: Killed.\n"
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7719012.0. Some of the step tasks have been OOM Killed.\n"
    )
    assert [(one.failure.code, one.role) for one in diagnosis.incidents] == [
        ("EB950", Role.CAUSE),
        ("EB951", Role.CONSEQUENCE),
    ]


def test_errors_after_the_time_limit_are_its_consequences():
    diagnosis = read(
        "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-03-02T04:00:12 DUE TO TIME LIMIT ***\n"
        "[rank0]: Traceback (most recent call last):\n[rank0]:   File x\n[rank0]: RuntimeError: terminated\n"
    )
    assert codes(diagnosis)[0] == "EB990"
    assert diagnosis.incidents[1].role is Role.CONSEQUENCE


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("Traceback (most recent call last):\n  File x\nOddError: once\n" + "step\n" * 2000, []),
        ("step\n" * 2000 + "Traceback (most recent call last):\n  File x\nOddError: for good\n", ["EB997"]),
    ],
)
def test_an_exception_is_reported_if_it_ends_the_log(text: str, known: list[str]):
    assert codes(read(text)) == known


CANCELLED = "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-03-02T04:00:12 ***\n"


@pytest.mark.parametrize(
    ("text", "order"),
    [
        (CANCELLED, ["EB991"]),
        ("Traceback (most recent call last):\n  File x\nKeyError: 1\n" + CANCELLED, ["EB997", "EB991"]),
        (CANCELLED + "Traceback (most recent call last):\n  File x\nKeyError: 1\n", ["EB991", "EB997"]),
        (CANCELLED + '  File "/x/torch/utils/file_baton.py", line 42, in wait\n', ["EB967", "EB991"]),
        ("srun: error: n1: task 3: Exited with exit code 1\n" + CANCELLED, ["EB998", "EB991"]),
        (CANCELLED + "srun: error: n1: task 3: Exited with exit code 1\n", ["EB991", "EB998"]),
    ],
)
def test_an_end_from_outside_follows_what_came_before_it_and_causes_what_came_after(
    text: str, order: list[str]
):
    assert codes(read(text)) == order


def test_a_failure_that_the_program_got_over_is_not_reported():
    line = "WARNING: CUDA out of memory. Tried to allocate 2.00 GiB; the batch is skipped\n"
    assert codes(read(line + "step\n" * 2000)) == []
    assert codes(read(line + "step\n" * 2000 + "srun: error: n: task 5: Exited with exit code 1\n")) == [
        "EB900",
        "EB998",
    ]


def raised(error: str, label: str = "") -> str:
    head = f"{label}Traceback (most recent call last):\n"
    return f'{head}{label}  File "/w/t.py", line 3, in f\n{label}    g()\n{label}{error}\n'


HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"
CAUSING = "\nThe above exception was the direct cause of the following exception:\n\n"
NO_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
FIRST, SECOND = "KeyError: 'a'", "OSError: no b"


@pytest.mark.parametrize(
    ("text", "first", "others"),
    [
        (raised(FIRST) + HANDLING + raised(SECOND), SECOND, []),
        (raised(FIRST) + CAUSING + raised(SECOND), FIRST, []),
        (raised(FIRST) + CAUSING + raised(SECOND) + HANDLING + raised("ValueError: c"), "ValueError: c", []),
        (raised(FIRST) + "step 1\n" + raised(SECOND), SECOND, []),
        (raised(FIRST) + "step 1\n" + raised("ConnectionResetError: [Errno 104]"), FIRST, []),
        (raised(FIRST) + HANDLING + raised(NO_MEMORY), "EB900", []),
        (raised(NO_MEMORY) + HANDLING + raised(SECOND), "EB900", []),
        (raised(NO_MEMORY) + CAUSING + raised(SECOND), "EB900", []),
        (raised(FIRST) + "step 1\n" + raised(NO_MEMORY), "EB900", []),
        (raised(NO_MEMORY) + "step 1\n" + raised(SECOND), SECOND, ["EB900"]),
        (raised(FIRST) + "Exception ignored in: <function A.__del__ at 0x1>\n" + raised(SECOND), FIRST, []),
        (raised(FIRST) + "Error in atexit._run_exitfuncs:\n" + raised(SECOND), FIRST, []),
        (raised(FIRST) + "--- Logging error ---\n" + raised(SECOND), FIRST, []),
        ("Exception in thread Thread-1 (f):\n" + raised(FIRST) + "step 1\n" + raised(SECOND), SECOND, []),
        ("Exception ignored in: <f>\n" + "step\n" * 50 + raised(FIRST) + "step 1\n" + raised(SECOND), SECOND, []),
        (raised(FIRST, "[rank1]: ") + "[rank1]: step 1\n" + raised(SECOND, "[rank1]: "), SECOND, []),
        (raised(FIRST, "[rank0]: ") + raised(SECOND, "[rank1]: "), FIRST, []),
        (raised(FIRST) + raised(SECOND) + "srun: error: n1: task 3: Exited with exit code 1\n", FIRST, ["EB998"]),
    ],
)  # fmt: skip
def test_of_several_exceptions_in_a_process_the_one_that_ended_it_decides(
    text: str, first: str, others: list[str]
):
    found = read(text).incidents
    assert first in (found[0].failure.code, *found[0].details[:1])
    assert [one.failure.code for one in found[1:]] == others


def test_what_only_echoes_another_end_is_not_the_first_exception():
    head = "[rank{}]: Traceback (most recent call last):\n[rank{}]:   File x\n"
    diagnosis = read(
        head.format(0, 0)
        + "[rank0]: ConnectionResetError: [Errno 104] Connection reset by peer\n"
        + head.format(1, 1)
        + "[rank1]: KeyError: 'mask'\n"
    )
    assert diagnosis.incidents[0].details[0] == "KeyError: 'mask'"
    assert diagnosis.incidents[0].place.rank == 1


def test_a_log_in_which_every_line_is_looked_at_is_still_read_quickly():
    lines = b"".join(b"[rank%d]: MeanSquaredError: 0.%d timeouts 0\n" % (n % 8, n) for n in range(100_000))
    started = time.process_time()
    assert codes(read(lines)) == []
    assert time.process_time() - started < 10


def test_the_abort_of_a_watchdog_is_no_crash_of_its_own():
    diagnosis = read(
        watchdog(0, 7)
        + "\nFatal Python error: Aborted\n  exitcode  : -6 (pid: 91)\n  traceback : Signal 6 (SIGABRT) received by PID 91\n"
    )
    assert codes(diagnosis) == ["EB973", "EB993"]


BUS = (
    "Signal 7 (SIGBUS) received by PID 91\n",
    "E0211 10:12:13.1 3100 torch/distributed/elastic/multiprocessing/api.py:1001] failed (exitcode: -7) local_rank: 1 (pid: 91) of binary: python\n",
    "  rank      : 1 (local_rank: 1)\n  exitcode  : -7 (pid: 91)  (SIGBUS)\n  traceback : Signal 7 (SIGBUS) received by PID 91\n",
    'Fatal Python error: Bus error\n\nThread 0x7f (most recent call first):\n  File "/w/t.py", line 3 in f\n',
    "srun: error: cn-3: task 4: Bus error (core dumped)\n",
)


@pytest.mark.parametrize("text", BUS)
def test_a_bus_error_is_a_matter_of_shared_memory_and_of_nothing_else(text: str):
    found = read(text).incidents
    assert found[0].failure.code == "EB952"
    assert {one.failure.code for one in found[1:]} <= {"EB993", "EB998"}
    assert {one.role for one in found[1:]} <= {Role.CONSEQUENCE}
    assert "--shm-size" in found[0].failure.repair
    assert "faulthandler" not in found[0].failure.repair


def test_ninja_is_no_cuda_compiler():
    diagnosis = read("RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)\n")
    assert codes(diagnosis) == ["EB988"]
    assert diagnosis.incidents[0].details == ["program Ninja"]


def test_an_exception_comes_before_the_abort_that_it_ends_in():
    text = "terminate called without an active exception\n  exitcode  : -6 (pid: 91)\n"
    assert codes(read(text)) == ["EB898", "EB993"]
    raised = "Traceback (most recent call last):\n  File x\nKeyError: 'mask'\n"
    assert codes(read(raised + text)) == ["EB997", "EB898", "EB993"]


def test_of_the_jobs_of_a_folder_the_newest_is_read_without_scripts(tmp_path: Path):
    for number, line in enumerate(("RuntimeError: CUDA error: out of memory", "fine")):
        log = tmp_path / f"cpu-{number}.log"
        log.write_text(f"{line}\n")
        os.utime(log, (number, number))
        (tmp_path / f"cpu-{number}.sh").write_text("echo\n")
        (tmp_path / f"cpu-{number}").mkdir()
        (tmp_path / f"cpu-{number}/rank-0.log").write_text(f"{line}\n")
    diagnosis = diagnose([str(tmp_path)], io.BytesIO())
    assert (diagnosis.logs, diagnosis.incidents) == (2, ())
    assert diagnose([str(tmp_path / "cpu-0.log")], io.BytesIO()).incidents


# Our own words, where they are said, and what they are known as. The literal keeps catalogue and code together.
OWN = [
    ("EB899", "runtime/lib/envbuilder_extensions/__init__.py", "was compiled from something else",
     "envbuilder: the image's extension `corr` was compiled from something else: corr.cu differs\nhint: `envbuilder lock a100 && envbuilder build a100` …"),
    ("EB904", "runtime/lib/envbuilder_extensions/__init__.py", "holds code for",
     "envbuilder: the extension `corr` holds code for sm_80, which NVIDIA H100 (sm_90) cannot run\nhint: name this GPU under `gpus`"),
    ("EB962", "runtime/lib/envbuilder_extensions/compiling.py", "could not be compiled or loaded here",
     "envbuilder: `corr` could not be compiled or loaded here:\n  corr.cu(3): error: expected a `;`"),
    ("EB966", "runtime/lib/envbuilder_extensions/compiling.py", "no GPU is visible, and nothing says for which to compile",
     "envbuilder: `corr` could not be compiled here: no GPU is visible, and nothing says for which to compile"),
    ("EB975", "runtime/start/envbuilder_smoke/ranks.py", "ranks made different numbers of steps",
     "envbuilder_smoke.StepMismatchError: ranks made different numbers of steps: rank 1 made 9; the others made 10"),
    ("EB942", "run/launch/parts/preflight.sh", "where the ranks are to meet",
     "launch: cn-1: port 29500 is in use on cn-1, where the ranks are to meet"),
    ("EB990", "run/launch/parts/slurm.sh", "s away: sending TERM to every rank",
     "launch: cn-1: the time limit of the job is 120 s away: sending TERM to every rank"),
    ("EB925", "run/launch/parts/preflight.sh", "GPUs are wanted, and", "launch: cn-1: 4 GPUs are wanted, and 2 are here"),
    ("EB920", "run/launch/parts/preflight.sh", "is too old: this CUDA needs",
     "launch: cn-1: driver 525.60.13 is too old: this CUDA needs 580.65.06"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "path", "words", "text"), OWN, ids=[one[0] for one in OWN])
def test_what_envbuilder_itself_says_in_a_log_is_known(code: str, path: str, words: str, text: str):
    assert words in (Path(cli.__file__).parent / path).read_text()
    assert words in text
    assert codes(read(text)) == [code]


def test_an_edited_extension_is_not_an_exception_of_the_program():
    words = "the image's extension `corr` was compiled from something else: corr.cu differs"
    hint = (
        "hint: `envbuilder lock a100 && envbuilder build a100` where the recipe is makes an image that fits\n"
    )
    raised = (
        f"Traceback (most recent call last):\n  File x\nenvbuilder_extensions.ExtensionError: {words}\n{hint}"
    )
    (found,) = read(f"envbuilder: {words}\n{hint}{raised}").incidents
    assert (found.failure.code, found.details) == ("EB899", ["extension corr"])
    assert codes(read(f"envbuilder: {words}; compiling what is here\n")) == []


def test_a_second_gpu_that_an_extension_does_not_fit_only_explains():
    line = (
        "envbuilder: the extension `corr` holds code for sm_80, which T400 (sm_75) cannot run; on that GPU its kernels will fail "
        "with `no kernel image is available`\n"
    )
    assert codes(read(line)) == []
    error = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
    assert codes(read(line + error)) == ["EB904"]


def test_xids_say_what_they_mean():
    (found,) = read("[1.0] NVRM: Xid (PCI:0000:c1:00): 79, pid=1, GPU has fallen off the bus.").incidents
    assert found.details[0].startswith("Xid 79 on PCI:0000:c1:00: the GPU has fallen off the PCIe bus; drain")


WATCHDOG = (
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:523] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, "
    "OpType={op}, NumelIn={size}, NumelOut={size}, Timeout(ms)=600000) ran for 600900 milliseconds before timing out."
)
COUNTS = (
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Exception (either an error or timeout) "
    "detected by watchdog at work: {seq}, last enqueued NCCL work: {last}, last completed NCCL work: {done}."
)

DUMPING = (
    "[rank1]:[E302 10:20:30.1 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 1] Received a dump signal due to a "
    "collective timeout from rank 0 and we will try our best. Last enqueued NCCL work: 101, last completed NCCL work: 99."
)


def ranks_of(*lines: str, world: int = 0) -> Ranks:
    ranks = Ranks()
    ranks.add_world(world)
    for number, line in enumerate(lines):
        ranks.add_line(line, None, f"log:{number + 1}")
    return ranks


def watchdog(rank: int, seq: int, op: str = "ALLREDUCE", size: int = 64) -> str:
    return WATCHDOG.format(rank=rank, seq=seq, op=op, size=size)


@pytest.mark.parametrize(
    ("lines", "world", "verdict", "ranks", "words"),
    [
        ([watchdog(0, 100), watchdog(1, 100), watchdog(2, 99)], 0, CollectiveVerdict.BEHIND, (2,),
         "ranks 0-1 waited for collective 100 (ALLREDUCE of 64), which rank 2 never launched"),
        # What was launched ahead is no lag.
        ([watchdog(0, 808), COUNTS.format(rank=0, seq=808, last=811, done=807),
          watchdog(1, 808), COUNTS.format(rank=1, seq=808, last=809, done=807)], 0, CollectiveVerdict.STALLED, (0, 1), ""),
        # A rank that was only told to dump had launched it as well.
        ([COUNTS.format(rank=0, seq=100, last=101, done=99),
          DUMPING],
         0, CollectiveVerdict.STALLED, (0, 1), ""),
        ([watchdog(0, 7), watchdog(1, 7), watchdog(2, 7, "BROADCAST")], 0, CollectiveVerdict.MISMATCH, (2,), ""),
        ([watchdog(0, 7), watchdog(1, 7, size=65), watchdog(2, 7)], 0, CollectiveVerdict.MISMATCH, (1,), ""),
        ([watchdog(0, 7, "SCATTER"), watchdog(1, 7, "SCATTER", size=65)], 0, CollectiveVerdict.STALLED, (0, 1), ""),
        ([watchdog(0, 7), watchdog(1, 7), watchdog(3, 7)], 4, CollectiveVerdict.SILENT, (2,), ""),
        ([watchdog(0, 7, "SEND"), watchdog(1, 7, "RECV"), watchdog(2, 9)], 0, CollectiveVerdict.TIMEOUT, (2,), ""),
        # A group of calls is compared by its number only.
        ([watchdog(0, 7, "COALESCED"), watchdog(1, 7, "ALLREDUCE")], 0, CollectiveVerdict.STALLED, (0, 1), ""),
        # Where most logs are missing, nobody is blamed.
        ([watchdog(0, 7), watchdog(1, 7)], 8, CollectiveVerdict.TIMEOUT, (0, 1), "ranks 2-7 of 8 say nothing"),
        ([watchdog(4, 7)], 0, CollectiveVerdict.TIMEOUT, (4,), ""),
    ],
)  # fmt: skip
def test_the_ranks_are_compared(
    lines: list[str], world: int, verdict: CollectiveVerdict, ranks: tuple[int, ...], words: str
):
    (stall,) = ranks_of(*lines, world=world).stalls()
    assert (stall.verdict, stall.ranks) == (verdict, ranks)
    assert words in stall.message


def test_a_rank_that_launched_late_was_slow():
    ranks = Ranks()
    for rank, time_ in ((0, 1000.0), (1, 1002.0), (2, 1420.0)):
        ranks.add_line(watchdog(rank, 7), None, f"log:{rank}", time_)
    (stall,) = ranks.stalls()
    assert (stall.verdict, stall.ranks) == (CollectiveVerdict.BEHIND, (2,))
    assert (
        stall.message
        == "rank 2 launched collective 7 (ALLREDUCE of 64) 420 s after the first rank: slow, not stuck"
    )


def test_groups_of_one_kind_are_judged_apart_and_named_by_the_rank_of_all():
    line = (
        "[rank{rank}]:[E302 10:00:00.1 ProcessGroupNCCL.cpp:2271] [PG ID 2 PG GUID {guid}(mesh_tp) Rank {inner}]  failure detected by "
        "watchdog at work sequence id: {seq} PG status: last enqueued work: {seq}, last completed work: {done}"
    )
    lines = [
        line.format(rank=4, guid=11, inner=0, seq=50, done=49),
        line.format(rank=5, guid=11, inner=1, seq=49, done=48),
        line.format(rank=6, guid=12, inner=0, seq=70, done=69),
        line.format(rank=7, guid=12, inner=1, seq=70, done=69),
    ]
    behind, stalled = ranks_of(*lines).stalls()
    assert (behind.verdict, behind.ranks) == (CollectiveVerdict.BEHIND, (5,))
    assert (stalled.verdict, stalled.ranks) == (CollectiveVerdict.STALLED, (6, 7))


def dump(rank: int, *works: tuple[int, str, str]) -> dict[str, object]:
    entries = [
        {
            "collective_seq_id": number,
            "profiling_name": f"nccl:{op}",
            "state": state,
            "is_p2p": False,
            "process_group": ("0", "default_pg"),
            "input_sizes": [[4, 4]],
            "frames": [
                {"name": "all_reduce", "filename": "/x/torch/distributed/c10d.py", "line": 1},
                {"name": "step", "filename": "/work/train.py", "line": 88},
            ],
        }
        for number, op, state in works
    ]
    return {
        "version": "2.9",
        "entries": entries,
        "pg_config": {"0": {"desc": "default_pg", "ranks": "[0, 1, 2]"}},
    }


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_dumps_of_the_flight_recorder_are_compared(tmp_path: Path, form: str):
    done = (1, "all_reduce", "completed")
    for rank in (0, 1, 2):
        works = (done,) if rank == 1 else (done, (2, "all_reduce", "scheduled"))
        value = dump(rank, *works)
        data = pickle.dumps(value, protocol=2) if form == "pickle" else json.dumps(value).encode()
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(data)
    diagnosis = diagnose([str(tmp_path)], io.BytesIO())
    (found,) = diagnosis.incidents
    assert (found.failure.code, found.ranks, diagnosis.logs) == ("EB974", {1}, 3)
    assert "at train.py:88" in found.details[0]


@settings(max_examples=60, deadline=None)
@given(at=st.integers(2, 2000), cut=st.binary(max_size=6), rest=st.integers(0, 40))
@example(at=566, cut=b"", rest=16)  # a length that the end of the file cuts
def test_a_damaged_dump_says_nothing_or_something_and_never_breaks(at: int, cut: bytes, rest: int):
    body = pickle.dumps(dump(0, (1, "all_reduce", "completed"), (2, "all_reduce", "started")), protocol=2)
    at %= len(body)
    ranks = Ranks()
    read_dump(io.BytesIO(body[:at] + cut + body[at + rest :]), "nccl_trace_rank_0", ranks)
    ranks.stalls()


def test_a_dump_that_would_run_something_is_refused(tmp_path: Path):
    target = tmp_path / "touched"
    body = pickle.dumps({"entries": [], "x": target}, protocol=2)  # pathlib would be imported
    ranks = Ranks()
    assert not read_dump(io.BytesIO(body), "nccl_trace_rank_0", ranks)
    assert not read_dump(
        io.BytesIO(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R."), "nccl_trace_rank_0", ranks
    )
    assert not read_dump(io.BytesIO(b"\x80\x02}"), "nccl_trace_rank_0", ranks)
    endless = b"\x80\x02}X\x07\x00\x00\x00entries]q\x01}X\x0b\x00\x00\x00input_sizesh\x01sas."  # a list that holds itself
    assert not read_dump(io.BytesIO(endless), "no rank in this name", ranks)
    assert ranks.stalls() == ()


def test_torchs_own_list_builder_is_taken():
    body = b"\x80\x02}(X\x07\x00\x00\x00entriesctorch.jit._pickle\nbuild_intlist\n](K\x01e\x85Ru."
    assert read_dump(io.BytesIO(body), "nccl_trace_rank_0", Ranks())


def test_compressed_logs_cut_ones_too_and_what_is_no_text(tmp_path: Path):
    body = gzip.compress(b"RuntimeError: CUDA out of memory. Tried to allocate 1 GiB\n" + b"x" * 99999)
    diagnosis = folder(tmp_path, packed=body[:-12], core=b"\x7fELF\0\0CUDA out of memory")
    assert (codes(diagnosis), diagnosis.skipped) == (["EB900"], (f"{tmp_path}/core.log",))


def test_what_a_folder_holds_and_may_not_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        logs.os, "access", lambda path, mode: path.name != "b.log"
    )  # root may read everything
    diagnosis = folder(tmp_path, a="fine\n", b="CUDA out of memory\n")
    assert (diagnosis.logs, diagnosis.skipped) == (1, (str(tmp_path / "b.log"),))
    assert "not open to you" in as_text(diagnosis)


def test_a_file_named_twice_is_read_once(tmp_path: Path):
    (tmp_path / "b.log").symlink_to("a.log")
    diagnosis = folder(tmp_path, a=NO_GPU)
    assert (diagnosis.logs, diagnosis.incidents[0].count) == (1, 1)


def test_a_log_that_is_not_there_is_wrong_use(tmp_path: Path):
    with pytest.raises(LogError, match="cannot read"):
        diagnose([str(tmp_path / "no.log")], io.BytesIO())


@pytest.mark.parametrize(
    ("read_part", "text", "part"),
    [
        (unlabelled, b"[rank3]: ValueError: x", b"ValueError: x"),
        (unlabelled, b" 12: [rank3]:     raise X", b"    raise X"),
        (unlabelled, b"[default0]:KeyError: 'a'", b"KeyError: 'a'"),
        (unlabelled, b"2026-01-01 10:00:00,123 RuntimeError: x", b"RuntimeError: x"),
        (unlabelled, b"gpu-a-07: OSError: x", b"OSError: x"),
        (unlabelled, b"RuntimeError: x: y", b"RuntimeError: x: y"),
        (unlabelled, b"trainer-1  | IndexError: x", b"IndexError: x"),
        (unlabelled, b"[2026-02-27T21:35:34.295539Z] fa88a9df || IndexError: x", b"IndexError: x"),
        (plain, b"\x1b[31merror\x1b[0m: it\x07 fails\r\n", b"error: it  fails"),
        (rank_of, b"[rank7]:[E1 10:00:00 x.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 7] x", 7),
        (rank_of, b"[E ProcessGroupNCCL.cpp:475] [Rank 2] Watchdog", 2),
        (rank_of, b"[PG 3 (mesh_tp) Rank 5] x", 5),
        (rank_of, b"4: hello", 4),
        (rank_of, b"[1,6]<stderr>: x", 6),
        (rank_of, b"hello", None),
        (rank_of_file, "out/rank_3.log", 3),
        (rank_of_file, "logs/attempt_0/12/stderr.log", 12),
        (rank_of_file, "/tmp/nccl_trace_rank_5", 5),
        (rank_of_file, "train.log", None),
    ],
)
def test_what_programs_add_to_a_line_is_read(read_part: Callable[..., object], text: object, part: object):
    assert read_part(text) == part


def test_times_of_all_forms_are_comparable():
    lines = [
        "2026-03-02T10:00:00.25 x",
        "[rank0]:[E302 10:00:00.500000000 a.cpp:1] x",
        "Mar  2 10:00:01 host kernel: x",
        "[2026-03-02 10:00:02,125] x",
    ]
    times = [time_of(line.encode()) or 0 for line in lines]
    assert [time - times[0] for time in times] == [0, 0.25, 0.75, 1.875]
    assert time_of(b"[E9945 10:00:00 x.cpp:1]") is None


def test_the_findings_have_the_cause_as_their_one_error():
    diagnosis = read("CUDA out of memory\nsrun: error: n: task 5: Exited with exit code 1\n")
    shown = [(one.code, str(one.severity)) for one in findings(diagnosis.incidents)]
    assert shown == [("EB900", "error"), ("EB998", "warning")]


def test_no_code_of_the_catalogue_is_used_elsewhere():
    elsewhere = {
        code
        for path in Path(cli.__file__).parent.rglob("*.py")
        for code in re.findall(r'"(EB(?:8(?:5[1-9]|6\d|9[5-9])|9\d\d))"', path.read_text())
    }
    assert not elsewhere & {failure.code for failure in CATALOGUE}


def test_load_reads_the_messages_of_the_catalogue(request: pytest.FixtureRequest):
    made = make_diagnose.load_messages_text(load_messages())
    if request.config.getoption("--update-golden"):
        LOAD_MESSAGES.write_text(made, encoding="utf-8")
    assert LOAD_MESSAGES.read_text(encoding="utf-8") == made


@pytest.mark.usefixtures("clean_environment")
def test_the_command_answers_as_text_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a.log").write_text(NO_GPU)
    assert cli.run(["diagnose", str(tmp_path / "a.log")]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"cause: the program sees no GPU [EB922]\n  {tmp_path}/a.log:1: RuntimeError")
    assert err == ""
    assert cli.run(["diagnose", "--json", str(tmp_path / "a.log")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["status"], answer["findings"][0]["code"]) == ("ok", "EB922")
    assert answer["data"]["failures"][0]["role"] == "cause"


@pytest.mark.programs
@pytest.mark.usefixtures("clean_environment")
def test_a_log_without_a_known_failure_has_an_exit_code_of_its_own(tmp_path: Path):
    (tmp_path / "a.log").write_text("step 1\nstep 2\n")
    assert cli.run(["diagnose", str(tmp_path / "a.log")]) == 10
    alone = [sys.executable, "-m", "envbuilder.diagnose", str(tmp_path / "a.log")]
    assert subprocess.run(alone, check=False, stdout=subprocess.DEVNULL).returncode == 10


XID = "[Sat Mar  7 {at} 2026] NVRM: Xid (PCI:0000:{gpu}:00): {words}\n"
FAULT = "31, pid=9, name=python, MMU Fault"
SWITCH = "109, pid=9, name=python, CTX SWITCH TIMEOUT, Info 0x4c00a"


def xid(at: str, words: str, gpu: str = "cb") -> str:
    return XID.format(at=at, gpu=gpu, words=words)


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        (xid("01:10:12", FAULT) + xid("01:10:19", SWITCH), [("EB914", "cause"), ("EB916", "consequence")]),
        (xid("01:10:12", FAULT) + xid("01:30:19", SWITCH), [("EB916", "cause"), ("EB914", "consequence")]),
        (xid("01:10:12", FAULT) + xid("01:10:19", SWITCH, "1a"), [("EB916", "cause"), ("EB914", "consequence")]),
        (xid("01:10:12", SWITCH) + xid("01:10:19", FAULT), [("EB916", "cause"), ("EB914", "consequence")]),
        (xid("01:10:12", FAULT) + xid("01:10:14", "79, GPU has fallen off the bus."), [("EB914", "cause"), ("EB910", "other")]),
        (xid("01:10:12", "45, pid=9, name=python, Ch 00000012 caused by previous Xid 31"), [("EB914", "cause"), ("EB915", "consequence")]),
    ],
)  # fmt: skip
def test_on_one_gpu_an_earlier_event_is_no_consequence_of_a_later_one(
    text: str, roles: list[tuple[str, str]]
):
    assert [(one.failure.code, one.role.value) for one in read(text).incidents] == roles


def test_a_container_started_without_gpus_alone_is_a_note():
    line = "envbuilder: this node has GPUs, but this container was started without `--nv`: torch sees none\n"
    assert [(one.failure.code, one.role) for one in read(line).incidents] == [("EB849", Role.NOTE)]
    assert (
        read(line + "Traceback (most recent call last):\nKeyError: 'x'\n").incidents[0].failure.code
        != "EB849"
    )


def test_a_remapped_row_alone_is_a_note():
    diagnosis = read(xid("01:10:12", "63, Row Remapper: New row (0x16) marked for remapping"))
    assert [(one.failure.code, one.role) for one in diagnosis.incidents] == [("EB917", Role.NOTE)]
    assert as_text(diagnosis).startswith("no known failure (1 log, 1 line)\nnote: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("CUDA out of memory", "known by: its exact words\n"),
        ("srun: error: n: task 5: Exited with exit code 1",
         "known by: words of a family of messages; sure with the output of the named task"),
        (f"{watchdog(0, 100)}\n{watchdog(1, 100)}\n{watchdog(2, 99)}\n", "known by: a comparison of the ranks"),
    ],
)  # fmt: skip
def test_each_answer_says_how_it_is_known_and_what_would_make_it_sure(text: str, words: str):
    assert words in as_text(read(text))


def test_ranks_without_a_line_are_named():
    diagnosis = read("n1:1:2 [0] NCCL INFO comm 0x55 rank 0 nranks 4 - Init COMPLETE\n[rank1]: KeyError\n")
    assert (diagnosis.world, diagnosis.ranks, diagnosis.missing) == (4, (0, 1), (2, 3))
    assert "these logs have ranks 0-1 of 4, and no lines of ranks 2-3" in as_text(diagnosis)


def test_silence_says_how_far_the_logs_got_and_what_to_collect(tmp_path: Path):
    diagnosis = folder(tmp_path, a="2026-07-01T10:00:09 step 900\n\n", b="2026-07-01T10:00:02 step 200\n")
    assert [end.where for end in diagnosis.ends] == [f"{tmp_path}/b.log:1", f"{tmp_path}/a.log:1"]
    assert len(diagnosis.collect) == 3
    assert "the last lines:" in as_text(diagnosis)


def test_an_isolated_build_takes_the_place_of_the_missing_package():
    text = "  File /tmp/pip-build-env-9x/overlay/setup.py\nModuleNotFoundError: No module named 'torch'\n"
    assert codes(read(text)) == ["EB855", "EB988"]
    assert codes(read("  File /tmp/pip-build-env-9x/overlay/setup.py\n")) == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("RuntimeError: CUDA error: no kernel im\nage is available\n", "EB904"),
        ("RuntimeError: CUDA error: no kernel\n  image is available\n", "EB904"),
        ("RuntimeError: CUDA error: no kernel im\r\nage is available\r\n", "EB904"),
        ("CUDA OUT OF MEMORY\n", "EB900"),
    ],
)
def test_a_message_is_known_in_any_case_and_over_the_end_of_a_line(text: str, code: str):
    assert codes(read(text)) == [code]
    assert codes(read("step\n" * 100_000 + text))[:1] == ([code] if text.isupper() else [])  # not pasted


def test_the_advice_about_memory_has_the_number_that_a_build_reckons_with():
    (failure,) = (one for one in CATALOGUE if one.code == "EB972")
    assert f"divided by {NVCC_MEMORY >> 30}," in failure.repair
