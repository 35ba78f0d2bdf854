"""A build hashes a blob of the cache again if anybody may have written to it since it was hashed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuilder.artifacts.oci.layout import read_layout
from envbuilder.builder.hashed_blobs import HashedBlobs
from envbuilder.core.cache import Store
from envbuilder.layers.layer import Layer
from tests.support.damage import flip
from tests.support.pairs import Pair, make_layers, make_pair, write_os_tar

pytestmark = pytest.mark.programs


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    layers = make_layers(tmp_path / "layers", write_os_tar(tmp_path / "os.tar"))
    return make_pair(tmp_path / "out", layers)


def known(blobs: HashedBlobs, pair: Pair) -> set[str]:
    with blobs.hashed(read_layout(pair.image), pair.layers) as digests:
        assert all(path.name == digest for path, digest in digests.items())
        return {path.name for path in digests}


def looked(store: Store, pair: Pair) -> HashedBlobs:
    blobs = HashedBlobs(store)
    blobs.look(pair.layers)
    return blobs


def noted(store: Store, pair: Pair) -> None:
    blobs = looked(store, pair)
    assert known(blobs, pair) == set()
    blobs.note(pair.layers)


def test_a_blob_is_hashed_once(store: Store, pair: Pair):
    noted(store, pair)
    assert known(looked(store, pair), pair) == {layer.digest for layer in pair.layers}


def write_again(layer: Layer) -> None:
    layer.blob.write_bytes(layer.blob.read_bytes())


def replace(layer: Layer) -> None:
    copy = layer.blob.with_name("copy")
    shutil.copy2(layer.blob, copy)
    copy.replace(layer.blob)


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: flip(layer.blob),  # the times of modification and the size stay
        write_again,
        replace,
        lambda layer: (layer.folder / "link").hardlink_to(layer.blob),
        lambda layer: layer.blob.unlink(),
    ],
)
def test_a_blob_with_another_state_is_hashed_again(
    store: Store, pair: Pair, change: Callable[[Layer], object]
):
    noted(store, pair)
    change(pair.layers[0])
    blobs = HashedBlobs(store)
    blobs.look(pair.layers)
    assert set(blobs._right) == {pair.layers[1].digest}


def test_the_copy_of_a_blob_in_an_image_is_hashed(store: Store, pair: Pair):
    noted(store, pair)
    path = read_layout(pair.image).path(read_layout(pair.image).layers[0].blob)
    blobs = looked(store, pair)
    path.rename(path.with_name("link"))
    shutil.copy2(pair.layers[0].blob, path)
    assert known(blobs, pair) == {pair.layers[1].digest}


def test_a_blob_that_is_written_after_it_was_hashed_is_not_noted(store: Store, pair: Pair):
    blobs = looked(store, pair)
    known(blobs, pair)
    write_again(pair.layers[0])
    blobs.note(pair.layers)
    assert known(looked(store, pair), pair) == {pair.layers[1].digest}


def test_links_that_a_build_makes_and_removes_are_no_write(store: Store, pair: Pair):
    noted(store, pair)
    blobs = looked(store, pair)
    link = pair.layers[0].folder / "link"
    link.hardlink_to(pair.layers[0].blob)
    assert known(blobs, pair) == {layer.digest for layer in pair.layers}
    link.unlink()
    blobs.note(pair.layers)
    assert known(looked(store, pair), pair) == {layer.digest for layer in pair.layers}


def test_nothing_is_noted_of_a_verification_that_failed(store: Store, pair: Pair):
    blobs = looked(store, pair)
    with pytest.raises(KeyError), blobs.hashed(read_layout(pair.image), pair.layers):
        raise KeyError
    blobs.note(pair.layers)
    assert known(looked(store, pair), pair) == set()
