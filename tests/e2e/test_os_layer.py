"""The os layer with packages that share paths, and with scripts that do what they should not."""

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from envbuilder.builder.job import BuildJob
from envbuilder.builder.sandbox import distribution
from envbuilder.core.cache import Store, sha256_file
from envbuilder.core.console import Console
from envbuilder.core.errors import CommandError, SpaceError
from envbuilder.core.process import ProcessRunner
from envbuilder.core.system import Limits
from envbuilder.layers.layer import load_layer, read_files, read_manifest
from envbuilder.lock.model import Artifact
from envbuilder.plan.make import make_plan
from envbuilder.runners.sandbox import ROOT, sandbox
from tests.support.debs import header, write_package
from tests.support.tiny import make_tiny
from tests.support.workbench import CACHE, as_nobody, attempt, run

if TYPE_CHECKING:
    from envbuilder.layers.entry import Entry

pytestmark = pytest.mark.builds
DIVERSION = "dpkg-divert --package bb-diverts --rename --divert /etc/victim.distrib --add /etc/victim"
# It stays, looks for the host, gives files away, and wants what a build does not have.
SCRIPT = """\
#!/bin/sh
sleep 600 &
test ! -e '{host}' || exit 1
test "$(cat /proc/net/dev | wc -l)" -le 3 || exit 2
test -z "$(env | grep -v -e ^DPKG -e ^PATH= -e ^HOME=/root -e ^TERM= -e ^DEB -e ^LANG -e ^LC_ALL -e ^SOURCE -e ^PWD= -e ^SHLVL \
-e ^_= -e ^OLDPWD -e ^PYTHONHASHSEED=)" || exit 3
mknod /etc/disk b 8 0 && exit 4
mount -t tmpfs none /mnt 2>/dev/null && touch /mnt/lost
chown nobody:crontab /etc/mine && chmod 2755 /etc/mine || exit 5
python3.11 -c 'import os; os.setxattr("/etc/able", "security.capability", bytes(20))' 2>/dev/null && exit 6
chmod u+s /etc/able
chown 7:7 /tmp/gone && rm /tmp/gone
kill -9 $(cat /proc/1/status | sed -n 's/^NSpid:.* //p') 2>/dev/null
exit 0
"""


def make_os(
    folder: Path, *debs: Path, work: Path | None = None, look: Callable[[Path], None] = lambda _: None
) -> Path:
    """Make the os layer of `tiny` with these packages, too. `look` gets the folder where it was made before that is removed."""
    store, epoch = Store(CACHE), 1_700_000_000
    recipe, _ = make_tiny(folder / "recipe")
    _, plan, _ = make_plan(str(recipe), recipe.parent, store)
    more = []
    for deb in debs:
        digest = sha256_file(deb)
        store.add_artifact(digest, deb)
        more.append(
            Artifact(
                kind="deb", name=deb.stem, version="1", sha256=digest, size=deb.stat().st_size,
                source="debian", path=deb.name,
            )
        )  # fmt: skip
    job = BuildJob(
        plan=dataclasses.replace(plan, epoch=epoch), store=store, runner=ProcessRunner(os.environ),
        console=Console(quiet=True), limits=Limits(threads=2, memory=8 << 30, root=os.geteuid() == 0),
    )  # fmt: skip
    out = folder / "layer"
    with (Store(work) if work else store).workspace() as made:
        step = dataclasses.replace(plan.os, artifacts=(*plan.os.artifacts, *more))
        distribution.write_layer(step, job, made, out)
        look(made)
    return out


def no_other_user_starts_it(work: Path) -> None:
    """A program with set-id bits that a package brings belongs to whoever builds, root too."""
    evil = work / "root/usr/bin/evil"
    assert evil.stat().st_mode & 0o7777 == 0o4755
    assert attempt(*as_nobody("test", "-e", work)).returncode == 0
    assert attempt(*as_nobody("test", "-e", evil)).returncode == 1


