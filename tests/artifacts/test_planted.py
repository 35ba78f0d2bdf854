"""What another user planted beside artifacts is neither believed nor run, and leads nowhere."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuilder.artifacts import history
from envbuilder.artifacts.oci.layout import read_layout, write_layout
from envbuilder.artifacts.oci.model import ImageConfig
from envbuilder.artifacts.outputs import Outputs, Record, drop_rejected, load_record, read_record, rejected
from envbuilder.artifacts.sif import check_place
from envbuilder.core.cache import sha256_file
from envbuilder.core.errors import UsageError, VerifyError
from tests.support.stranger import contents, give, reachable_folder, shared_folder
from tests.support.toys import make_pair

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files of another user are made by root")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outputs, Outputs]:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def shared() -> Iterator[Path]:
    with reachable_folder() as folder:
        yield shared_folder(folder / "shared", 0o777)


@pytest.fixture
def precious(shared: Path) -> Path:
    folder = shared.parent / "precious"
    (folder / "below").mkdir(parents=True)
    (folder / "below").chmod(0o750)
    (folder / "file").write_text("precious")
    return folder


def recorded(outputs: Outputs) -> Record:
    record = Record(
        key="k", manifest=read_layout(outputs.image).manifest.digest, sif=sha256_file(outputs.sif),
        sif_size=outputs.sif.stat().st_size, content_size=1,
    )  # fmt: skip
    return record.of_files(outputs)


@pytest.mark.parametrize("planted", ["json", "sif", "oci"])
def test_a_build_believes_no_record_sif_or_image_of_another_user(tmp_path: Path, planted: str):
    _, toy = make_pair(tmp_path)
    recorded(toy).save(toy.record)
    assert load_record(toy) is not None
    give(toy.folder / f"toy.{planted}")
    assert load_record(toy) is None


def test_a_fifo_under_the_name_of_a_record_a_sif_or_an_index_blocks_nobody(shared: Path):
    toy = Outputs(folder=shared, name="toy")
    (shared / "toy.oci").mkdir()
    for path in (toy.record, toy.sif, toy.image / "index.json"):
        os.mkfifo(path)
    assert read_record(toy) is None
    with pytest.raises(UsageError, match="is not a SIF"):
        check_place(toy.sif)
    with pytest.raises(VerifyError, match="is not an OCI layout"):
        read_layout(toy.image)


def test_an_image_whose_index_is_a_link_is_not_read(shared: Path, pair: tuple[Outputs, Outputs]):
    (shared / "toy.oci").mkdir()
    (shared / "toy.oci/index.json").symlink_to(pair[0].image / "index.json")
    (shared / "toy.oci/blobs").symlink_to(pair[0].image / "blobs")
    with pytest.raises(VerifyError, match="link"):
        read_layout(shared / "toy.oci")


def test_a_link_in_place_of_rejected_artifacts_keeps_its_target(shared: Path, precious: Path):
    toy = Outputs(folder=shared, name="toy")
    rejected(toy.image).symlink_to(precious)
    rejected(toy.sif).symlink_to(precious / "file")
    before = contents(precious)
    drop_rejected(toy)
    assert contents(precious) == before
    assert list(shared.iterdir()) == []


def test_a_version_that_another_user_planted_is_not_listed(shared: Path):
    sif = shared / "toy.sif"
    for path in (sif, shared / f".toy.{'a' * 16}.sif", shared / f".toy.{'b' * 16}.sif"):
        path.write_text(path.name)
    give(shared / f".toy.{'b' * 16}.sif")
    assert [version.version for version in history.versions(sif)] == ["a" * 16]
    give(sif)  # then that user's versions are those of the SIF, which is trusted as it is
    assert {version.version for version in history.versions(sif)} == {"a" * 16, "b" * 16}


def test_no_version_is_made_of_a_link_or_a_foreign_file(shared: Path, precious: Path):
    (shared / "toy.sif").symlink_to(precious / "file")
    before = (precious / "file").stat().st_nlink
    for number in range(2):
        (shared / "new").write_bytes(b"%d" % number)
        history.install(shared / "new", shared / "toy.sif", sha256_file(shared / "new"), 3)
        if number == 0:
            assert len(history.versions(shared / "toy.sif")) == 1
    assert (precious / "file").stat().st_nlink == before
    assert (precious / "file").read_text() == "precious"


def test_a_layout_replaces_one_of_another_user_and_follows_none_of_its_links(shared: Path, precious: Path):
    image = shared / "toy.oci"
    image.mkdir()
    (image / "oci-layout").touch()
    (image / "blobs").symlink_to(precious)
    give(image, image / "oci-layout", image / "blobs")
    before = contents(precious)
    write_layout(
        layers=(), config=ImageConfig(cmd=("sh",)), epoch=0, platform="linux/amd64", folder=image,
        name="envbuilder/toy:latest",
    )  # fmt: skip
    assert contents(precious) == before
    assert image.stat().st_uid == 0
