"""One name in a registry has an image and a SIF for each platform, and each machine pulls its own."""

import platform
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuilder.artifacts.oci.layout import read_layout
from envbuilder.artifacts.oci.naming import FORMS, Form, Reference, sif_reference
from envbuilder.artifacts.outputs import Outputs
from envbuilder.core.cache import Store, sha256_file
from envbuilder.core.console import Console
from envbuilder.core.errors import AbsentError
from envbuilder.core.processor import AARCH64, X86_64, Processor
from envbuilder.registry.client import Client
from envbuilder.registry.download import read_manifest
from envbuilder.registry.pull import Pulled, pull
from envbuilder.registry.push import Pushed, push
from tests.support.registries import Registry, registry
from tests.support.runner import FakeRunner
from tests.support.toys import make_toy

pytestmark = pytest.mark.programs
BOTH = [X86_64, AARCH64]


@dataclass(frozen=True, kw_only=True)
class World:
    registry: Registry
    made: dict[Processor, Outputs]
    edited: Outputs  # that for Arm, with another layer on top

    def place(self, tag: str) -> Reference:
        return Reference(registry=self.registry.host, repository="team/toy", tag=tag)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, dice = tmp_path_factory.mktemp("world"), random.Random(20)
    layers = {
        one: {"os": dice.randbytes(200_000).hex().encode(), "top": dice.randbytes(10_000).hex().encode()}
        for one in BOTH
    }
    made = {one: make_toy(folder / one.debian, layers[one], one.platform) for one in BOTH}
    edited = make_toy(
        folder / "edited", layers[AARCH64] | {"top": dice.randbytes(10_000).hex().encode()}, AARCH64.platform
    )
    with registry(folder / "registry") as real:
        yield World(registry=real, made=made, edited=edited)


def client(home: Path) -> Client:
    return Client({"HOME": str(home)}, FakeRunner())


def send(world: World, tag: str, outputs: Outputs, home: Path) -> Pushed:
    return push(
        outputs, world.place(tag), client(home), forms=FORMS, memory=home / "memory", console=Console(quiet=True)
    )  # fmt: skip


def bring(
    world: World, tag: str, folder: Path, platform: str = "", forms: tuple[Form, ...] = FORMS
) -> Pulled:
    return pull(
        world.place(tag), client(folder), outputs=Outputs(folder=folder, name="toy"), forms=forms, key=None,
        store=Store(folder / "cache"), platform=platform, console=Console(quiet=True),
    )  # fmt: skip


def is_same(folder: Path, outputs: Outputs) -> bool:
    digests = {read_layout(place).manifest.digest for place in (folder / "toy.oci", outputs.image)}
    return len(digests) == 1 and sha256_file(folder / "toy.sif") == sha256_file(outputs.sif)


def digests(world: World, tag: str, home: Path) -> dict[str, str]:
    index = read_manifest(client(home), world.place(tag))
    return {one.platform: one.digest for one in index.manifests}


def digest(outputs: Outputs) -> str:
    return read_layout(outputs.image).manifest.digest


def test_two_pushes_make_one_name_for_both_and_each_is_pulled(world: World, tmp_path: Path):
    tag = "both"
    first = send(world, tag, world.made[X86_64], tmp_path)
    assert not read_manifest(client(tmp_path), world.place(tag)).is_index
    second = send(world, tag, world.made[AARCH64], tmp_path)
    assert (first.platforms, second.platforms) == (("linux/amd64",), ("linux/amd64", "linux/arm64"))
    assert "for linux/amd64 and linux/arm64" in second.text()
    assert digests(world, tag, tmp_path) == {one.platform: digest(world.made[one]) for one in BOTH}
    for one in BOTH:
        bring(world, tag, tmp_path / one.debian, one.platform)
        assert is_same(tmp_path / one.debian, world.made[one])
        assert bring(world, tag, tmp_path / one.debian, one.platform).bytes == 0


def test_a_push_of_one_platform_keeps_the_image_of_the_other(world: World, tmp_path: Path):
    for outputs in (*world.made.values(), world.edited, world.edited):
        done = send(world, "again", outputs, tmp_path)
    assert done.platforms == ("linux/amd64", "linux/arm64")
    assert digests(world, "again", tmp_path) == {
        "linux/amd64": digest(world.made[X86_64]), "linux/arm64": digest(world.edited)
    }  # fmt: skip


@pytest.mark.parametrize("forms", [FORMS, ("sif",)], ids=["both", "sif"])
@pytest.mark.parametrize("one", BOTH, ids=lambda one: one.debian)
def test_each_machine_pulls_its_own(world: World, tmp_path: Path, monkeypatch, one: Processor, forms):
    for outputs in world.made.values():
        send(world, "own", outputs, tmp_path)
    monkeypatch.setattr(platform, "machine", lambda: one.machine)
    bring(world, "own", tmp_path, forms=forms)
    assert sha256_file(tmp_path / "toy.sif") == sha256_file(world.made[one].sif)


def test_after_an_edit_only_the_new_layers_of_that_platform_travel(world: World, tmp_path: Path):
    for outputs in world.made.values():
        send(world, "delta", outputs, tmp_path)
    bring(world, "delta", tmp_path, AARCH64.platform, ("sif",))
    send(world, "delta", world.edited, tmp_path)
    done = bring(world, "delta", tmp_path, AARCH64.platform, ("sif",))
    assert sha256_file(tmp_path / "toy.sif") == sha256_file(world.edited.sif)
    assert done.bytes < 0.2 * world.edited.sif.stat().st_size


def test_a_name_for_one_platform_gives_that_unless_another_is_asked_for(world: World, tmp_path: Path):
    send(world, "arm", world.made[AARCH64], tmp_path)
    bring(world, "arm", tmp_path)
    assert is_same(tmp_path, world.made[AARCH64])
    bring(world, "arm", tmp_path / "sif", forms=("sif",))
    assert sha256_file(tmp_path / "sif/toy.sif") == sha256_file(world.made[AARCH64].sif)
    with pytest.raises(AbsentError, match="no image for linux/amd64"):
        bring(world, "arm", tmp_path / "other", X86_64.platform)
    with pytest.raises(AbsentError, match="neither a SIF nor an image"):
        bring(world, "arm", tmp_path / "other", X86_64.platform, ("sif",))


def test_the_sif_of_each_platform_has_its_own_tag(world: World):
    place = world.place("1")
    assert [sif_reference(place, one).tag for one in BOTH] == ["1-sif", "1-arm64-sif"]
