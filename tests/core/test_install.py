"""The command that installs a package on this machine."""

import platform
from pathlib import Path

import pytest

from envbuilder.core import system

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
