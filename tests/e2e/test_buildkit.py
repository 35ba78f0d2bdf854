"""`--runner buildkit`: the same environment from the same lock, images as bases, and what it says where it cannot."""

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from envbuilder.core.cache import save_text
from envbuilder.lock.file import load_lock, lock_text
from tests.support.cluster import REGISTRY, Far, open_far
from tests.support.registries import PASSWORD, USER, push, registry
from tests.support.tiny import make_tiny
from tests.support.two_runners import SHAPES, World, inside, need_the_same, pack, write_on_image
from tests.support.workbench import (
    ENVBUILDER,
    NO_ENGINE,
    WITHOUT_NETWORK,
    Built,
    attempt,
    build,
    build_command,
    cache_with_artifacts,
    findings,
    open_folder,
    run,
)

pytestmark = pytest.mark.builds

NAME = "docker-engine"
CUDA = 'cuda: "12.4"\ngpus: [A100]\n'


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with open_folder() as folder, registry(folder / "registry", login=True) as server:
        recipe, lock = make_tiny(folder / "recipes", NAME)
        composed = build(str(recipe), folder / "composed", "--runner", "sandbox", env=NO_ENGINE)
        apart = {
            "ENVBUILDER_CACHE": str(cache_with_artifacts(folder, recipe))
        }  # both runners make the same layers
        baked = build(str(recipe), folder / "baked", "--runner", "buildkit", env=apart)
        world = World(recipe, lock, composed, baked, server, plant(folder, server.host))
        with registry(folder / "registry") as unlocked:  # the same data, and whoever comes may write
            for name, shape in SHAPES.items():
                push(unlocked.host, name, pack(world, shape))
        yield world
        run("docker", "image", "rm", "--force", *(f"envbuilder/{name}:latest" for name in (NAME, *SHAPES)))


def plant(folder: Path, host: str) -> dict[str, str]:
    """Settings of a Docker client with two secrets: a registry's password, and that of a proxy which every build is told of."""
    settings = folder / "docker"
    settings.mkdir()
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    proxy = f"http://{USER}:{PASSWORD}@127.0.0.1:9"
    value = {
        "auths": {host: {"auth": auth}},
        "proxies": {"default": {"httpProxy": proxy, "httpsProxy": proxy}},
    }
    (settings / "config.json").write_text(json.dumps(value))
    return {"DOCKER_CONFIG": str(settings)}


def test_both_runners_make_the_same_files(world: World):
    need_the_same(world.composed, world.baked)


def test_what_the_docker_engine_built_is_verified_and_then_there_is_nothing_to_do(world: World):
    run(ENVBUILDER, "verify", world.recipe, "--artifacts", world.baked.output)
    again = build(str(world.recipe), world.baked.output, "--runner", "buildkit")
    assert again.data["built"] is False
    assert again.digests == world.baked.digests


# Images


@pytest.fixture(scope="module")
def on_debian(world: World) -> Built:
    recipe = write_on_image(world, "engine-debian", torch="2.13.0")
    return build(str(recipe), world.folder / "on-debian", env=world.login)  # no engine is named


@pytest.mark.release
def test_both_runners_build_the_same_on_an_image(world: World, on_debian: Built):
    """`test_both_runners_make_the_same_files` holds it without an image, `test_image_bases.py` the image's own part."""
    recipe = recipe_of(world, on_debian)
    folder = world.folder / "apart"
    folder.mkdir()
    apart = {"ENVBUILDER_CACHE": str(cache_with_artifacts(folder, recipe))}
    options = ("--runner", "buildkit", "--no-load")
    need_the_same(on_debian, build(str(recipe), folder / "out", *options, env=world.login | apart))


def recipe_of(world: World, built: Built) -> Path:
    return world.folder / f"{built.name}.yaml"


