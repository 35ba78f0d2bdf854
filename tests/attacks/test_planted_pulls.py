"""`pull` into a folder that everybody can write, where another user was first or exchanges names meanwhile."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuilder.artifacts.oci.naming import FORMS, Reference
from envbuilder.artifacts.outputs import Outputs
from envbuilder.core.cache import sha256_file
from envbuilder.core.console import Console
from envbuilder.registry.client import Client
from envbuilder.registry.push import push
from tests.support.registries import registry
from tests.support.runner import FakeRunner
from tests.support.stranger import (
    STRANGER,
    as_user,
    contents,
    exchanging,
    give,
    reachable_folder,
    shared_folder,
)
from tests.support.toys import make_pair
from tests.support.workbench import ENVBUILDER

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(os.geteuid() != 0, reason="files of another user are made by root"),
]
# Where the sticky bit is missing, the kernel does not stop anybody from following what a stranger planted.
CASES = {"root": (0, 0o777), "a user": (1001, 0o1777)}


@dataclass(frozen=True, kw_only=True)
class Place:
    """A registry with a toy, and a folder that its attacked user shares with a stranger."""

    reference: str
    toy: Outputs
    user: int
    shared: Path
    precious: Path  # a folder of the attacked user

    def pull(self, *, seconds: float = 15) -> "subprocess.CompletedProcess[str]":
        command = (ENVBUILDER, "pull", self.reference, "--output", self.shared)
        argv = as_user(self.user, *command, home=self.shared.parent / "home")
        env = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            argv, env=env, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=seconds,
        )  # fmt: skip

    @property
    def is_whole(self) -> bool:
        sif = self.shared / "toy.sif"
        return not sif.is_symlink() and sha256_file(sif) == sha256_file(self.toy.sif)


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Outputs]]:
    folder = tmp_path_factory.mktemp("pushed")
    _, toy = make_pair(folder)
    with registry(folder / "registry") as real:
        place = Reference(registry=real.host, repository="team/toy", tag="1")
        push(
            toy, place, Client({"HOME": str(folder)}, FakeRunner()),
            forms=FORMS, memory=folder / "memory", console=Console(quiet=True),
        )  # fmt: skip
        yield str(place), toy


@pytest.fixture(params=CASES.values(), ids=CASES)
def place(pushed: tuple[str, Outputs], request: pytest.FixtureRequest) -> Iterator[Place]:
    user, mode = request.param
    with reachable_folder() as folder:
        shared, precious, home = shared_folder(folder / "shared", mode), folder / "precious", folder / "home"
        for made in (precious, precious / "below", home):
            made.mkdir()
        (precious / "file").write_bytes(b"precious")
        (precious / "file").chmod(0o600)
        (precious / "below").chmod(0o750)
        for path in (precious, precious / "file", precious / "below", home):
            os.chown(path, user, user)
        yield Place(reference=pushed[0], toy=pushed[1], user=user, shared=shared, precious=precious)


def plant(place: Place, name: str, kind: str) -> None:
    """Put something of the stranger's under a name."""
    path = place.shared / name
    if kind == "hard link":
        os.link(place.precious / "file", path)
        return
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":  # with a link under every name that is written there
        path.mkdir()
        blobs = [blob.name for blob in (place.toy.image / "blobs/sha256").iterdir()]
        digest = sha256_file(place.toy.sif)
        for blob in (*blobs, digest, f"{digest}.sif", "index.json", "oci-layout"):
            (path / blob).symlink_to(place.precious / "file")
            give(path / blob)
        path.chmod(0o777)
    else:
        path.symlink_to(place.precious / {"link": "file", "link to a folder": "", "dangling": "new"}[kind])
    give(path)


KINDS = ("link", "link to a folder", "dangling", "hard link", "fifo", "folder")


PLANTS = [
    *(((".toy.pull",), kind) for kind in ("link to a folder", "fifo", "folder")),
    *((("toy.oci",), kind) for kind in ("link to a folder", "folder")),
    *((("toy.sif", "other.sif"), kind) for kind in KINDS),
]


@pytest.mark.parametrize(("names", "kind"), PLANTS)
def test_what_a_stranger_planted_is_replaced_or_refused_and_leads_nowhere(
    place: Place, names: tuple[str, ...], kind: str
):
    for name in names:
        plant(place, name, kind)
    before = contents(place.precious)
    ended = place.pull()
    assert contents(place.precious) == before
    assert "Traceback" not in ended.stderr
    if ended.returncode:
        assert ended.returncode == 2
        assert str(place.shared / names[0]) in ended.stderr
    else:
        assert place.is_whole
        assert (place.shared / "toy.sif").stat().st_uid == place.user


def test_the_refusal_of_a_planted_folder_names_its_owner(place: Place):
    plant(place, ".toy.pull", "folder")
    ended = place.pull()
    assert ended.returncode == 2
    assert f"it belongs to user {STRANGER}" in ended.stderr


@pytest.mark.parametrize("place", [(0, 0o777), (1001, 0o777)], ids=["root", "a user"], indirect=True)
@pytest.mark.parametrize("names", [(".toy.pull", ""), (".toy.", ".part")], ids=["partial", "work"])
def test_a_stranger_who_exchanges_folders_during_a_pull_leads_it_nowhere(
    place: Place, names: tuple[str, str]
):
    before = contents(place.precious)
    with exchanging(place.shared, *names, place.precious):
        for _ in range(3):
            ended = place.pull()
            assert contents(place.precious) == before
            assert "Traceback" not in ended.stderr


def test_a_sif_of_a_stranger_with_the_right_bytes_is_replaced(place: Place):
    """The stranger could change it after it was checked."""
    (place.shared / "toy.sif").write_bytes(place.toy.sif.read_bytes())
    give(place.shared / "toy.sif")
    ended = place.pull()
    if ended.returncode:  # an ordinary user cannot replace it where the sticky bit is
        assert f"it belongs to user {STRANGER}" in ended.stderr
        assert str(place.shared / "toy.sif") in ended.stderr
    else:
        assert (place.shared / "toy.sif").stat().st_uid == place.user


def test_a_pull_goes_on_where_it_was_in_an_own_folder(place: Place):
    (place.shared / ".toy.pull").mkdir(mode=0o700)
    (place.shared / ".toy.pull" / "rest").write_bytes(b"of a killed pull")
    for path in (place.shared / ".toy.pull", place.shared / ".toy.pull/rest"):
        os.chown(path, place.user, place.user)
    assert place.pull().returncode == 0
    assert place.is_whole
    assert sorted(path.name for path in place.shared.iterdir()) == ["toy.oci", "toy.sif"]
