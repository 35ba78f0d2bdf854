"""The harness of `detect --measure`, with programs in the place of GPUs: they answer, fail, hang or crash."""

import os
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from envbuilder.core.errors import UsageError
from envbuilder.node.detect import stored_verdict
from envbuilder.node.nccl.measure import (
    Bench,
    Result,
    all_reduce,
    count_gpus,
    measure,
    measured_path,
    run_together,
)
from envbuilder.run.on_node import measure_in
from tests.support import nccl_in_image

nccl, kept = nccl_in_image.nccl, nccl_in_image.kept
programs = pytest.mark.programs
ENVIRONMENT = {"PATH": os.environ["PATH"]}


def bench(folder: Path, code: str, limit: float = 20.0) -> Bench:
    program = folder / "rank.py"
    program.write_text(
        f"import os, sys, time, signal\nwhat, *more = sys.argv[1:]\nrank = os.environ.get('RANK')\n{code}\n"
    )
    return Bench(sys.executable, str(program), "gloo", limit, 0.5)


@programs
def test_a_node_where_all_works_passes(tmp_path: Path):
    told: list[str] = []
    place = bench(tmp_path, "print('noise'); print('ok' if what == 'pair' else 'ok 7.0 GB/s')")
    assert measure(place, 3, ENVIRONMENT, told.append) == (
        True, True, "3 pairs of GPUs: ok; all-reduce with P2P: ok 7.0 GB/s; all-reduce without P2P: ok 7.0 GB/s",
    )  # fmt: skip
    assert len(told) == 5
    assert [line[:13] for line in told[:3]] == ["GPU0 and GPU1", "GPU0 and GPU2", "GPU1 and GPU2"]
    assert "all-reduce over 3 GPUs with P2P: ok 7.0 GB/s" in told


@programs
def test_a_rank_that_hangs_with_p2p_is_killed_and_named(tmp_path: Path):
    marks = tmp_path / "pids"
    code = (
        f"open({str(marks)!r}, 'a').write(str(os.getpid()) + '\\n')\n"
        "if what == 'reduce' and rank == '1' and 'NCCL_P2P_DISABLE' not in os.environ: time.sleep(600)\nprint('ok')"
    )
    begun = time.monotonic()
    passed, without, detail = measure(
        bench(tmp_path, code, limit=1), 2, ENVIRONMENT | {"NCCL_P2P_DISABLE": "0"}, lambda line: None
    )
    assert time.monotonic() - begun < 30
    assert (passed, without) == (False, True)
    assert "all-reduce with P2P: hangs: process 1 of 2 did not end within 1 s" in detail
    for pid in marks.read_text().split():
        assert not Path(f"/proc/{pid}").exists()


@programs
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("if rank == '1': sys.exit('a wrong sum')\ntime.sleep(60)", "process 1 ended with 1: a wrong sum"),
        (
            "if rank == '0': os.kill(os.getpid(), 11)\ntime.sleep(60)",
            "process 0 was ended by SIGSEGV: no word",
        ),
    ],
)
def test_the_first_failure_ends_the_others(tmp_path: Path, code: str, said: str):
    begun = time.monotonic()
    assert all_reduce(bench(tmp_path, code), 2, ENVIRONMENT) == Result(ok=False, answer=said)
    assert time.monotonic() - begun < 15


@programs
def test_a_pair_that_copies_something_else_is_a_failure_though_the_all_reduce_passes(tmp_path: Path):
    code = "if more == ['0', '2']: sys.exit('GPU0 wrote 1 numbers and GPU2 read others')\nprint('ok')"
    passed, without, detail = measure(bench(tmp_path, code), 3, ENVIRONMENT, lambda line: None)
    assert (passed, without) == (False, True)
    assert detail.startswith("GPU0 and GPU2: process 0 ended with 1: GPU0 wrote 1 numbers")


@programs
def test_the_ranks_meet_on_this_node(tmp_path: Path):
    code = "print(os.environ['WORLD_SIZE'], os.environ['LOCAL_RANK'], os.environ['MASTER_ADDR'])"
    assert all_reduce(bench(tmp_path, code), 2, ENVIRONMENT) == Result(ok=True, answer="2 0 127.0.0.1")


@programs
def test_torch_counts_the_gpus(tmp_path: Path):
    assert count_gpus(bench(tmp_path, "print(4)"), ENVIRONMENT) == 4
    assert count_gpus(bench(tmp_path, "print('no')"), ENVIRONMENT) == 0
    assert count_gpus(bench(tmp_path, "sys.exit(1)"), ENVIRONMENT) == 0


@programs
def test_a_process_may_leave_others_behind_and_they_are_killed_too(tmp_path: Path):
    mark = tmp_path / "pid"
    code = f"pid = os.fork()\nif pid: open({str(mark)!r}, 'w').write(str(pid))\ntime.sleep(600)"
    assert not run_together(bench(tmp_path, code, limit=1), [("pair", "0", "1")], [ENVIRONMENT]).ok
    time.sleep(0.2)
    state = Path(f"/proc/{mark.read_text()}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_verdict_is_kept_where_a_start_looks_for_it(tmp_path: Path, kept: ModuleType):
    versions = {"driver": "1.2", "kernel": "6", "nccl": "2.21.5", "gpus": ["T4"] * 2}
    verdict = {"passed": True, "passed_without": True, "detail": "d", **versions}
    environment = {"HOME": str(tmp_path)}
    place = kept.save_measured(environment, verdict)
    assert Path(place) == measured_path(environment, os.uname().nodename)
    assert kept.read_measured(environment) == verdict
    found = stored_verdict(environment)
    assert found is not None
    assert (found.passed, found.gpus, found.detail) == (True, ("T4", "T4"), "d")
    assert stored_verdict({}) is None
    assert kept.save_measured({"HOME": "/proc"}, verdict) == ""


def test_a_test_needs_an_environment_to_run_in(tmp_path: Path):
    with pytest.raises(UsageError, match="inside an environment"):
        measure_in("", tmp_path, tmp_path)
    with pytest.raises(UsageError, match="there is no SIF"):
        measure_in("cpu", tmp_path, tmp_path)