def test_an_environment_on_an_image_has_what_both_bring(world: World, on_debian: Built):
    built, recipe = on_debian, recipe_of(world, on_debian)
    run(ENVBUILDER, "verify", recipe, "--artifacts", built.output)
    for place in ("sif", "image"):
        printed = inside(
            built, recipe, "sh",
            "-c", "cat /etc/site.conf; echo; echo $SITE; gcc -dumpversion; command -v python", place=place,
        )  # fmt: skip
        assert printed.split("\n") == ["of the site", "a b", "12", "/opt/env/bin/python", ""]
    login = ("bash", "-lc", "command -v python; echo $SITE")
    for plain in (("docker", "run", "--rm", built.image), ("apptainer", "exec", "--no-home", built.sif)):
        assert run(*plain, *login) == "/opt/env/bin/python\na b\n"
    code = "import markupsafe, numpy; print(numpy.zeros(2))"
    assert inside(built, recipe, "python", "-c", code) == "[0. 0.]\n"
    script = "stat -c %a /everybody /everybody/all; ls /everybody"
    assert inside(built, recipe, "sh", "-c", script) == "775\n664\nall\n"
    parts = json.loads(run(ENVBUILDER, "show", built.sif, "--sbom"))["packages"]
    versions = {part["name"]: part.get("versionInfo") for part in parts}
    assert versions["site/engine-debian"].startswith("sha256:")
    assert {"libc6", "gcc-12", "numpy"} <= versions.keys()  # of the image, added, and of Python


def test_nothing_of_a_password_or_a_proxy_is_left(on_debian: Built):
    places = [path for path in on_debian.layout.rglob("*") if path.is_file()]
    assert len(places) > 6
    for path in places:
        with path.open("rb") as stream:
            is_packed = stream.read(4) == b"\x28\xb5\x2f\xfd"
            stream.seek(0)
            reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
            content = reader.read() if is_packed else stream.read()
        assert PASSWORD.encode() not in content, path


def build_on_devel(world: World, recipe: Path, name: str) -> Built:
    """From nothing but what the registry and the sources have."""
    folder = world.folder / name
    folder.mkdir()
    cache = {"ENVBUILDER_CACHE": str(cache_with_artifacts(folder, recipe))}
    return build(str(recipe), folder / "out", "--runner", "buildkit", "--no-cache", env=world.login | cache)


@pytest.fixture(scope="module")
def on_devel(world: World) -> Built:
    recipe = write_on_image(world, "engine-devel", torch="2.6.0", more=CUDA)
    return build_on_devel(world, recipe, "one")


@pytest.mark.release
def test_two_clean_builds_on_an_image_in_the_shape_of_nvidias_are_the_same_bytes(
    world: World, on_devel: Built
):
    recipe = recipe_of(world, on_devel)
    built = build_on_devel(world, recipe, "two")
    assert built.digests == on_devel.digests
    assert inside(
        built, recipe, "sh", "-c", "echo $CUDA_HOME $CUDA_VERSION; cat $CUDA_HOME/version.json"
    ).startswith("/usr/local/cuda 12.4.1\n{")
    settings = json.loads(run("docker", "image", "inspect", f"envbuilder/{built.name}:latest"))[0]["Config"]
    assert settings["Entrypoint"] == ["/opt/envbuilder/start"]
    assert settings["User"] in ("", None)


@pytest.mark.release
def test_a_vendored_lock_on_an_image_builds_the_same_without_its_registry(
    world: World, on_debian: Built, spacious: Path
):
    """The engine reaches other networks than the command: the registry itself is away meanwhile."""
    carried = spacious / "carried"
    run(ENVBUILDER, "cache", "vendor", recipe_of(world, on_debian), carried, env=world.login)
    env = {
        "ENVBUILDER_CACHE": str(spacious / "empty"),
        "ENVBUILDER_FOLDERS": str(carried / "files"),
        "ENVBUILDER_INDEX": "file:///nonexistent",
    }
    options = ("--runner", "buildkit", "--offline", "--no-cache")
    again = (f"{carried}/{on_debian.name}.yaml", spacious / "again", *options)
    layer = next(path for path in (carried / "files/blobs/sha256").iterdir() if path.stat().st_size > 1 << 20)
    layer.rename(spacious / "away")
    ended = attempt(*WITHOUT_NETWORK, *build_command(*again), env=env)
    assert ended.returncode == 5, ended.stderr
    (finding,) = findings(ended)
    assert "1 file is not in the cache" in finding["message"]
    assert f"sha256:{layer.name}, layer 1 of" in finding["message"]
    (spacious / "away").rename(layer)
    with world.server.paused():
        assert build(*again, env=env, prefix=WITHOUT_NETWORK).digests == on_debian.digests
    lock = load_lock(recipe_of(world, on_debian).with_suffix(".lock"))
    run("skopeo", "inspect", f"oci:{carried}/files:{lock.base.reference}")