def test_paths_of_two_packages_and_hostile_scripts(spacious: Path):
    about = "Package: {}\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: x\n{}"
    parts = spacious / "debs"
    parts.mkdir()
    packages = (
        write_package(parts / "aa-first.deb", [("./etc/both", "first", 0o644)], about=about.format("aa-first", "")),
        write_package(
            parts / "bb-second.deb", [("./etc/both", "second", 0o644)], about=about.format("bb-second", "Replaces: aa-first\n")
        ),
        write_package(
            parts / "bb-diverts.deb", [("./etc/victim", "mine", 0o644)],
            about=about.format("bb-diverts", ""), control={"preinst": f"#!/bin/sh\nset -e\n{DIVERSION}\n"},
        ),
        write_package(parts / "aa-victim.deb", [("./etc/victim", "original", 0o644)], about=about.format("aa-victim", "")),
        write_package(
            parts / "hostile.deb",
            [("./etc/mine", "x", 0o644), ("./etc/able", "x", 0o755), ("./tmp/gone", "x", 0o644), ("./usr/bin/evil", "x", 0o4755),
             header("./etc/his", uid=5, gid=6)],
            about=about.format("hostile", "Pre-Depends: python3.11-minimal\n"),
            control={
                "preinst": "#!/bin/sh\ngroupadd -g 101 crontab 2>/dev/null || echo crontab:x:101: >>/etc/group\n",
                "postinst": SCRIPT.format(host=spacious),
            },
        ),
    )  # fmt: skip
    opened = spacious / "opened"  # a cache that its owner has opened to all
    Store(opened)
    for folder in (opened, opened / "work"):
        folder.chmod(0o755)
    before = os.umask(0o002)  # it decides no mode
    try:
        layer = load_layer(make_os(spacious, *packages, work=opened, look=no_other_user_starts_it))
    finally:
        os.umask(before)
    assert layer
    entries: dict[str, Entry] = {entry.path: entry for entry in read_manifest(layer)}
    texts = read_files(layer, ("etc/both", "etc/victim", "etc/victim.distrib"))
    assert texts == {"etc/both": b"second", "etc/victim": b"mine", "etc/victim.distrib": b"original"}
    owner = {
        name: (entries[name].uid, entries[name].gid, oct(entries[name].mode))
        for name in ("etc/mine", "etc/his")
    }
    # Of the package's own list, and nothing that its scripts gave away.
    assert owner == {"etc/mine": (0, 0, "0o755"), "etc/his": (5, 6, "0o644")}
    assert {entries[name].mode for name in ("etc", "etc/fstab", "var/lib/dpkg/status", "usr/local/bin")} == {
        0o755,
        0o644,
    }
    assert (entries["etc/able"].xattrs, entries["etc/able"].mode) == ((), 0o755)
    assert entries["usr/bin/evil"].mode == 0o4755
    assert not [path for path in entries if path.startswith(("mnt/", "tmp/", "etc/disk"))]


@pytest.mark.parametrize(
    "path",
    [
        "/run",
        *(
            pytest.param(place, marks=pytest.mark.release)
            for place in ("/etc/fstab", "/var/lib/dpkg/triggers/File", "/usr/sbin/policy-rc.d")
        ),
    ],
)
def test_a_link_that_a_script_leaves_harms_nothing_of_the_machine(spacious: Path, path: str):
    precious = spacious / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    deb = write_package(
        spacious / "links.deb",
        [],
        about="Package: links\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: x\n",
        control={
            "postinst": f"#!/bin/sh\nrm -rf {path}; ln -s {precious}{'' if path == '/run' else '/file'} {path}\n"
        },
    )
    with contextlib.suppress(CommandError):
        make_os(spacious, deb)
    assert {file.name: file.read_text() for file in precious.iterdir()} == {"file": "mine"}


def test_a_script_that_fails_is_named_with_its_last_words(spacious: Path):
    deb = write_package(
        spacious / "breaks.deb",
        [],
        about="Package: breaks\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: x\n",
        control={"postinst": "#!/bin/sh\necho these are my last words >&2\nexit 3\n"},
    )
    with pytest.raises(CommandError) as failed:
        make_os(spacious, deb)
    assert "could not install the distribution's packages" in failed.value.message
    assert "these are my last words" in failed.value.message
    assert failed.value.hint == "the log has all that the packages' scripts said"
    assert "breaks" in failed.value.message


# As a user with a browser and an editor, whose threads the kernel counts and a container does not show.
BUSY = """
import sys, threading
end = threading.Event()
threads = [threading.Thread(target=end.wait) for _ in range(4000)]
[one.start() for one in threads]
print("ready", flush=True)
sys.stdin.read()
end.set()
"""


def test_a_user_with_many_processes_elsewhere_may_build(spacious: Path):
    container = ("unshare", "--pid", "--fork", "--mount-proc")
    program, env = ("sh", "-c", "true | true && echo done"), (("PATH", "/usr/bin:/bin"),)
    command = as_nobody(*sandbox(("--ro-bind", "/", "/"), program, why="try it", env=env, user=ROOT).argv)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        tuple(map(str, as_nobody(sys.executable, "-c", BUSY))), stdin=pipe, stdout=pipe, text=True
    ) as busy:
        assert busy.stdout
        assert busy.stdout.readline() == "ready\n"
        assert run(*container, *command) == "done\n"


@pytest.fixture
def small(spacious: Path) -> Iterator[Path]:
    """A file system that has room for `tiny` and little more."""
    place = spacious / "small"
    place.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=700m,mode=0700", "none", place)
    yield place
    run("umount", place)


@pytest.mark.release
def test_a_script_that_fills_the_disk_leaves_nothing(spacious: Path, small: Path):
    """`tests/builder/test_hostile_scripts.py` fills a disk for every change. This script says that all went well."""
    deb = write_package(
        spacious / "fills.deb",
        [],
        about="Package: fills\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: x\n",
        control={"postinst": "#!/bin/sh\ncat /dev/zero >/var/fill 2>/dev/null\nexit 0\n"},
    )
    with pytest.raises(SpaceError) as failed:
        make_os(spacious, deb, work=small)
    assert "No space left on device" in failed.value.message
    assert list((small / "work").iterdir()) == []
    assert shutil.disk_usage(small).free > 690 << 20
