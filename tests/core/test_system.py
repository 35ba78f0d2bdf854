"""What this machine says: its limits in jobs, containers and on bare machines, and how it installs a package."""

import os
import platform
from pathlib import Path

import pytest

from envbuilder.core import system
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


ROCKY = {"ID": "rocky", "ID_LIKE": "rhel centos fedora", "VERSION_ID": "9.4"}
DOCKER_REPO = "dnf config-manager --add-repo https://download.docker.com/linux/rhel/docker-ce.repo && "
BINFMT = "docker run --privileged --rm tonistiigi/binfmt --install arm64"


@pytest.mark.parametrize(
    ("release", "engine", "fuse", "emulator"),
    [
        ({"ID": "debian"}, "apt-get install docker.io docker-buildx", "apt-get install fuse3 squashfuse", "apt-get install qemu-user-static"),
        (
            {"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, "apt-get install docker.io docker-buildx",
            "apt-get install fuse3 squashfuse", "apt-get install qemu-user-static",
        ),
        (
            ROCKY, f"{DOCKER_REPO}dnf install docker-ce docker-buildx-plugin",
            "dnf install epel-release && dnf install fuse3 squashfuse", BINFMT,
        ),
        (
            {"ID": "rhel", "ID_LIKE": "fedora", "VERSION_ID": "10.1"}, f"{DOCKER_REPO}dnf install docker-ce docker-buildx-plugin",
            "dnf install https://dl.fedoraproject.org/pub/epel/epel-release-latest-10.noarch.rpm && dnf install fuse3 squashfuse",
            BINFMT,
        ),
        (
            {"ID": "ol", "ID_LIKE": "fedora", "VERSION_ID": "9.6"}, f"{DOCKER_REPO}dnf install docker-ce docker-buildx-plugin",
            "dnf install oracle-epel-release-el9 && dnf install fuse3 squashfuse", BINFMT,
        ),
        (
            {"ID": "fedora", "VERSION_ID": "43"}, "dnf install moby-engine docker-buildx", "dnf install fuse3 squashfuse",
            "dnf install qemu-user-static",
        ),
        ({"ID": "amzn", "ID_LIKE": "fedora"}, "dnf install docker", "dnf install fuse3", BINFMT),
        (
            {"ID": "opensuse-leap", "ID_LIKE": "suse opensuse"}, "zypper install docker docker-buildx",
            "zypper install fuse3 squashfuse", "zypper install qemu-linux-user",
        ),
        (
            {"ID": "arch"}, "pacman -S docker docker-buildx", "pacman -S fuse3 squashfuse",
            "pacman -S qemu-user-static qemu-user-static-binfmt",
        ),
        (
            {"ID": "alpine"}, "apk add docker docker-cli-buildx", "apk add fuse3 squashfuse", "apk add qemu-aarch64 qemu-openrc",
        ),
        ({}, "install docker.io docker-buildx", "install fuse3 squashfuse", "install qemu-user-static"),
    ],
)  # fmt: skip
def test_the_command_is_of_the_machines_own_package_manager(
    release: dict[str, str], engine: str, fuse: str, emulator: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    assert system.install_command("docker.io", "docker-buildx") == engine
    assert system.install_command("fuse3", "squashfuse") == fuse
    assert system.install_command("qemu-user-static") == emulator


@pytest.mark.parametrize(
    ("release", "program", "hint"),
    [
        (ROCKY, "apptainer", "`dnf install epel-release && dnf install apptainer`"),
        (ROCKY, "ssh", "`dnf install openssh-clients`"),
        (ROCKY, "bwrap", "`dnf install bubblewrap`"),
        ({"ID": "amzn"}, "apptainer", "Apptainer's own package: https://apptainer.org/docs/admin/latest/installation.html"),
        ({"ID": "arch"}, "docker", "`pacman -S docker`"),
    ],
)  # fmt: skip
def test_a_program_is_named_by_its_package(
    release: dict[str, str], program: str, hint: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    assert system.install_hint(program) == hint


def test_the_script_of_a_checkout_is_not_named_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "debian"})
    assert "scripts/setup" in system.install_hint("bubblewrap")
    monkeypatch.setattr(system, "SETUP", tmp_path / "scripts/setup")
    assert system.install_hint("bubblewrap") == "`apt-get install bubblewrap`"
    assert system.install_hint("apptainer").startswith("Apptainer's own package: ")
