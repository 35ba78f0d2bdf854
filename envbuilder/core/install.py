"""Name the command that installs a package on this machine, in the words of its own package manager."""

import os
import platform
from pathlib import Path
from typing import Final

# By the ID of /etc/os-release, or one that ID_LIKE names.
_MANAGERS: Final = {
    "debian": "apt-get install", "amzn": "dnf install", "rhel": "dnf install", "fedora": "dnf install",
    "suse": "zypper install", "arch": "pacman -S", "alpine": "apk add",
}  # fmt: skip
# Names that differ from Debian's, "" where no repository has the package. Sources: packages.fedoraproject.org, which lists EPEL
# too, software.opensuse.org, archlinux.org/packages, pkgs.alpinelinux.org, docs.docker.com/engine/install/rhel and
# docs.aws.amazon.com/linux/al2023/release-notes/all-packages.html, whose `docker` brings buildx.
_NAMES: Final = {
    "debian": {"apptainer": ""},
    "amzn": {
        "apptainer": "", "docker.io": "docker", "docker-buildx": "docker", "openssh-client": "openssh-clients", "qemu-user-static": "",
        "squashfuse": "",
    },
    "rhel": {
        "docker.io": "docker-ce", "docker-buildx": "docker-buildx-plugin", "openssh-client": "openssh-clients",
        "qemu-user-static": "",
    },
    "fedora": {"docker.io": "moby-engine", "openssh-client": "openssh-clients"},
    "suse": {"docker.io": "docker", "openssh-client": "openssh-clients", "qemu-user-static": "qemu-linux-user"},
    "arch": {
        "docker.io": "docker", "openssh-client": "openssh",
        "qemu-user-static": "qemu-user-static qemu-user-static-binfmt",
    },
    "alpine": {
        "docker.io": "docker", "docker-buildx": "docker-cli-buildx", "qemu-user-static": "qemu-aarch64 qemu-openrc",
    },
}  # fmt: skip
_DOCKER: Final = "dnf config-manager --add-repo https://download.docker.com/linux/rhel/docker-ce.repo"
_EPEL: Final = "dnf install {epel}"
_BINFMT: Final = "docker run --privileged --rm tonistiigi/binfmt --install arm64"  # as Docker's manual has it
# What comes before the installation: a repository that has the package, or what stands in its place.
_BEFORE: Final = {
    "amzn": {"qemu-user-static": _BINFMT},
    "rhel": {
        "docker.io": _DOCKER, "docker-buildx": _DOCKER, "apptainer": _EPEL, "squashfuse": _EPEL,
        "qemu-user-static": _BINFMT,
    },
}  # fmt: skip
# The package of EPEL's repository, by ID: docs.fedoraproject.org/en-US/epel/getting-started
_EPEL_OF: Final = {
    "rhel": "https://dl.fedoraproject.org/pub/epel/epel-release-latest-{major}.noarch.rpm",
    "ol": "oracle-epel-release-el{major}",
}
_ELSEWHERE: Final = {
    "apptainer": "Apptainer's own package: https://apptainer.org/docs/admin/latest/installation.html"
}
_PROGRAMS: Final = {"bwrap": "bubblewrap", "docker": "docker.io", "ssh": "openssh-client"}  # by package
SETUP: Final = Path(__file__).parents[2] / "scripts/setup"  # a checkout has it, an installed package does not


def install_command(*packages: str) -> str:
    """Return the command of this machine's package manager for packages by their names in Debian, "" if it has none of them."""
    own, family, release = _system()
    names, before = _NAMES.get(family, {}), _BEFORE.get(family, {})
    epel = _EPEL_OF.get(own, "epel-release").format(major=release.partition(".")[0])
    steps = [before[one].format(epel=epel) for one in packages if one in before]
    if wanted := " ".join(dict.fromkeys(filter(None, (names.get(one, one) for one in packages)))):
        steps.append(f"{_MANAGERS.get(family, 'install')} {wanted}")
    return " && ".join(dict.fromkeys(steps))


def install_hint(package: str) -> str:
    """Return how to install a package, or a program: by the package manager, and by `scripts/setup` where there is one."""
    command = install_command(_PROGRAMS.get(package, package))
    hints = [f"`{command}`" if command else _ELSEWHERE.get(package, "")]
    if os.access(SETUP, os.R_OK) and _system()[1] in ("debian", ""):
        hints.append("`scripts/setup` installs all of them on Debian 12")
    return "; ".join(filter(None, hints))


def _system() -> tuple[str, str, str]:
    """Return this system's ID, the one of `_MANAGERS` that it is or is like, and its version."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return "", "", ""
    own = release.get("ID", "")
    like = ["rhel"] if own == "ol" else release.get("ID_LIKE", "").split()  # Oracle's says fedora alone
    return own, next((one for one in (own, *like) if one in _MANAGERS), ""), release.get("VERSION_ID", "")
