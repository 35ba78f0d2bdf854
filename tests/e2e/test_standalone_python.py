"""A standalone Python at /opt/python: both runners lay out the same files, and extensions compile against it.

The archives of python-build-standalone are not reached from every machine. A stand-in of their form takes their place, with Debian's
Python in it.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from envbuilder.artifacts.oci.reader import read_tree
from envbuilder.lock.file import load_lock
from tests.support import two_runners
from tests.support.registries import push, registry
from tests.support.serving import served
from tests.support.standalone import COMPILE, EXTENSION, RELEASE, UNWANTED, write_from_packages
from tests.support.tiny import ROOTS, make_tiny
from tests.support.two_runners import inside, need_the_same, need_the_same_layers
from tests.support.workbench import ENVBUILDER, NO_ENGINE, ROOT, Built, build, open_folder, run

pytestmark = [pytest.mark.builds, pytest.mark.slow]

NAME = "standalone"
# Instead of a Python of the suite: what Debian's own needs, and a compiler.
WITH_COMPILER = ("libcrypt1", "libexpat1", "usr-is-merged", "gcc-12", "libc6-dev")
CODES = """
import pathlib, sysconfig
codes = list(pathlib.Path(sysconfig.get_path("stdlib")).rglob("*.pyc"))
print(len(codes) > 300, {path.read_bytes()[4:8] for path in codes})
"""


@dataclass(frozen=True)
class World:
    python: str
    recipe: Path
    composed: Built
    env: dict[str, str]  # where the archive is fetched from


@contextlib.contextmanager
def open_world(
    folder: Path, python: str, *, donor: str, pytorch: str, wheels: tuple[str, ...], roots: tuple[str, ...]
) -> Iterator[World]:
    """The packages of this Python are those of the recipe `donor`."""
    packages = load_lock(ROOT / f"recipes/{donor}.lock").debs
    archive = write_from_packages(packages, python, folder / "releases")
    recipe, _ = make_tiny(
        folder / "recipes", NAME, wheels, python=python, pytorch=pytorch, roots=roots, interpreter=archive
    )
    with served(folder / "releases") as address:
        env = {"UV_PYTHON_INSTALL_MIRROR": address}
        composed = build(str(recipe), folder / "composed", "--runner", "sandbox", env=NO_ENGINE | env)
        yield World(python, recipe, replace(composed, name=NAME), env)


@contextlib.contextmanager
def baked(world: World) -> Iterator[Built]:
    """The same environment by the other runner."""
    built = build(str(world.recipe), world.recipe.parent / "baked", "--runner", "buildkit", env=world.env)
    built = replace(built, name=NAME)
    need_the_same(world.composed, built)
    yield built
    run("docker", "image", "rm", "--force", f"envbuilder/{NAME}:latest")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Python 3.11 beside that of the suite: the os layer is that of `tiny`, which other tests build too."""
    wheels = ("filelock", "markupsafe")
    with (
        open_folder() as folder,
        open_world(folder, "3.11", donor="cpu", pytorch="2.13.0", wheels=wheels, roots=ROOTS) as world,
    ):
        yield world


@pytest.mark.release
def test_its_programs_give_the_same_layers_in_a_container(world: World, spacious: Path):
    need_the_same_layers(world.recipe, spacious)


@pytest.mark.release
def test_both_runners_lay_out_the_same_files(world: World):
    with baked(world):
        pass


def test_the_environment_uses_it(world: World):
    need_own_python(world)
    assert inside(world.composed, world.recipe, "python", "-c", "import filelock, markupsafe") == ""


def need_own_python(world: World) -> None:
    code = "import sys, sysconfig; print(sys.base_prefix, sys.prefix, sysconfig.get_config_var('prefix'), sys.version[:4])"
    printed = inside(world.composed, world.recipe, "python", "-c", code)
    minor = world.python
    assert printed.split() == ["/opt/python", "/opt/env", "/opt/python", minor.ljust(4, ".")]
    paths = {entry.path for entry in read_tree(world.composed.layout).entries}
    wanted = (f"bin/python{minor}", f"lib/python{minor}/LICENSE.txt", f"include/python{minor}/Python.h")
    assert {f"opt/python/{path}" for path in wanted} <= paths
    assert not {f"opt/python/{path.format(minor)}" for path in UNWANTED} & paths
    # The byte code is there, and is not checked against its sources.
    assert inside(world.composed, world.recipe, "python", "-c", CODES) == "True {b'\\x01\\x00\\x00\\x00'}\n"


def test_the_sbom_names_it(world: World):
    sbom = run(ENVBUILDER, "show", world.composed.sif, "--sbom")
    assert f"pkg:generic/cpython@{world.python}.0%2B{RELEASE}" in sbom


@pytest.mark.release
def test_a_python_of_another_suite_compiles_an_extension(spacious: Path):
    """`tests/builder/test_interpreter.py` compiles one for every change, and the byte code of old Pythons is compared there."""
    with (
        open_world(
            spacious, "3.9", donor="octformer", pytorch="2.8.0", wheels=("filelock",), roots=WITH_COMPILER
        ) as world,
        baked(world) as other,
    ):
        need_own_python(world)
        paths = [entry.path for entry in read_tree(world.composed.layout).entries]
        assert not [path for path in paths if path.startswith("usr/bin/python")]
        for built in (world.composed, other):
            printed = inside(
                built, world.recipe, "sh",
                "-c", f"cat >/tmp/small.c <<'C'\n{EXTENSION}\nC\npython -c '{COMPILE}'",
            )  # fmt: skip
            assert printed.split() == ["42", "gcc", "/opt/python/include/python3.9"]


@pytest.mark.release
def test_an_image_gets_one_too(spacious: Path):
    with registry(spacious / "registry") as server:
        packages = load_lock(ROOT / "recipes/cpu.lock").debs
        archive = write_from_packages(packages, "3.11", spacious)
        recipe, lock = make_tiny(spacious / "recipes")
        root = build(str(recipe), spacious / "root", "--runner", "sandbox", env=NO_ENGINE)
        root = replace(root, name="tiny")
        world = two_runners.World(recipe, replace(lock, interpreter=archive), root, root, server, {})
        push(server.host, "engine-debian", two_runners.pack(world, two_runners.SHAPES["engine-debian"]))
        path = two_runners.write_on_image(world, "engine-debian", torch="2.13.0")
        built = build(str(path), spacious / "out", env={"ENVBUILDER_FOLDERS": str(spacious / RELEASE)})
    code = "import sys, numpy; print(sys.base_prefix)"
    printed = inside(replace(built, name="engine-debian"), path, "python", "-c", code)
    assert printed == "/opt/python\n"
    run("docker", "image", "rm", "--force", "envbuilder/engine-debian:latest")
