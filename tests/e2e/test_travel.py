"""Whatever happens to a pull or a switch: the SIF's name has a whole file, and jobs that run from it go on.

tests/registry/test_transfer.py and tests/run/test_local_copy.py do the rest to a toy: cut connections, wrong bytes, full disks.
"""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuilder.artifacts import history
from envbuilder.artifacts.oci.layout import read_layout
from envbuilder.artifacts.oci.naming import FORMS
from envbuilder.artifacts.oci.reference import Reference
from envbuilder.artifacts.outputs import Outputs
from envbuilder.core.cache import Store, sha256_file
from envbuilder.core.console import Console
from envbuilder.registry.client import Client
from envbuilder.registry.pull import Pulled, pull
from envbuilder.registry.push import push
from envbuilder.sources.http import session as wire
from tests.support.registries import Fault, Proxy, Registry, faulty, registry
from tests.support.runner import FakeRunner
from tests.support.tiny import make_tiny
from tests.support.workbench import (
    ENVBUILDER,
    NO_ENGINE,
    Built,
    build,
    link_tree,
    open_folder,
    start,
)

pytestmark = pytest.mark.builds

# Compares the files of a package with the digests of its wheel, one after another, as long as it runs.
JOB = """
import base64, csv, hashlib, itertools, pathlib, time
packages = pathlib.Path("/opt/env/lib/python3.11/site-packages")
(record,) = packages.glob("numpy-*.dist-info/RECORD")
rows = [row for row in csv.reader(record.open()) if row[1] and (packages / row[0]).is_file()]
assert len(rows) > 500
print("runs", flush=True)
for name, wanted, _ in itertools.cycle(rows):
    found = hashlib.sha256((packages / name).read_bytes()).digest()
    assert base64.urlsafe_b64encode(found).rstrip(b"=").decode() == wanted.partition("=")[2], name
    time.sleep(0.05)
"""


@dataclass(frozen=True, kw_only=True)
class Edit:
    """An environment before and after an edit, in a registry too."""

    running: Path  # the SIF of before the edit, from which jobs run
    new: Outputs
    registry: Registry
    digests: tuple[str, str]
    cache: Path  # with the layers of before
    layer: str  # digest of the largest layer that is new


@dataclass(kw_only=True)
class Site:
    """A folder of SIFs from which jobs run."""

    edit: Edit
    folder: Path
    cache: Path
    proxy: Proxy
    console: Console

    @property
    def sif(self) -> Path:
        return self.folder / "tiny.sif"

    @property
    def digest(self) -> str:
        return sha256_file(self.sif)

    def begin(self) -> None:
        """Give the name to the file from before the edit, and leave nothing else. Jobs have the same file."""
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        os.link(self.edit.running, self.sif)
        shutil.copytree(self.edit.cache, self.cache)

    def pull(self, tag: str = "new", versions: int = 1, host: str = "") -> Pulled:
        return pull(
            place(host or self.proxy.host, tag), Client({"HOME": str(self.folder)}, FakeRunner()),
            outputs=Outputs(folder=self.folder, name="tiny"), forms=("sif",), key=None,
            store=Store(self.cache), versions=versions, console=self.console,
        )  # fmt: skip

    def pull_command(self, folder: Path | None = None) -> tuple[object, ...]:
        name = f"{self.proxy.host}/team/tiny:new"
        command = (ENVBUILDER, "pull", "--only", "sif", name, "--output", folder or self.folder)
        return ("env", f"ENVBUILDER_CACHE={self.cache}", *command)


def place(host: str, tag: str) -> Reference:
    return Reference(registry=host, repository="team/tiny", tag=tag)


@pytest.fixture(scope="module")
def edit(tiny: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edit]:
    with open_folder() as folder, registry(tmp_path_factory.mktemp("registry")) as real:
        recipe, _ = make_tiny(folder / "recipe", "edited")
        (folder / "new").mkdir()
        shutil.copy(tiny.sif, folder / "new/edited.sif")
        build(str(recipe), folder / "new", env=NO_ENGINE | {"ENVBUILDER_VERSIONS": "2"})
        for kind in ("sif", "oci", "json"):
            link_tree(folder / f"new/edited.{kind}", folder / f"new/tiny.{kind}")
        old, new = (Outputs(folder=output, name="tiny") for output in (tiny.output, folder / "new"))
        for tag, outputs in (("old", old), ("new", new)):
            push(
                outputs, place(real.host, tag), Client({"HOME": str(folder)}, FakeRunner()), forms=FORMS,
                memory=folder / "memory", console=Console(quiet=True),
            )  # fmt: skip
        pull(
            place(real.host, "old"), Client({"HOME": str(folder)}, FakeRunner()),
            outputs=Outputs(folder=folder / "pulled", name="tiny"), forms=("sif",), key=None,
            store=Store(folder / "cache"), console=Console(quiet=True),
        )  # fmt: skip
        layers = {layer.blob.digest: layer.blob.size for layer in read_layout(new.image).layers}
        for layer in read_layout(old.image).layers:
            layers.pop(layer.blob.digest, None)
        running = Path(shutil.copy(old.sif, folder / "running.sif"))
        yield Edit(
            running=running, new=new, registry=real, digests=(sha256_file(old.sif), sha256_file(new.sif)),
            cache=folder / "cache", layer=max(layers, key=lambda digest: layers[digest]),
        )  # fmt: skip


