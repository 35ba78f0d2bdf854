"""The image under Podman, as an ordinary user: nothing but the layout that `build` writes, no engine and no root."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import Bench
from tests.support.workbench import open_folder, run

pytestmark = [
    pytest.mark.builds,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="only root can lend a user the ids that rootless Podman maps"
    ),
]

GUEST = 7001
FILES = {
    "passwd": "guest:x:{user}:{user}::{home}:/bin/bash\n",
    "group": "guest:x:{user}:\n",
    "subuid": "guest:1879048192:65536\n",
    "subgid": "guest:1879048192:65536\n",
}
# Namespaces of our own: the user is known in there alone, and what Podman leaves running ends with the script.
# crun runs nothing on a machine that has cgroups of both versions where the second has a controller, so that one is taken away.
ENTER = """
! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified
for name in passwd group subuid subgid; do mount --bind "$0/etc/$name" "/etc/$name"; done
cd /
exec setpriv --reuid guest --regid guest --init-groups \
  env --ignore-environment PATH="$PATH" HOME="$0/home" XDG_RUNTIME_DIR="$0/run" bash -euc "$@"
"""
LOOK = "import os, filelock; print(os.getuid(), filelock.__file__, os.environ['WHICH'])"
TRY = """
cd "$1"
image=$(podman pull --quiet oci:tiny.oci) # of a path Podman makes a name, and not every folder's is allowed in one
podman tag "$image" localhost/tiny
podman run --rm --network=none localhost/tiny python -c "$2"
podman run --rm --network=none --userns=keep-id localhost/tiny id --user
"""


@pytest.fixture
def guest() -> Iterator[Path]:
    """A folder with the files of a machine that has one user more, who owns `home` and `run`."""
    with open_folder() as folder:
        (folder / "etc").mkdir()
        for name, line in FILES.items():
            known = Path("/etc", name).read_text(encoding="utf-8")
            text = known + line.format(user=GUEST, home=folder / "home")
            (folder / "etc" / name).write_text(text, encoding="utf-8")
        for name in ("home", "run"):
            (folder / name).mkdir(mode=0o700)
            os.chown(folder / name, GUEST, GUEST)
        yield folder


def test_an_ordinary_user_runs_the_image_from_its_layout(bench: Bench, guest: Path):
    run(*bench.command("--offline"), env=bench.env(bench.cache(2)))
    layout = guest / "tiny.oci"
    run("cp", "-a", bench.output / "tiny.oci", layout)
    run("chmod", "-R", "a+rX", layout)
    enter = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-euc", ENTER)
    printed = run(*enter, guest, TRY, "sh", guest, LOOK).splitlines()
    assert printed == ["0 /opt/env/lib/python3.11/site-packages/filelock/__init__.py tiny", str(GUEST)]
