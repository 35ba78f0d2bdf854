"""What the benchmark makes of its samples; `bench/run --quick` shows that it runs."""

import contextlib
import json
import logging
import re
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from envbuilder.core.console import Console, log_to

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests/e2e")]

from figures import (  # noqa: E402
    Step,
    plot,
    read_steps,
    seconds,
    spread,
    table,
    targets_table,
    timeline,
    verdicts,
    waited_for,
)
from jobs import Done, Job, Sample, Target, amounts, as_data, exponent, from_data, interleaved, merged  # noqa: E402
from measure import MARK, Disk, Failed, forget, measured, run, work_folder  # noqa: E402
from rows import BUILDS, ROWS, TARGETS  # noqa: E402


def job(key: str = "version", **ways: list[float]) -> Job:
    done = [
        Done(tool=tool.replace("_", " "), samples=[Sample(wall=2 * one, cpu=one, result=100) for one in cpu])
        for tool, cpu in ways.items()
    ]
    return Job(key=key, title=f"do {key}", ways=done)


def test_each_pair_begins_with_another_way():
    assert interleaved(3, 2) == [0, 1, 2, 1, 2, 0]


@pytest.mark.parametrize(("power", "factor"), [(1.0, 3.0), (0.5, 0.01), (2.0, 7.0)])
def test_the_exponent_of_growth(power: float, factor: float):
    assert exponent({n: factor * n**power for n in (1, 4, 16)}) == pytest.approx(power)


def test_growth_is_read_from_the_ways():
    grown = Job(
        key="recipes",
        title="",
        ways=[Done(tool=f"envbuilder, n = {n}", samples=[Sample(wall=1, cpu=float(n))]) for n in (1, 4, 16)],
    )
    assert amounts(grown) == {1: 1.0, 4: 4.0, 16: 16.0}
    assert "CPU ~ n^1.00" in table([grown])


@pytest.mark.parametrize(("most", "word"), [(0.5, "met"), (0.49, "NOT MET")])
def test_a_target_in_proportion_to_a_peer(most: float, word: str):
    target = Target(job="version", what="cpu", peer="hpccm", most=most, words="start")
    measured_job = job(envbuilder=[1, 2, 9], hpccm=[3, 4, 5])
    assert verdicts([target], [measured_job]) == [(target, 0.5, word)]


def test_of_wall_time_the_least_counts():
    target = Target(job="noop", what="wall", most=0.5, words="no-op")
    assert target.figure([job("noop", envbuilder=[0.2, 5.0, 6.0])]) == pytest.approx(0.4)


@pytest.mark.parametrize("jobs", [[], [job(envbuilder=[1])], [job(hpccm=[1])]])
def test_what_was_not_done_is_no_target_that_is_met(jobs: list[Job]):
    target = Target(job="version", what="cpu", peer="hpccm", most=9, words="start")
    assert verdicts([target], jobs) == [(target, None, "not measured")]
    assert "not measured" in targets_table([target], jobs)


def test_samples_of_two_runs_are_put_together():
    first, second = job(envbuilder=[1], hpccm=[2]), job(envbuilder=[3], neurodocker=[4])
    first.ways[1] = Done(tool="hpccm", missing="failed: no network")
    (both,) = merged([first], [second])
    assert {way.tool: way.values("cpu") for way in both.ways} == {
        "envbuilder": [1, 3],
        "hpccm": [],
        "neurodocker": [4],
    }
    assert both.ways[1].missing == "failed: no network"
    assert merged([both], [job(hpccm=[7])])[0].ways[1] == Done(
        tool="hpccm", samples=job(hpccm=[7]).ways[0].samples
    )


def test_a_written_answer_is_read_as_it_was():
    jobs = [job(envbuilder=[1, 2]), job("check", envbuilder=[3])]
    assert from_data(json.loads(json.dumps(as_data(jobs)))) == jobs


def test_a_peer_that_is_ahead_and_one_that_failed_stay_in_the_table():
    shown = job(envbuilder=[2, 4], hpccm=[1, 1])
    shown.ways.append(Done(tool="buildah", missing="failed: a | b\nc"))
    lines = table([shown]).splitlines()
    assert lines[2].startswith("| do version | envbuilder | 2 | 6.0 (4.0 to 8.0) | 3.0 (2.0 to 4.0) |")
    assert "| hpccm | 2 |" in lines[3]
    assert "| 0.33 |" in lines[3]
    assert "not run: failed: a / b c" in lines[4]
    assert len({line.count("|") for line in lines}) == 1


def test_figures_for_people():
    assert [seconds(one) for one in (0.0123, 5.21, 793.4)] == ["0.012", "5.2", "793"]
    assert spread([0.5]) == "0.500"


