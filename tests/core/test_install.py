"""The command that installs a package on this machine."""

import platform
from pathlib import Path

import pytest

from envbuilder.core import install


@pytest.mark.parametrize(
    ("release", "command"),
    [
        ({"ID": "debian"}, "apt-get install docker.io docker-buildx"),
        ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, "apt-get install docker.io docker-buildx"),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "dnf install moby-engine docker-buildx"),
        ({"ID": "opensuse-leap", "ID_LIKE": "suse opensuse"}, "zypper install docker docker-buildx"),
        ({"ID": "arch"}, "pacman -S docker docker-buildx"),
        ({"ID": "alpine"}, "apk add docker docker-cli-buildx"),
        ({}, "install docker.io docker-buildx"),
    ],
)
def test_the_command_is_of_the_machines_own_package_manager(
    release: dict[str, str], command: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    assert install.install_command("docker.io", "docker-buildx") == command


def test_the_script_of_a_checkout_is_not_named_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "debian"})
    assert "scripts/setup" in install.install_hint("bubblewrap")
    monkeypatch.setattr(install, "SETUP", tmp_path / "scripts/setup")
    assert install.install_hint("bubblewrap") == "`apt-get install bubblewrap`"
    assert install.install_hint("apptainer").startswith("Apptainer's own .deb: ")
