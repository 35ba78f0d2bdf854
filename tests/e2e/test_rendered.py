"""The rendered text, built from a base that has nothing of envbuilder: the same environment, path by path."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.artifacts.oci.reader import read_tree
from envbuilder.core.cache import save_text
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.lock.model import recipe_inputs
from envbuilder.lock.resolve.debs import resolve_debs
from envbuilder.lock.resolve.toolkit import resolve_toolkit, without_headers
from envbuilder.lock.resolve.uv_files import Question
from envbuilder.lock.resolve.uv_resolver import Uv
from envbuilder.recipe.load import load
from envbuilder.verify.compare import BUILDER_ADDS, sif_manifest
from tests.support import redist
from tests.support.conda_channel import make_conda
from tests.support.hub import make_kernels
from tests.support.kernels import make_warm
from tests.support.locks import make_task
from tests.support.registries import push, registry
from tests.support.rendered import build_definition, build_dockerfile, make_base, need_equal, vendor
from tests.support.sdists import make_sdists
from tests.support.serving import served
from tests.support.standalone import RELEASE, write_from_packages
from tests.support.tiny import make_lock, make_tiny
from tests.support.two_runners import SHAPES, World, pack, write_on_image
from tests.support.workbench import (
    ENVBUILDER,
    NO_ENGINE,
    NUMBERS,
    ROOT,
    Built,
    as_nobody,
    build,
    fetch_packages,
    open_folder,
    recipe_like,
    resolve_context,
    run,
)

pytestmark = pytest.mark.builds
SHAPED = (
    "cpu",
    "standalone",
    "sdists",
    "fetched",
    "toolkit",
    "archive",
    "apt",
    "on_image",
    "conda",
    "warm",
    "hub_kernels",
)
USER, IDS = 64001, 2100000000  # an ordinary user, and the first of what they may map


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    with make_base() as name:
        yield name


@pytest.fixture(scope="module")
def standalone() -> Iterator[Built]:
    """An environment with a stand-in of a standalone Python."""
    with open_folder() as folder:
        archive = write_from_packages(load_lock(ROOT / "recipes/cpu.lock").debs, "3.11", folder)
        recipe, _ = make_tiny(folder / "recipes", "standalone", interpreter=archive)
        env = NO_ENGINE | {"ENVBUILDER_FOLDERS": str(folder / RELEASE)}
        yield build(str(recipe), folder / "built", "--runner", "sandbox", env=env)


@pytest.fixture(scope="module")
def sdists() -> Iterator[Built]:
    """An environment with packages, a project and an archive that are built from their sources."""
    with open_folder() as folder:
        recipe = make_sdists(folder)
        env = NO_ENGINE | {"ENVBUILDER_FOLDERS": str(folder / "files")}
        yield build(str(recipe), folder / "built", "--runner", "sandbox", env=env)


@pytest.fixture(scope="module")
def conda() -> Iterator[Built]:
    """An environment with packages of a conda channel."""
    with open_folder() as folder:
        recipe = make_conda(folder)
        yield build(str(recipe), folder / "built", "--runner", "sandbox", env=NO_ENGINE)


@pytest.fixture(scope="module")
def hub_kernels() -> Iterator[Built]:
    """An environment with a kernel of a hub on loopback."""
    with open_folder() as folder:
        yield build(str(make_kernels(folder)), folder / "built", "--runner", "sandbox", env=NO_ENGINE)


@pytest.fixture(scope="module")
def warm() -> Iterator[Built]:
    """An environment with the real Triton, and kernels that the build compiles."""
    with open_folder() as folder:
        yield build(str(make_warm(folder)), folder / "built", "--runner", "sandbox", env=NO_ENGINE)


CUDA = """\
base: debian/bookworm
python: "3.11"
gcc: "12"
pytorch: "2.15.0"
cuda: "13.2"
gpus: [A100]
"""
APT = """\
base: debian/bullseye
python: "3.9"
gcc: "10"
libxcrypt: "4.4"
pytorch: "1.12.1"
cuda: "11.3"
gpus: [A100]
apt_sources:
  - {name: nvidia-ubuntu2004, url: "%s", suite: /, key: nvidia.gpg}
"""
CAPTURED = """\
from torch.utils.cpp_extension import load_inline