def test_the_plot_is_a_picture_of_every_way():
    drawn = plot(
        [job(envbuilder=[0.03, 0.04], hp_ccm=[20]), job("check", envbuilder=[1])], {"date": "<today>"}
    )
    root = ET.fromstring(drawn)
    dots = [float(one.attrib["cx"]) for one in root.iter("{http://www.w3.org/2000/svg}circle")]
    assert len(dots) == 3
    assert dots[0] < dots[2] < dots[1]
    assert plot([], {}) == ""


def test_every_target_speaks_of_a_row():
    assert {target.job for target in TARGETS} <= {row.key for row in ROWS} | set(BUILDS)
    assert len({row.key for row in ROWS} | set(BUILDS)) == len(ROWS) + len(BUILDS)


@pytest.mark.programs
def test_cpu_memory_and_disk_of_a_command_and_its_children(tmp_path: Path):
    code = (
        "import os, subprocess, sys, time\n"
        "b = bytearray(os.urandom(1 << 20) * 80)\n"
        "open(sys.argv[1], 'wb').write(b)\n"
        "busy = 'import time; a = time.process_time()\\nwhile time.process_time() < a + 0.5: pass'\n"
        "subprocess.run([sys.executable, '-c', busy])\n"
    )
    with measured(Disk([tmp_path])) as cost:
        run([sys.executable, "-c", code, tmp_path / "file"], log=tmp_path / "log", env={}, cost=cost)
    assert cost.cpu >= 0.5
    assert cost.wall >= 0.5
    assert cost.memory >= 80 << 20


@pytest.mark.programs
def test_a_command_that_fails_says_its_last_lines(tmp_path: Path):
    with pytest.raises(Failed, match=r"exit code 3: .*out of luck"):
        run(["sh", "-c", "echo out of luck; exit 3"], log=tmp_path / "log", env={})


def test_of_the_work_folder_only_the_logs_stay(tmp_path: Path):
    with work_folder(tmp_path / "work", keep=False) as work:
        (work / "logs/a.log").touch()
        (work / "tree/below").mkdir(parents=True)
        (work / "default.sif").touch()
        (work / "link").symlink_to(tmp_path)
    assert sorted(one.name for one in (tmp_path / "work").iterdir()) == [MARK, "logs"]
    assert (tmp_path / "work/logs/a.log").exists()


def test_a_file_can_be_dropped_from_memory(tmp_path: Path):
    path = tmp_path / "folder/file"
    path.parent.mkdir()
    path.write_bytes(b"x" * (1 << 20))
    (path.parent / "link").symlink_to("nowhere")
    forget(tmp_path)
    assert path.stat().st_size == 1 << 20


def test_the_steps_of_a_log_are_read_and_those_that_did_not_end_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    console = Console(quiet=True)
    caplog.set_level(logging.INFO, logger="envbuilder")
    with contextlib.ExitStack() as unended, log_to(tmp_path / "log"):
        unended.enter_context(console.step("never ends"))
        with console.step("install cuda (12.4)"), console.step("inner"):
            time.sleep(0.02)
        for _ in range(2):
            with console.step("pack"):
                pass
    steps = read_steps((tmp_path / "log").read_text())
    assert [step.title for step in steps] == ["install cuda (12.4)", "inner", "pack", "pack"]
    assert 0.01 < steps[1].end - steps[1].start < 5
    assert steps[0].end <= steps[2].start


def test_a_timeline_shows_what_a_step_waited_for_and_which_steps_decide():
    steps = (
        Step(title="os", start=0, end=9), Step(title="a<b", start=0, end=4), Step(title="pack", start=4.5, end=7),
        Step(title="sif", start=9, end=12),
    )  # fmt: skip
    waits = [waited_for(step, steps) for step in steps]
    assert [one and one.title for one in waits] == [None, None, "a<b", "os"]
    drawn = ET.fromstring(timeline(steps, "x.log"))
    bars = [one for one in drawn.iter("{http://www.w3.org/2000/svg}rect") if one.get("fill") != "white"]
    dark = [one.get("fill") == bars[0].get("fill") for one in bars]
    assert dark == [True, False, False, True]
    ends = [float(one.get("x", "")) + float(one.get("width", "")) for one in bars]
    assert ends[3] == max(ends) < 960
    assert ends[0] == pytest.approx(float(bars[3].get("x", "")), abs=0.2)


@pytest.mark.programs
def test_a_wrong_row_is_refused_with_the_known_ones():
    ended = subprocess.run(
        [sys.executable, ROOT / "bench/run", "--only", "nothing"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert re.search(r"'nothing' \(choose from '?version'?, ", ended.stderr)  # quoted by some Pythons