@pytest.fixture(scope="module")
def job_ends(edit: Edit) -> Iterator[Callable[[], list[int | None]]]:
    """Start four jobs from the SIF of before the edit; return what tells how each has ended."""
    running = [start("apptainer", "exec", edit.running, "python", "-c", JOB) for _ in range(4)]
    try:
        for job in running:
            assert job.stdout
            assert job.stdout.readline() == "runs\n", job.communicate()[1]
        yield lambda: [job.poll() for job in running]
    finally:
        for job in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.communicate()


@pytest.fixture
def site(edit: Edit, spacious: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(wire, "PAUSES", (0.0, 0.0, 0.0))
    (spacious / "sifs").mkdir()
    with faulty(edit.registry) as proxy:
        yield Site(
            edit=edit, folder=spacious / "sifs", cache=spacious / "cache", proxy=proxy,
            console=Console(quiet=True),
        )  # fmt: skip


# ------------------------------------------------------------------------------------------------------ what can happen


def an_earlier_pull_left_wrong_bytes(site: Site) -> None:
    (site.folder / ".tiny.pull").mkdir()
    for digest in (site.edit.layer, site.edit.digests[1]):
        (site.folder / ".tiny.pull" / digest).write_bytes(b"\x28\xb5\x2f\xfd wrong" * 100)
    site.pull()


def two_pulls_begin_at_once(site: Site) -> None:
    site.proxy.faults = [Fault(method="GET", path=f"blobs/sha256:{site.edit.layer}", delay=2)]
    both = [start(*site.pull_command()) for _ in range(2)]
    said = [one.communicate()[1] for one in both]
    assert sorted(one.returncode for one in both) in ([0, 0], [0, 2]), said


def killed(site: Site, sent: signal.Signals, code: int) -> None:
    """End a pull that waits for a layer."""
    site.proxy.faults = [
        Fault(method="GET", path=f"blobs/sha256:{site.edit.layer}", cut_answer=2000, hold=30)
    ]
    process = start(*site.pull_command())
    while not site.proxy.used:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    os.killpg(process.pid, sent)
    process.communicate()
    assert process.returncode == code
    assert site.digest == site.edit.digests[0]


def a_pull_is_killed(site: Site) -> None:
    killed(site, signal.SIGKILL, -signal.SIGKILL)


def a_pull_is_interrupted(site: Site) -> None:
    killed(site, signal.SIGINT, 130)


def versions_are_switched(site: Site) -> None:
    site.pull(versions=3)
    for _ in range(50):
        for version in history.versions(site.sif):
            history.switch(site.sif, version)
    history.prune(site.sif, 1)


@pytest.mark.parametrize(
    "happens",
    [an_earlier_pull_left_wrong_bytes, two_pulls_begin_at_once, a_pull_is_killed, a_pull_is_interrupted, versions_are_switched],
)  # fmt: skip
def test_the_name_has_a_whole_file_and_no_job_notices(
    site: Site, job_ends: Callable[[], list[int | None]], happens: Callable[[Site], None]
):
    site.begin()
    happens(site)
    assert site.digest in site.edit.digests
    assert [path.name for path in site.folder.iterdir() if not path.name.startswith(".")] == ["tiny.sif"]
    assert job_ends() == [None] * 4
    site.proxy.faults = []
    site.pull()
    assert site.digest == site.edit.digests[1]
    assert {path.suffix for path in site.folder.iterdir()} == {".sif"}  # the name, and versions of it


def test_a_build_keeps_the_version_from_before(edit: Edit):
    found = history.versions(edit.new.folder / "edited.sif")
    assert [(sha256_file(one.path), one.current) for one in found] == [
        (edit.digests[1], True), (edit.digests[0], False)
    ]  # fmt: skip
