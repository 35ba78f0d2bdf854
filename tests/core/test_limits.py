"""What a process may use: trees of /proc and /sys as kernels show them in jobs, containers and on bare machines."""

import os
from pathlib import Path

import pytest

from envbuilder.core.system import usable_cores, usable_memory

GB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path):
    def make(cgroup: str, files: dict[str, object], available: int = 64 * GB) -> Path:
        proc = tmp_path / "proc"
        (proc / "self").mkdir(parents=True)
        (proc / "meminfo").write_text(f"MemTotal: 999 kB\nMemAvailable:  {available >> 10} kB\n")
        (proc / "self/cgroup").write_text(cgroup)
        for name, value in files.items():
            path = tmp_path / "sys/fs/cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
        return tmp_path

    return make


def test_a_machine_without_limits_gives_what_is_available(machine):
    root = machine("0::/user.slice\n", {"user.slice/memory.max": "max", "user.slice/memory.current": 5 * GB})
    assert usable_memory(root) == 64 * GB


def test_a_job_gets_its_limit_less_what_it_uses(machine):
    files = {"job/memory.max": 8 * GB, "job/memory.current": 3 * GB}
    assert usable_memory(machine("0::/job\n", files)) == 5 * GB


def test_the_page_cache_counts_as_free(machine):
    files = {
        "job/memory.max": 8 * GB,
        "job/memory.current": 7 * GB,
        "job/memory.stat": f"anon {GB}\ninactive_file {6 * GB}",
    }
    assert usable_memory(machine("0::/job\n", files)) == 7 * GB


def test_the_tightest_of_all_groups_counts(machine):
    files = {
        "a/memory.max": 4 * GB,
        "a/memory.current": 0,
        "a/b/memory.max": 16 * GB,
        "a/b/memory.current": 0,
    }
    assert usable_memory(machine("0::/a/b\n", files)) == 4 * GB


def test_a_container_that_sees_only_the_top_of_its_groups_finds_its_limit(machine):
    files = {"memory.max": 2 * GB, "memory.current": GB}
    assert usable_memory(machine("0::/docker/0123abcd\n", files)) == GB


def test_groups_of_version_1_are_understood(machine):
    files = {
        "memory/job/memory.limit_in_bytes": 6 * GB,
        "memory/job/memory.usage_in_bytes": 4 * GB,
        "memory/job/memory.stat": f"total_inactive_file {GB}",
        "memory/memory.limit_in_bytes": 9223372036854771712,
    }
    assert usable_memory(machine("9:memory:/job\n1:name=systemd:/x\n", files)) == 3 * GB


def test_a_group_that_is_over_its_limit_has_nothing_left(machine):
    assert usable_memory(machine("0::/j\n", {"j/memory.max": GB, "j/memory.current": 2 * GB})) == 0


@pytest.mark.parametrize(
    ("cgroup", "files", "cores"),
    [
        ("0::/j\n", {"j/cpu.max": "100000 100000"}, 1),
        ("0::/j\n", {"j/cpu.max": "50000 100000"}, 1),
        (
            "4:cpu,cpuacct:/j\n",
            {"cpu,cpuacct/j/cpu.cfs_quota_us": 100000, "cpu,cpuacct/j/cpu.cfs_period_us": 100000},
            1,
        ),
        ("0::/j\n", {"j/cpu.max": "max 100000"}, None),
        ("4:cpu:/j\n", {"cpu/j/cpu.cfs_quota_us": -1, "cpu/j/cpu.cfs_period_us": 100000}, None),
    ],
)
def test_a_quota_of_time_counts_as_cores(machine, cgroup, files, cores):
    assert usable_cores(machine(cgroup, files)) == (cores or len(os.sched_getaffinity(0)))


def test_a_system_without_any_of_these_files_has_its_memory(tmp_path):
    assert usable_memory(tmp_path) > 0