quick = load_inline("quick", cpp_sources="int twice(int x) { return 2 * x; }", functions=["twice"])
"""
SMALL = {
    "setup.py": "from setuptools import Extension, setup\nsetup(name='small', version='1', ext_modules=[Extension('small', ['small.c'])])\n",
    "small.c": '#include <Python.h>\nstatic struct PyModuleDef small = {PyModuleDef_HEAD_INIT, "small"};\n'
    "PyMODINIT_FUNC PyInit_small(void) { return PyModule_Create(&small); }\n",
}


@pytest.fixture(scope="module")
def fetched() -> Iterator[Built]:
    """An environment with torch and two extensions: a commit of a repository, and what a program compiles by `load_inline()`."""
    with open_folder() as folder:
        git = ("git", "-C", folder / "repository", "-c", "user.name=x", "-c", "user.email=x")
        for name, text in SMALL.items():
            save_text(folder / "repository" / name, text)
        run(*git, "init", "--quiet")
        run(*git, "add", ".")
        run(*git, "commit", "--quiet", "--message", "x")
        commit = run(*git, "rev-parse", "HEAD").strip()
        save_text(folder / "recipes/program/ops.py", CAPTURED)
        extensions = (
            f"{{name: small, git: 'file://{folder}/repository', commit: {commit}}}",
            "{name: quick, path: program, capture: [import ops]}",
        )
        recipe = recipe_like("cpu", folder / "recipes/fetched.yaml", *extensions)
        run(ENVBUILDER, "lock", recipe)
        yield build(str(recipe), folder / "built", "--runner", "sandbox", env=NO_ENGINE)


@pytest.fixture(scope="module")
def toolkit() -> Iterator[Built]:
    """An environment with a toolkit of CUDA, from wheels, and without torch. `gh200` has parts that `h100` takes from torch's."""
    fetch_packages("h100", kinds=("deb",))
    with open_folder() as folder:
        recipe = folder / "recipes/toolkit.yaml"
        save_text(recipe, CUDA)
        lock = make_lock(recipe, ("nvidia-cuda-runtime",), of="h100")
        tools = load_lock(ROOT / "recipes/gh200.lock").tools
        assert tools
        save_text(recipe.with_suffix(".lock"), lock_text(replace(lock, toolkit=tools.toolkit)))
        yield build(str(recipe), folder / "built", "--runner", "sandbox", env=NO_ENGINE)


@pytest.fixture(scope="module")
def archive() -> Iterator[Built]:
    """An environment with a toolkit of NVIDIA's archive: one on loopback, with components cut out of real packages."""
    fetch_packages("a100", kinds=("deb",))
    with open_folder() as folder:
        address = redist.archive_of_12_4(folder, resolve_context()).as_uri()
        context = resolve_context(os.environ | {"ENVBUILDER_CUDA_REDIST": address})
        path = folder / "recipes/archive.yaml"
        save_text(path, CUDA.replace("2.15.0", "2.6.0").replace("13.2", "12.4.2"))
        lock = make_lock(path, ("nvidia-cuda-runtime-cu12",), of="a100")
        parts = without_headers(load(path), resolve_toolkit(make_task(load(path), context)), ())
        assert {part.source for part in parts} == {"cuda"}
        context.fetcher.fetch(parts)
        save_text(path.with_suffix(".lock"), lock_text(replace(lock, toolkit=parts)))
        yield build(str(path), folder / "built", "--runner", "sandbox", env=NO_ENGINE)


@pytest.fixture(scope="module")
def apt() -> Iterator[Built]:
    """An environment with a toolkit of NVIDIA's apt packages, in a repository on loopback. Debian 11 has a gcc for it."""
    context, runtime = resolve_context(), "nvidia-cuda-runtime-cu11==11.7.99"
    with open_folder() as folder, served(folder / "repos") as address:
        redist.repository_of_11_3(folder / "repos", context, folder)
        path = folder / "recipes/apt.yaml"
        save_text(path, APT % address)
        shutil.copy(folder / "nvidia.gpg", path.parent)
        recipe = load(path)
        (repository,) = recipe.apt_sources
        context.fetcher.know({repository.source: repository.url})
        task = make_task(recipe, context)
        question = Question(python="3.9", glibc="2.31", requirements=(runtime,), dependencies=False)
        lock = replace(
            load_lock(ROOT / "recipes/cpu.lock"), recipe=recipe.digest, inputs=recipe_inputs(recipe),
            debs=resolve_debs(task), wheels=Uv(task).ask(question), extensions=(), toolkit=resolve_toolkit(task),
        )  # fmt: skip
        assert {part.source for part in lock.toolkit} == {repository.source}
        context.fetcher.fetch(lock.toolkit)
        save_text(path.with_suffix(".lock"), lock_text(lock))
        yield build(str(path), folder / "built", "--runner", "sandbox", env=NO_ENGINE)


