"""Other machines than this one: a Linux without the programs of Debian, by mounts of one process tree alone."""

import re
from pathlib import Path
from typing import Final

# What belongs to Debian, or helps ordinary users to namespaces.
_ABSENT: Final = re.compile(r"apt|bwrap|debconf|dpkg|gpg|mmdebstrap|new[gu]idmap|nsenter|perl|proot|unshare")
_EMPTY: Final = (
    "/etc/apt", "/etc/ssl/certs", "/usr/lib/apt", "/usr/share/dpkg", "/usr/share/keyrings", "/var/lib/apt", "/var/lib/dpkg",
)  # fmt: skip
_ROCKY: Final = 'NAME="Rocky Linux"\nID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="8.10"\n'


def on_rocky(folder: Path) -> tuple[str, ...]:
    """Return the beginning of a command that runs on a machine without apt, dpkg, perl and bubblewrap, which calls itself Rocky 8.

    `folder` holds what is mounted.
    """
    programs, empty, release = folder / "programs", folder / "empty", folder / "os-release"
    programs.mkdir(parents=True)
    empty.mkdir()
    release.write_text(_ROCKY, encoding="utf-8")
    for program in Path("/usr/bin").iterdir():
        if not _ABSENT.match(program.name):
            (programs / program.name).symlink_to(f"/run/bin/{program.name}")
    hidden = (word for one in _EMPTY if Path(one).is_dir() for word in ("--ro-bind", str(empty), one))
    return (
        "bwrap", "--bind", "/", "/", "--dev-bind", "/dev", "/dev", "--tmpfs", "/run",
        "--ro-bind", "/usr/bin", "/run/bin", "--ro-bind", str(programs), "/usr/bin", *hidden,
        "--ro-bind", str(release), "/usr/lib/os-release", "--",
    )  # fmt: skip


# Begins a command in a machine that refuses namespaces, for this process tree alone. Root without mounts stands for every user.
WITHOUT_NAMESPACES: Final = (
    "unshare", "--user", "--map-root-user", "sh", "-c",
    'for one in user mnt; do echo 0 >/proc/sys/user/max_${one}_namespaces; done; exec "$@"', "sh",
)  # fmt: skip
