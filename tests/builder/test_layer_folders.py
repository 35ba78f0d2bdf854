"""The files of layers for programs of a build: mounted for one program, unpacked where that is not possible, gone after it."""

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from envbuilder.artifacts.sif import SifWriter, seal
from envbuilder.builder.artifacts import fill
from envbuilder.builder.hashed_blobs import HashedBlobs
from envbuilder.builder.sandbox.layer_folders import LayerFolder, LayerFolders, mounted
from envbuilder.core.cache import Store
from envbuilder.core.console import Console
from envbuilder.core.errors import BuildError
from envbuilder.core.process import Command, ProcessRunner
from envbuilder.layers.layer import Layer, write_layer
from envbuilder.runners.sandbox import sandbox
from tests.support.cluster import wait_until
from tests.support.damage import flip
from tests.support.sifs import write_sif
from tests.support.workbench import attempt

pytestmark = pytest.mark.programs

LARGE = os.urandom(300_000) + bytes(300_000)  # a block that does not shrink, and one that does


def make_layer(store: Store, name: str, files: dict[str, bytes]) -> Layer:
    tree = store.root / name
    for path, content in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(content)
    (tree / "usr/link").symlink_to("lib")
    return write_layer(name=name, tree=tree, folder=store.layer(name), epoch=1, threads=1)  # type: ignore[arg-type]


def open_folders(store: Store, path: str = os.environ["PATH"]) -> LayerFolders:
    return LayerFolders(store, ProcessRunner({"PATH": path}), Console(quiet=True))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def layer(store: Store) -> Layer:
    return make_layer(store, "os", {"usr/lib/large": LARGE, "usr/lib/small": b"small", "usr/bin/empty": b""})


@pytest.fixture
def sif(tmp_path: Path) -> Iterator[SifWriter]:
    with SifWriter(tmp_path / "a.sif") as sif:
        yield sif


@pytest.fixture
def folders(store: Store) -> Iterator[LayerFolders]:
    folders = open_folders(store)
    yield folders
    folders.close()
    assert list((store.root / "work").iterdir()) == []


def open_folder(folders: LayerFolders, sif: SifWriter, *layers: Layer) -> LayerFolder:
    """Put the layers into the SIF. Return the folder of the last."""
    for layer in layers:
        sif.add(layer)
    return folders.of(layers[-1], sif)


def read_in_sandbox(folder: LayerFolder, *names: str) -> str:
    paths = (f"/tmp/usr/{name}" for name in names)
    return ProcessRunner(os.environ).run(command_for(folder, "sha256sum", *paths))


def command_for(folder: LayerFolder, *argv: str) -> Command:
    options = ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    options += ["--ro-bind", folder.path("usr"), "/tmp/usr"]
    return sandbox(options, argv, why="read", env=(), mounted=mounted([folder]))


def test_a_program_reads_what_the_layer_holds_and_no_mount_is_left(
    folders: LayerFolders, store: Store, layer: Layer, sif: SifWriter
):
    """The first layer has the same large file, and the SIF has it once."""
    first = make_layer(store, "first", {"usr/lib/large": LARGE, "usr/lib/other": b"other"})
    folder = open_folder(folders, sif, first, layer)
    assert folder.file is not None, "this machine mounts no squashfs"
    digests = [line.split()[0] for line in read_in_sandbox(folder, "lib/large", "link/small").splitlines()]
    contents = {path.rpartition("/")[2]: digest for path, digest in digests_of(layer).items()}
    assert digests == [contents["large"], contents["small"]]
    assert str(folder.place) not in Path("/proc/mounts").read_text()
    assert list(folder.place.iterdir()) == []
    wait_until("squashfuse has ended", lambda: not still_running(folder.place))
    assert folders.of(layer, sif) is folder


