"""Other machines than this one: a Linux without the programs of Debian, by mounts of one process tree alone."""

import re
import sys
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
    hidden = (
        word for folder in _EMPTY if Path(folder).is_dir() for word in ("--ro-bind", str(empty), folder)
    )
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

_CONTAINER: Final = """
import ctypes, os, sys
from pathlib import Path
waited, closed = os.pipe()
if not (helper := os.fork()):
    os.close(closed)
    os.read(waited, 1)
    for kind in ("uid", "gid"):
        Path(f"/proc/{os.getppid()}/{kind}_map").write_text("0 0 65536")
    os._exit(0)
assert ctypes.CDLL(None).unshare(0x10000000) == 0
os.close(closed)
assert os.waitpid(helper, 0)[1] == 0
for kind in ("user", "mnt"):
    Path(f"/proc/sys/user/max_{kind}_namespaces").write_text("0")
os.execvp(sys.argv[1], sys.argv[1:])
"""
# The same for root of a container, which has the ids of other users.
CONTAINER_WITHOUT_NAMESPACES: Final = (sys.executable, "-I", "-c", _CONTAINER)
