"""Name the command that installs a package on this machine, in the words of its own package manager."""

import os
import platform
from pathlib import Path
from typing import Final

# By the ID of /etc/os-release, or one that ID_LIKE names.
_MANAGERS: Final = {
    "debian": "apt-get install", "fedora": "dnf install", "rhel": "dnf install", "suse": "zypper install",
    "arch": "pacman -S", "alpine": "apk add",
}  # fmt: skip
# Names that differ from Debian's.
_NAMES: Final = {
    "dnf install": {"docker.io": "moby-engine"},
    "zypper install": {"docker.io": "docker"},
    "pacman -S": {"docker.io": "docker"},
    "apk add": {"docker.io": "docker", "docker-buildx": "docker-cli-buildx"},
}
SETUP: Final = Path(__file__).parents[2] / "scripts/setup"  # a checkout has it, an installed package does not


def install_command(*packages: str) -> str:
    """Return the command of this machine's package manager for packages by their names in Debian."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    families = (release.get("ID", ""), *release.get("ID_LIKE", "").split())
    manager = next((_MANAGERS[one] for one in families if one in _MANAGERS), "")
    names = " ".join(_NAMES.get(manager, {}).get(one, one) for one in packages)
    return f"{manager} {names}" if manager else f"install {names}"


def install_hint(package: str) -> str:
    """Return how to install a package here: by the package manager, and by `scripts/setup` where there is one."""
    command = f"`{install_command(package)}`"
    if package == "apptainer" and "apt-get" in command:
        command = "Apptainer's own .deb: https://apptainer.org/docs/admin/latest/installation.html"
    return "; ".join(
        (
            command,
            *(("`scripts/setup` installs all of them on Debian 12",) if os.access(SETUP, os.R_OK) else ()),
        )
    )