# Builders elsewhere

SHARED = f"type=registry,ref={REGISTRY}/cache"


@pytest.fixture(scope="module")
def far() -> Iterator[Far]:
    with open_folder() as folder, open_far(folder) as far:
        yield far


@pytest.fixture(scope="module")
def by_far(world: World, far: Far) -> Built:
    """By the engine of another machine, whose instructions go into a cache on the registry."""
    assert not far.kept("n1")
    built, log = far.build(world.recipe, "first", "--builder", "n1", "--cache-to", f"{SHARED},mode=max")
    assert "✓ python: wheels.py" in log
    return built


@pytest.mark.release
def test_another_machine_makes_the_same_bytes(world: World, far: Far, by_far: Built):
    assert by_far.digests == world.baked.digests
    assert far.kept("n1")
    run(ENVBUILDER, "verify", by_far.layout, by_far.sif)


@pytest.mark.release
def test_a_shared_cache_is_filled_though_there_is_nothing_else_to_do(world: World, far: Far, by_far: Built):
    again, log = far.build(world.recipe, "first", "--builder", "n1", "--cache-to", f"{SHARED}:later,mode=max")
    assert again.digests == by_far.digests
    assert "write the python layer" not in log
    tags = json.loads(far.cluster.head.run("curl", "-sS", f"http://{REGISTRY}/v2/cache/tags/list"))["tags"]
    assert "later" in tags


@pytest.mark.usefixtures("by_far")
@pytest.mark.release
def test_what_one_builder_made_another_takes_from_the_registry(world: World, far: Far):
    assert not far.kept("n2")
    built, log = far.build(world.recipe, "second", "--builder", "n2", "--cache-from", SHARED)
    assert re.search(r"BuildKit had (\d+) of \1 instructions in its cache", log), log
    assert "wheels.py" not in log
    assert built.digests == world.baked.digests


@pytest.mark.release
def test_an_image_is_built_on_elsewhere_though_no_cache_is_there(world: World, far: Far, on_devel: Built):
    absent = f"{REGISTRY}/nothing"
    options = ("--builder", "n2", "--cache-from", f"type=registry,ref={absent}")
    fetched = world.folder / "one/cache"
    built, log = far.build(recipe_of(world, on_devel), "third", *options, fetched=fetched)
    assert f"cannot read the cache `{absent}`: " in log
    assert "not found" in log
    assert built.digests == on_devel.digests


# Troubles


def test_an_instruction_that_fails_says_its_own_last_lines(world: World, spacious: Path):
    """A wheel that is not of the version which the lock says."""
    other = [
        replace(wheel, version="9.9") if wheel.name.lower() == "markupsafe" else wheel
        for wheel in world.lock.wheels
    ]
    recipe = spacious / f"{NAME}.yaml"
    recipe.write_text(world.recipe.read_text())
    save_text(recipe.with_suffix(".lock"), lock_text(replace(world.lock, wheels=tuple(other))))
    ended = attempt(ENVBUILDER, "build", recipe, "--runner", "buildkit", "--output", spacious, "--json")
    assert ended.returncode == 6
    (finding,) = findings(ended)
    assert "python: wheels.py" in finding["message"]
    assert "markupsafe==9.9" in finding["message"].lower()


@pytest.mark.release
def test_a_prepared_folder_is_built_by_hand(world: World, spacious: Path):
    prepare = ("build", world.recipe, "--runner", "buildkit", "--prepare", spacious / "folder")
    command = run(ENVBUILDER, *prepare).strip()
    run("sh", "-c", f"{command} --quiet")
    printed = run(
        "docker", "run", "--rm", "--network", "none", NAME, "python",
        "-c", "import markupsafe; print(markupsafe.escape('<'))",
    )  # fmt: skip
    run("docker", "image", "rm", "--force", NAME)
    assert printed == "&lt;\n"
