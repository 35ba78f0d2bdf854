"""A vendored lock: everything that it names, in a folder that serves alone."""

import dataclasses
import hashlib
import shlex
import shutil
from pathlib import Path

import pytest

from envbuilder.artifacts.oci.model import parse_manifest
from envbuilder.artifacts.oci.reader import read_tree
from envbuilder.builder.vendor import FILES, vendor
from envbuilder.core.cache import Sha256, Store, sha256_file, sha256_text
from envbuilder.core.console import Console
from envbuilder.core.errors import UsageError
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.lock.model import Artifact, Lock, LockedExtension, SourceFile, lock_artifacts
from envbuilder.lock.resolve.context import ResolveContext
from envbuilder.lock.resolve.extensions import store_sources
from envbuilder.recipe.load import load
from envbuilder.recipe.model import Recipe
from envbuilder.sources.fetch import Fetcher
from envbuilder.sources.names import Sources
from tests.support import bases
from tests.support.bases import locked
from tests.support.locks import CONTENT, make_deb, make_lock, make_recipe, make_wheel, no_client
from tests.support.runner import FakeRunner

RECIPE = """\
extends: base
packages:
  - numpy
  - requirements: more.txt
"""
BASE = """\
gpus: []
base: debian/bookworm
python: "3.11"
gcc: "12"
pytorch: "2.13.0"
"""


def make_git(content: bytes) -> Artifact:
    digest = Sha256(hashlib.sha256(content).hexdigest())
    name = f"{'a' * 40}.tar"
    return Artifact(
        kind="git", name="dw", version="a" * 40, sha256=digest, size=len(content), source="git", path=name
    )


@dataclasses.dataclass(frozen=True)
class World:
    """A recipe with its lock, and a store that holds all that the lock names."""

    recipe: Recipe
    lock: Lock
    store: Store


@pytest.fixture
def world(tmp_path: Path) -> World:
    folder = tmp_path / "recipes"
    (folder / "csrc").mkdir(parents=True)
    for name, text in {
        "mine.yaml": RECIPE,
        "base.yaml": BASE,
        "more.txt": "scipy\n",
        "csrc/a.cpp": "// a\n",
    }.items():
        (folder / name).write_text(text)
    recipe = load(folder / "mine.yaml")
    source = SourceFile(path="csrc/a.cpp", sha256=sha256_file(folder / "csrc/a.cpp"), size=5)
    plain = LockedExtension(
        name="a", sources=("csrc/a.cpp",), include=(), cflags=(), cuda_cflags=(), files=(source,)
    )
    tar = b"a tar of a commit"
    from_git = dataclasses.replace(
        plain,
        name="dw",
        sources=(),
        files=(),
        git="https://code.invalid/dw",
        commit="a" * 40,
        archive=make_git(tar),
    )
    small = make_recipe(folder)
    lock = dataclasses.replace(
        make_lock(small),
        debs=(make_deb(),), wheels=(make_wheel(b"wheel"),), toolkit=(), extensions=(plain, from_git),
    )  # fmt: skip
    (folder / "mine.lock").write_text(lock_text(lock))
    store = Store(tmp_path / "cache")
    for content, artifact in ((CONTENT, lock.debs[0]), (b"wheel", lock.wheels[0]), (tar, make_git(tar))):
        (tmp_path / "file").write_bytes(content)
        store.add_artifact(artifact.sha256, tmp_path / "file")
    return World(recipe, lock, store)


def offline_means(tmp_path: Path, *folders: Path) -> ResolveContext:
    """A machine with an empty cache, no network and no git."""
    store = Store(tmp_path / "elsewhere")
    sources = Sources(debian=("http://127.0.0.1:9/",), indexes=("http://127.0.0.1:9/",), folders=folders)
    fetcher = Fetcher(store, lambda: sources, offline=True)
    return ResolveContext(
        store=store,
        runner=FakeRunner(),
        sources=lambda: sources,
        client=no_client,
        fetcher=fetcher,
        transfer=Console(quiet=True).step,
    )


def test_the_command_of_a_vendored_lock_can_be_pasted(tmp_path: Path, world: World):
    out = tmp_path / 'it\'s a "disk" $HOME'
    done = vendor(world.recipe, world.lock, out, world.store)
    recipe = str(out / "mine.yaml")
    assert shlex.split(done.command) == [
        f"ENVBUILDER_FOLDERS={out / FILES}", "envbuilder", "build", recipe, "--offline",
    ]  # fmt: skip
    assert done.command.startswith("ENVBUILDER_FOLDERS=")  # a shell takes no quoted name for a variable