@pytest.fixture(scope="module")
def on_image() -> Iterator[Built]:
    """An environment on an image, which a registry has."""
    with open_folder() as folder, registry(folder / "registry") as server:
        recipe, lock = make_tiny(folder / "recipes")
        built = build(str(recipe), folder / "tiny", "--runner", "sandbox", env=NO_ENGINE)
        world = World(recipe, lock, built, built, server, {})
        push(server.host, "engine-debian", pack(world, SHAPES["engine-debian"]))
        written = write_on_image(world, "engine-debian", torch="2.13.0")
        yield build(str(written), folder / "built", "--runner", "sandbox", env=NO_ENGINE)


@pytest.mark.release
@pytest.mark.parametrize("which", ["tiny", *SHAPED])
def test_a_rendered_dockerfile_builds_the_same_environment(
    request: pytest.FixtureRequest, which: str, base: str, spacious: Path
):
    """BuildKit runs the same stages in `test_both_runners_make_the_same_files`, and tests/plan holds the texts."""
    built: Built = request.getfixturevalue(which)
    recipe = built.recipe or which
    archive = build_dockerfile(spacious, base, recipe)
    mine, theirs = read_tree(built.layout), read_tree(archive)
    need_equal(mine.entries, theirs.entries)
    assert theirs.image.config.env == mine.image.config.env
    assert dict(theirs.image.config.labels) == dict(mine.image.config.labels)


@pytest.mark.release  # its extension and torch are in the Dockerfile's test, its own words in the next one
@pytest.mark.parametrize("which", [*SHAPED, "a100"])
def test_a_rendered_definition_file_builds_the_same_environment(
    request: pytest.FixtureRequest, which: str, base: str, spacious: Path
):
    """Of `cpu` and `a100`, the files in `apptainer/` are built, which are what `render` prints."""
    built: Built = request.getfixturevalue(which)
    recipe = built.recipe or which
    committed = None if built.recipe else ROOT / f"apptainer/{which}.def"
    sif = build_definition(spacious, base, recipe, vendor(recipe, spacious / "vendored"), committed)
    need_equal(read_tree(built.layout).entries, sif_manifest(sif), ignore=BUILDER_ADDS)
    if built.recipe:
        return
    printed = run(*as_nobody("apptainer", "exec", "--cleanenv", sif, "python", "-c", NUMBERS), cwd=Path("/"))
    assert printed == "numbers agree\n"


@pytest.mark.release
def test_an_ordinary_user_builds_a_definition_file(tiny: Built, base: str, spacious: Path):
    """Without torch: Apptainer compresses all of it with one pass of its own."""
    home = spacious / "home"
    home.mkdir()
    vendored = vendor(tiny.recipe, spacious / "vendored")
    sif = build_definition(home, base, tiny.recipe, vendored, prefix=as_ordinary_user(home))
    assert sif.stat().st_uid == (USER if os.geteuid() == 0 else os.geteuid())
    need_equal(read_tree(tiny.layout).entries, sif_manifest(sif), ignore=BUILDER_ADDS)


def as_ordinary_user(home: Path) -> tuple[object, ...]:
    """What runs a command as a user with that home and ids to map, of whom nothing else on this machine knows."""
    if os.geteuid() != 0:
        return ()
    lines = {
        "passwd": f"ann:x:{USER}:{USER}::{home}:/bin/sh",
        "subuid": f"ann:{IDS}:65536",
        "subgid": f"ann:{IDS}:65536",
    }
    for name, line in lines.items():
        (home / name).write_text(f"{Path('/etc', name).read_text()}{line}\n")
    shutil.chown(home, USER, USER)
    bind = f'for name in {" ".join(lines)}; do mount --bind "$0/$name" /etc/$name; done; exec "$@"'
    return (
        "unshare", "--mount", "sh", "-euc", bind, home, "setpriv", "--reuid", USER, "--regid", USER, "--clear-groups",
        "env", "-u", "XDG_RUNTIME_DIR", f"HOME={home}",
    )  # fmt: skip