def test_a_program_that_is_killed_leaves_no_mount_and_no_process(
    folders: LayerFolders, layer: Layer, sif: SifWriter
):
    folder = open_folder(folders, sif, layer)
    command = command_for(folder, "sleep", "60.5")
    with subprocess.Popen(command.argv, env={"PATH": os.environ["PATH"]}) as process:
        wait_until("the program runs", lambda: still_running("sleep 60.5", "--exact"))
        assert "squashfuse" in still_running(folder.place)
        process.kill()
    wait_until("squashfuse has ended", lambda: not still_running(folder.place))
    assert str(folder.place) not in Path("/proc/mounts").read_text()


def still_running(words: object, *options: str) -> str:
    """Return the command lines with these words."""
    return attempt("pgrep", "--full", "--list-full", *options, words).stdout


def digests_of(layer: Layer) -> dict[str, str]:
    rows = (line.split() for line in layer.manifest.read_text().splitlines() if line.startswith("file "))
    return {row[5]: row[6] for row in rows}


def test_without_squashfuse_the_files_are_unpacked_for_the_build(
    store: Store, layer: Layer, sif: SifWriter, tmp_path: Path
):
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bwrap", "ls"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    folders = open_folders(store, str(programs))
    folder = folders.of(layer, sif)  # which does not have it
    assert folder.file is None
    assert (folder.place / "usr/lib/large").read_bytes() == LARGE
    upper = make_layer(store, "upper", {"usr/lib/small": b"other"})
    both = folders.of_sif(tmp_path / "none.sif", [layer, upper]).place / "usr/lib"
    assert ((both / "small").read_bytes(), (both / "large").read_bytes()) == (b"other", LARGE)
    folders.close()
    assert not folder.place.exists()


def test_both_kinds_of_folders_say_the_same_of_their_paths(store: Store, layer: Layer, sif: SifWriter):
    squashed = open_folder(open_folders(store), sif, layer)
    plain = LayerFolder(place=store.root / "os")
    for name in ("usr", "usr/lib", "usr/link", "usr/lib/small", "none", "usr/none"):
        assert (squashed.is_folder(name), squashed.link(name)) == (plain.is_folder(name), plain.link(name))
        assert squashed.names(name) == (plain.names(name) if plain.is_folder(name) else [])
    for folder in (squashed, plain):
        with pytest.raises(BuildError, match="`/usr/link` of the environment is a link to `lib`"):
            folder.path("usr/link/small")


def test_a_whole_sif_is_such_a_folder_and_an_upper_layers_file_hides_a_lower_one(
    folders: LayerFolders, store: Store, layer: Layer, tmp_path: Path
):
    layers = [layer, make_layer(store, "upper", {"usr/lib/small": b"other"})]
    write_sif(layers=layers, out=tmp_path / "b.sif", epoch=1, definition="", labels={})
    both = read_in_sandbox(folders.of_sif(tmp_path / "b.sif", layers), "lib/small", "link/large")
    expected = [digests_of(layers[1])["usr/lib/small"], digests_of(layer)["usr/lib/large"]]
    assert [line.split()[0] for line in both.splitlines()] == expected


def test_a_damaged_blob_is_refused_before_a_program_reads_from_it(
    folders: LayerFolders, store: Store, layer: Layer, sif: SifWriter
):
    layer.blob.chmod(0o644)
    flip(layer.blob)
    made: Future[Layer] = Future()
    made.set_result(layer)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(folders.of, layer, sif)
        with pytest.raises(BuildError, match=r"the os layer in `.*` is damaged"):
            fill(sif, [made], HashedBlobs(store), lambda _: None)
        with pytest.raises(BuildError, match="the build ended before the os layer was in its SIF"):
            waiting.result()


def test_a_sif_is_the_same_whoever_read_from_it_in_the_making(
    folders: LayerFolders, layer: Layer, tmp_path: Path
):
    with SifWriter(tmp_path / "a.sif") as sif:
        assert read_in_sandbox(open_folder(folders, sif, layer), "lib/small")
        sif.finish(epoch=1)
    facts = write_sif(layers=[layer], out=tmp_path / "b.sif", epoch=1, definition="", labels={})
    assert seal(sif.path) == facts
