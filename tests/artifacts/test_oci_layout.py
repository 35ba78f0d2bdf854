import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuilder.artifacts.oci.layout import (
    Layout,
    full_reference,
    layout_size,
    move_layout,
    read_archive,
    read_layout,
    write_layout,
)
from envbuilder.artifacts.oci.model import ImageConfig
from envbuilder.core.errors import UsageError, VerifyError
from envbuilder.layers.layer import Layer, write_layer

EPOCH = 1_700_000_000
CONFIG = ImageConfig(
    env=(("PATH", "/opt/env/bin:/bin"), ("X", "a=b")),
    cmd=("/bin/bash",),
    entrypoint=("/opt/envbuilder/start",),
    workdir="/work",
    labels=(("title", "ü"),),
    user="1000",
)


@pytest.fixture
def layers(tmp_path: Path) -> list[Layer]:
    made = []
    for name in ("os", "python"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(name * 1000)
        made.append(
            write_layer(
                name=name, tree=tmp_path / name, folder=tmp_path / f"{name}-layer", epoch=EPOCH, threads=1
            )
        )
    return made


def write(layers: list[Layer], folder: Path) -> Layout:
    return write_layout(
        layers=layers,
        config=CONFIG,
        epoch=EPOCH,
        platform="linux/amd64",
        folder=folder,
        name="envbuilder/a:latest",
    )


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_same_layers_give_the_same_layout(tmp_path: Path, layers: list[Layer]) -> None:
    one, two = (write(layers, tmp_path / name) for name in ("one", "two"))
    assert one.manifest == two.manifest
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_layout_is_read_as_it_was_written(tmp_path: Path, layers: list[Layer]) -> None:
    layout = write(layers, tmp_path / "image")
    assert read_layout(tmp_path / "image") == layout
    assert layout.config.image == CONFIG
    assert layout.config.platform == "linux/amd64"
    assert layout.reference.endswith("/envbuilder/a:latest")
    assert [(x.blob.digest, x.blob.size, x.diff_id) for x in layout.layers] == [
        (x.digest, x.size, x.diff_id) for x in layers
    ]


def test_every_blob_is_named_after_its_bytes(tmp_path: Path, layers: list[Layer]) -> None:
    write(layers, tmp_path / "image")
    blobs = list((tmp_path / "image" / "blobs" / "sha256").iterdir())
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in blobs] == [path.name for path in blobs]
    assert len(blobs) == 4


def test_layers_take_no_second_copy(tmp_path: Path, layers: list[Layer]) -> None:
    write(layers, tmp_path / "image")
    blob = tmp_path / "image" / "blobs" / "sha256" / layers[0].digest
    assert blob.samefile(layers[0].blob)


def test_a_layout_takes_the_place_of_an_earlier_one(tmp_path: Path, layers: list[Layer]) -> None:
    write(layers[:1], tmp_path / "out" / "image")
    write(layers, tmp_path / "out" / "image")
    assert len(read_layout(tmp_path / "out" / "image").layers) == 2
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["image"]


def test_what_a_killed_run_left_is_swept_by_the_next(tmp_path: Path, layers: list[Layer]) -> None:
    (tmp_path / "out" / ".image.x1.part" / "new").mkdir(parents=True)
    write(layers, tmp_path / "out" / "image")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["image"]


def test_a_moved_layout_is_read_at_its_new_place(tmp_path: Path, layers: list[Layer]) -> None:
    moved = move_layout(write(layers, tmp_path / "image"), tmp_path / "out" / "image")
    assert read_layout(tmp_path / "out" / "image") == moved
    assert not (tmp_path / "image").exists()


def test_a_folder_of_another_kind_is_left_alone(tmp_path: Path, layers: list[Layer]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("x")
    with pytest.raises(UsageError, match="is not an OCI layout"):
        write(layers, tmp_path / "mine")
    assert files(tmp_path / "mine") == {"thesis": b"x"}


def test_a_layout_is_whole_or_not_there(tmp_path: Path, layers: list[Layer]) -> None:
    write(layers[:1], tmp_path / "image")
    before = files(tmp_path / "image")
    layers[1].blob.unlink()
    with pytest.raises(FileNotFoundError):
        write(layers, tmp_path / "image")
    assert files(tmp_path / "image") == before


def _no_index(folder: Path) -> None:
    (folder / "index.json").unlink()


def _bad_json(folder: Path) -> None:
    (folder / "index.json").write_text("[" * 100_000)


def _two_images(folder: Path) -> None:
    index = json.loads((folder / "index.json").read_text())
    index["manifests"] *= 2
    (folder / "index.json").write_text(json.dumps(index))


def _changed_manifest(folder: Path) -> None:
    blob = folder / "blobs" / "sha256" / read_layout(folder).manifest.digest
    blob.write_bytes(blob.read_bytes() + b" ")


def _path_as_digest(folder: Path) -> None:
    text = (folder / "index.json").read_text()
    (folder / "index.json").write_text(
        text.replace(read_layout(folder).manifest.digest, "../../../etc/passwd")
    )


@pytest.mark.parametrize("damage", [_no_index, _bad_json, _two_images, _changed_manifest, _path_as_digest])
def test_a_damaged_layout_is_refused(
    tmp_path: Path, layers: list[Layer], damage: Callable[[Path], None]
) -> None:
    write(layers, tmp_path / "image")
    damage(tmp_path / "image")
    with pytest.raises(VerifyError, match="is not an OCI layout with one image"):
        read_layout(tmp_path / "image")


def test_an_archive_holds_the_layout_under_the_name_given(tmp_path: Path, layers: list[Layer]) -> None:
    layout = write(layers, tmp_path / "image")
    told = list[int]()
    archive = b"".join(read_archive(layout, name="envbuilder/b:1", advance=told.append))
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        held = {member.name: tar.extractfile(member).read() for member in tar if member.isreg()}  # type: ignore[union-attr]
    ours = files(tmp_path / "image")
    assert {name: held[name] for name in ours if name != "index.json"} == {
        k: v for k, v in ours.items() if k != "index.json"
    }
    annotations = json.loads(held["index.json"])["manifests"][0]["annotations"]
    assert annotations["io.containerd.image.name"].endswith("/envbuilder/b:1")
    assert sum(told) == layout_size(layout)


def test_an_archive_of_a_cut_blob_is_refused(tmp_path: Path, layers: list[Layer]) -> None:
    layout = write(layers, tmp_path / "image")
    layers[0].blob.chmod(0o644)
    os.truncate(layers[0].blob, 10)
    with pytest.raises(VerifyError, match="shorter than its manifest says"):
        list(read_archive(layout, name="envbuilder/a:1"))


@pytest.mark.parametrize(
    ("name", "tail"),
    [
        ("a:1", "/library/a:1"),
        ("envbuilder/a100:latest", "/envbuilder/a100:latest"),
        ("localhost:5000/a/b:1.2", "localhost:5000/a/b:1.2"),
        ("registry.test/a:x_1", "registry.test/a:x_1"),
    ],
)
def test_names_become_full_references(name: str, tail: str) -> None:
    assert full_reference(name).endswith(tail)


@pytest.mark.parametrize("name", ["", "a", "A:1", "a:", "a b:1", "a:1\n", "-a:1", "a//b:1", "a/:1", "a:1:2"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not an image name"):
        full_reference(name)
