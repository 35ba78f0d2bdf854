"""A pull makes the SIF of its image's layers and fetches those that this machine lacks, whatever is wrong with what it has."""

import contextlib
import json
import os
import random
import shutil
import signal
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from envbuilder.artifacts.oci.model import parse_manifest
from envbuilder.artifacts.oci.naming import FORMS, Form, Reference, sif_reference
from envbuilder.artifacts.outputs import Outputs
from envbuilder.artifacts.sif import read_sif
from envbuilder.core.cache import Store, held, sha256_file
from envbuilder.core.console import Console
from envbuilder.core.errors import AbsentError, ContentError, RegistryError, UsageError
from envbuilder.registry.client import Client
from envbuilder.registry.download import read_manifest
from envbuilder.registry.pull import Pulled, pull
from envbuilder.registry.push import Pushed, push
from envbuilder.registry.upload import put_manifest
from envbuilder.sources.http import session as wire
from tests.support.damage import flip
from tests.support.registries import Fault, Proxy, Registry, faulty, registry
from tests.support.runner import FakeRunner
from tests.support.toys import make_pair
from tests.support.workbench import ENVBUILDER, attempt, start

pytestmark = pytest.mark.programs


@dataclass(frozen=True, kw_only=True)
class World:
    """A registry with an environment before and after the edit of an extension."""

    registry: Registry
    folder: Path
    old: Outputs
    new: Outputs

    @property
    def size(self) -> int:
        return self.new.sif.stat().st_size

    def layer(self, name: str) -> Path:
        """Return the blob of a layer of the new image."""
        return self.folder / f"new/{name}-layer/layer.tar.zst"


def place(host: str, tag: str) -> Reference:
    return Reference(registry=host, repository="team/toy", tag=tag)


def send(
    world: World, tag: str, outputs: Outputs, forms: tuple[Form, ...] = FORMS, *, thin: bool = False
) -> Pushed:
    return push(
        outputs, place(world.registry.host, tag), Client({"HOME": str(world.folder)}, FakeRunner()), forms=forms,
        thin=thin, memory=world.folder / "memory", console=Console(quiet=True),
    )  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    old, new = make_pair(folder)
    with registry(folder / "registry") as real:
        made = World(registry=real, folder=folder, old=old, new=new)
        send(made, "old", old)
        send(made, "new", new)
        yield made