def test_a_vendored_lock_needs_neither_cache_nor_network_nor_git(tmp_path: Path, world: World):
    done = vendor(world.recipe, world.lock, tmp_path / "out", world.store)
    shutil.rmtree(world.recipe.path.parent)
    carried = load(tmp_path / "out/mine.yaml")
    assert carried.digest == world.recipe.digest
    lock = load_lock(tmp_path / "out/mine.lock")
    means = offline_means(tmp_path, tmp_path / "out" / FILES)
    store_sources(carried, lock.extensions, means, offline=True)
    means.fetcher.fetch(lock_artifacts(lock))
    assert not means.fetcher.missing(lock_artifacts(lock))
    assert means.store.artifact(lock.extensions[0].files[0].sha256).read_text() == "// a\n"
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert (done.files, done.bytes) == (len(written), sum(path.stat().st_size for path in written))


def test_a_second_time_only_what_is_wrong_is_written_again(tmp_path: Path, world: World):
    vendor(world.recipe, world.lock, tmp_path / "out", world.store)
    right = tmp_path / "out" / FILES / world.lock.wheels[0].filename
    wrong = tmp_path / "out" / FILES / world.lock.debs[0].filename
    wrong.write_bytes(b"damaged")
    before = right.stat().st_mtime_ns
    vendor(world.recipe, world.lock, tmp_path / "out", world.store)
    assert wrong.read_bytes() == CONTENT
    assert right.stat().st_mtime_ns == before


def on_image(world: World, shape: bases.Shape, reference: str) -> Lock:
    """The world's lock on that image, all of which the store has."""
    packed = bases.pack(shape)
    for content in (packed.manifest, packed.config, *packed.blobs):
        path = world.store.artifact(Sha256(bases.sha256(content).removeprefix("sha256:")))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    return dataclasses.replace(world.lock, base=locked(shape, reference))


def test_an_image_is_carried_as_a_layout_that_others_can_read(tmp_path: Path, world: World):
    lock = on_image(world, bases.devel(), "site/base:1")
    done = vendor(world.recipe, lock, tmp_path / "out", world.store)
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert (done.files, done.bytes) == (len(written), sum(path.stat().st_size for path in written))
    shutil.rmtree(world.recipe.path.parent)
    means = offline_means(tmp_path, tmp_path / "out" / FILES)
    means.fetcher.fetch(lock_artifacts(lock))
    assert not means.fetcher.missing(lock_artifacts(lock))
    image = read_tree(tmp_path / "out" / FILES)
    assert "usr/local/cuda-12.4/version.json" in {entry.path for entry in image.entries}


def test_the_images_of_several_recipes_are_named_in_one_layout(tmp_path: Path, world: World):
    first = on_image(world, bases.devel(), "site/base:1")
    again = on_image(world, bases.over(bases.devel(), {"x": "y"}), "site/base:1")  # its tag was moved
    other = on_image(world, bases.debian(), "site/other:1")
    for lock in (first, other, again):
        vendor(world.recipe, lock, tmp_path / "out", world.store)
    named = parse_manifest((tmp_path / "out" / FILES / "index.json").read_bytes()).manifests
    assert [(one.digest, one.annotations[0][1]) for one in named] == [
        (lock.base.manifest.digest, lock.base.reference) for lock in (again, other) if lock.base
    ]
    (tmp_path / "out" / FILES / "index.json").write_text("damaged")
    vendor(world.recipe, first, tmp_path / "out", world.store)
    (only,) = parse_manifest((tmp_path / "out" / FILES / "index.json").read_bytes()).manifests
    assert first.base
    assert only.digest == first.base.manifest.digest


def test_two_files_of_one_name_are_refused(tmp_path: Path, world: World):
    other = dataclasses.replace(world.lock.debs[0], sha256=sha256_text("other"))
    lock = dataclasses.replace(world.lock, toolkit=(other,))
    with pytest.raises(UsageError, match="two different files"):
        vendor(world.recipe, lock, tmp_path / "out", world.store)


def test_a_link_in_the_folder_is_not_followed(world: World, tmp_path: Path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/files").symlink_to("../precious")
    with pytest.raises(NotADirectoryError, match="found a link"):
        vendor(world.recipe, world.lock, tmp_path / "out", world.store)
    assert list((tmp_path / "precious").iterdir()) == []