@pytest.fixture
def proxy(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    monkeypatch.setattr(wire, "PAUSES", (0.0, 0.0, 0.0))
    with faulty(world.registry) as proxy:
        yield proxy


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A folder of SIFs, and a cache."""

    proxy: Proxy
    folder: Path
    store: Store

    @property
    def sif(self) -> Path:
        return self.folder / "toy.sif"

    def pull(self, tag: str = "new", forms: tuple[Form, ...] = ("sif",), versions: int = 1) -> Pulled:
        return pull(
            place(self.proxy.host, tag), Client({"HOME": str(self.folder)}, FakeRunner()),
            outputs=Outputs(folder=self.folder, name="toy"), forms=forms, key=None, store=self.store,
            versions=versions, console=Console(),
        )  # fmt: skip

    def has(self, outputs: Outputs) -> bool:
        """Whether the SIF is there to the byte, and nothing hidden was left."""
        left = [path.name for path in self.folder.iterdir() if path.name.startswith(".")]
        return not left and sha256_file(self.sif) == sha256_file(outputs.sif)


@pytest.fixture
def machine(proxy: Proxy, tmp_path: Path) -> Machine:
    (tmp_path / "sifs").mkdir()
    return Machine(proxy=proxy, folder=tmp_path / "sifs", store=Store(tmp_path / "cache"))


@pytest.mark.parametrize("forms", [("sif",), FORMS], ids=["SIF", "both"])
def test_after_an_edit_only_the_new_layers_travel(world: World, machine: Machine, forms: tuple[Form, ...]):
    first = machine.pull("old", forms)
    assert 0.9 * world.size < first.bytes < 1.1 * world.size
    machine.proxy.sent = 0
    done = machine.pull(forms=forms)
    assert machine.has(world.new)
    assert done.bytes < 0.15 * world.size < 0.85 * world.size < done.bytes_here
    assert machine.proxy.sent < 0.2 * world.size  # with manifests
    assert machine.pull(forms=forms).bytes == 0
    assert machine.pull("old", forms).bytes < 0.05 * world.size
    assert machine.has(world.old)


@pytest.mark.parametrize("source", ["a build", "the image"])
def test_layers_come_from_whatever_this_machine_has(world: World, machine: Machine, source: str):
    if source == "a build":
        for number, layer in enumerate((world.folder / "old").glob("*-layer")):
            shutil.copytree(layer, machine.store.layer(f"{number:064}"))
    else:
        machine.pull("old", ("image",))
        assert machine.store.layers() == ()
    assert machine.pull().bytes < 0.15 * world.size
    assert machine.has(world.new)


@pytest.mark.parametrize("before", [(), ("old",)], ids=["all", "what is new"])
def test_a_thin_push_sends_no_sif_and_pull_makes_it(world: World, machine: Machine, before: tuple[str, ...]):
    assert send(world, "thin", world.new, thin=True).bytes_sent < 0.05 * world.size
    for tag in before:
        machine.pull(tag)
    assert machine.pull("thin").bytes < (0.15 if before else 1.02) * world.size
    assert machine.has(world.new)
    assert machine.pull("thin").bytes == 0


def test_a_thin_sif_that_cannot_be_made_is_refused(world: World, machine: Machine):
    other = Outputs(folder=machine.folder.parent / "other", name="toy")
    other.folder.mkdir()
    shutil.copy(world.new.sif, other.sif)
    shutil.copytree(world.old.image, other.image)
    send(world, "wrong", other, thin=True)
    machine.pull("old")
    with pytest.raises(AbsentError, match="its layers do not make its file system") as refused:
        machine.pull("wrong")
    assert "without `--thin`" in refused.value.hint
    assert machine.has(world.old)


@pytest.mark.parametrize(("key", "value"), [("", ""), (".size", "many"), ("", "sha256:0")])
def test_a_frame_that_names_no_sif_is_refused(world: World, machine: Machine, key: str, value: str):
    send(world, "thin", world.new, thin=True)
    client = Client({"HOME": str(world.folder)}, FakeRunner())
    there = read_manifest(client, sif_reference(place(world.registry.host, "thin")))
    content = json.loads(there.content)
    content["layers"][0]["annotations"][f"io.envbuilder.sif{key}"] = value
    changed = parse_manifest(json.dumps(content).encode(), there.media_type)
    put_manifest(client, sif_reference(place(world.registry.host, "odd")), changed)
    with pytest.raises(ContentError, match="names no SIF"):
        machine.pull("odd")


def test_a_signed_sif_is_made_with_its_signature(world: World, machine: Machine):
    """Apptainer changes the header, the descriptors and what is behind the file system."""
    signed = Outputs(folder=machine.folder.parent / "signed", name="toy")
    shutil.copytree(world.new.image, signed.image)
    content = bytearray(world.new.sif.read_bytes())
    struct.pack_into("<i?I", content, 4096 + 585 * 40, 0x4005, True, 41)
    struct.pack_into("<2q", content, 4096 + 585 * 40 + 17, len(content), 900)
    signed.sif.write_bytes(content + random.Random("signature").randbytes(900))
    assert read_sif(signed.sif).signatures == (41,)
    machine.pull("old")
    for thin in (False, True):
        send(world, "signed", signed, thin=thin)
        assert machine.pull("signed").bytes < 0.15 * world.size
        assert machine.has(signed)
        machine.sif.unlink()


def needs_whole_file(
    world: World, machine: Machine, capsys: pytest.CaptureFixture[str], why: str, tag: str = "new"
) -> None:
    capsys.readouterr()
    assert machine.pull(tag).bytes >= world.size
    assert f"toy.sif: the whole file is fetched: {why}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Fault(method="GET", path="SIF", no_range=True), "sends no ranges"),
        (Fault(method="GET", path="SIF", flip=True), ""),
        (Fault(method="GET", path="SIF", flip=True, after=1), "its layers make another file"),
        (Fault(method="GET", path="LAYER", flip=True), "the registry sends other bytes"),
        (Fault(method="GET", path="LAYER", status=404), "there is no"),
    ],
)
def test_where_the_layers_do_not_make_it_the_whole_file_is_fetched(
    world: World, machine: Machine, fault: Fault, why: str, capsys: pytest.CaptureFixture[str]
):
    digests = {"SIF": sha256_file(world.new.sif), "LAYER": sha256_file(world.layer("extensions"))}
    machine.pull("old")
    machine.proxy.faults = [replace(fault, path=digests[fault.path])]
    capsys.readouterr()
    assert machine.pull().bytes >= world.size
    said = capsys.readouterr().err
    assert "toy.sif: the whole file is fetched: " in said
    assert why in said
    assert machine.has(world.new)


@pytest.mark.parametrize("image", ["none", "another program's"])
def test_a_sif_without_layers_of_ours_is_fetched_whole(
    world: World, machine: Machine, image: str, capsys: pytest.CaptureFixture[str]
):
    other = Outputs(folder=machine.folder.parent / "other", name="toy")
    other.folder.mkdir()
    shutil.copy(world.new.sif, other.sif)
    if image != "none":
        shutil.copytree(world.old.image, other.image)
    send(world, image.partition(" ")[0], other, ("sif",) if image == "none" else FORMS)
    why = "the registry has no image of it" if image == "none" else "its layers do not make its file system"
    needs_whole_file(world, machine, capsys, why, image.partition(" ")[0])
    assert machine.has(world.new)


@pytest.mark.parametrize("damage", [flip, lambda path: os.truncate(path, path.stat().st_size // 2)])
def test_a_damaged_layer_in_the_cache_is_fetched(
    world: World, machine: Machine, damage: Callable[[Path], None]
):
    machine.pull("old")
    machine.sif.unlink()
    damage(machine.store.layer(sha256_file(world.layer("python"))) / "layer.tar.zst")
    done = machine.pull()
    assert machine.has(world.new)
    assert 0.3 * world.size < done.bytes < 0.7 * world.size
    machine.sif.unlink()
    assert machine.pull().bytes < 0.05 * world.size


@pytest.mark.parametrize("content", [b"", b"no SIF at all", bytes(5_000_000)])
def test_an_old_file_that_is_no_sif_is_replaced(world: World, machine: Machine, content: bytes):
    machine.sif.write_bytes(content)
    (machine.folder / "dangling.sif").symlink_to("nowhere")
    machine.pull()
    assert machine.has(world.new)


@pytest.mark.parametrize("cut", [0, 20_000])
def test_a_cut_connection_is_asked_again(world: World, machine: Machine, cut: int):
    layer = sha256_file(world.layer("python"))
    machine.proxy.faults = [Fault(method="GET", path=layer, cut_answer=cut)] * 2
    machine.pull()
    assert machine.has(world.new)
    assert len(machine.proxy.used) == 2


def test_after_a_break_the_next_pull_goes_on(world: World, machine: Machine):
    machine.sif.write_bytes(b"old")
    layer = sha256_file(world.layer("os"))
    machine.proxy.faults = [Fault(method="GET", path=layer, cut_answer=3000)] * 60
    with pytest.raises(RegistryError, match="stopped"):
        machine.pull()
    assert machine.sif.read_bytes() == b"old"
    machine.proxy.faults, first, machine.proxy.sent = [], machine.proxy.sent, 0
    assert machine.pull().bytes_resumed > 3000
    assert machine.has(world.new)
    assert machine.proxy.sent < 1.2 * world.size - first


def test_a_second_pull_leaves_the_folder_of_the_first_alone(world: World, machine: Machine):
    folder = machine.folder / ".toy.pull"
    folder.mkdir()
    with held(folder):
        with pytest.raises(UsageError, match="another pull"):
            machine.pull()
        assert folder.is_dir()
    machine.pull()
    assert machine.has(world.new)


def pull_command(machine: Machine) -> tuple[object, ...]:
    name = f"{machine.proxy.host}/team/toy:new"
    command = (ENVBUILDER, "pull", "--only", "sif", name, "--output", machine.folder)
    return ("env", f"ENVBUILDER_CACHE={machine.store.root}", *command)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_a_pull_that_is_ended_leaves_the_old_sif(
    world: World, machine: Machine, number: signal.Signals, code: int
):
    machine.pull("old")
    layer = sha256_file(world.layer("extensions"))
    machine.proxy.faults = [Fault(method="GET", path=layer, cut_answer=2000, hold=30)]
    process = start(*pull_command(machine))
    while not machine.proxy.used:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    os.killpg(process.pid, number)
    process.communicate()
    assert process.returncode == code
    assert sha256_file(machine.sif) == sha256_file(world.old.sif)
    machine.pull()
    assert machine.has(world.new)


def test_of_two_pulls_that_begin_at_once_one_ends_well(world: World, machine: Machine):
    layer = sha256_file(world.layer("extensions"))
    machine.proxy.faults = [Fault(method="GET", path=layer, delay=2)]
    both = [start(*pull_command(machine)) for _ in range(2)]
    errors = [process.communicate()[1] for process in both]
    assert sorted(process.returncode for process in both) in ([0, 0], [0, 2]), errors
    assert machine.has(world.new)


def test_wrong_bytes_of_an_earlier_pull_are_not_believed(world: World, machine: Machine):
    machine.pull("old")
    (machine.folder / ".toy.pull").mkdir()
    for path in (world.layer("extensions"), world.new.sif):
        (machine.folder / ".toy.pull" / sha256_file(path)).write_bytes(b"\x28\xb5\x2f\xfd wrong" * 100)
    machine.pull()
    assert machine.has(world.new)


def test_jobs_that_run_from_the_old_sif_keep_it(world: World, machine: Machine):
    machine.pull("old")
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(machine.sif.open("rb")) for _ in range(4)]
        heads = [job.read(1000 * number) for number, job in enumerate(jobs)]
        machine.pull()
        read = [head + job.read() for head, job in zip(heads, jobs, strict=True)]
    assert set(read) == {world.old.sif.read_bytes()}


def pull_on_a_disk(world: World, folder: Path, size: int) -> tuple[int, str, str]:
    """Pull to a disk of so many bytes that has the old SIF; return the exit code, the sha256 of what is there then, and stderr."""
    (folder / "disk").mkdir()
    script = (
        f"mount -t tmpfs -o size={size} none {folder}/disk && cp {world.old.sif} {folder}/disk/toy.sif && "
        f"'{ENVBUILDER}' pull --only sif {world.registry.host}/team/toy:new --output {folder}/disk; code=$?; "
        f"sha256sum {folder}/disk/toy.sif; exit $code"
    )
    env = {"HOME": str(folder), "ENVBUILDER_CACHE": str(folder / "cache")}
    ended = attempt("unshare", "--mount", "--", "sh", "-c", script, env=env)
    return ended.returncode, ended.stdout.splitlines()[-1].split()[0], ended.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk")
def test_a_full_disk_leaves_the_old_sif(world: World, tmp_path: Path):
    code, digest, _ = pull_on_a_disk(world, tmp_path, int(1.5 * world.size))
    assert (code, digest) == (6, sha256_file(world.old.sif))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk")
def test_without_room_for_the_layers_the_whole_file_is_fetched(world: World, tmp_path: Path):
    code, digest, said = pull_on_a_disk(world, tmp_path, int(2.2 * world.size))
    assert (code, digest) == (0, sha256_file(world.new.sif))
    assert "toy.sif: the whole file is fetched: the pull needs" in said
