"""envbuilder's own image and SIF, which `scripts/image` makes, build what an installation builds."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from envbuilder.core.cache import save_text
from envbuilder.lock.file import load_lock, lock_text
from tests.support.tiny import make_tiny
from tests.support.workbench import (
    ENVBUILDER,
    ROOT,
    Built,
    as_nobody,
    attempt,
    cache_with_artifacts,
    cache_with_toolbox,
    open_folder,
    run,
)

pytestmark = pytest.mark.builds
USER = 4242  # no machine has this user


@dataclass(frozen=True)
class Own:
    """envbuilder on the packages of `tiny` instead of those of `envbuilder-base`."""

    sif: Path
    recipe: Path
    image: str = "envbuilder/envbuilder-hpc"


@pytest.fixture(scope="module")
def envbuilder() -> Iterator[Own]:
    with open_folder() as folder:
        wheels = load_lock(ROOT / "recipes/envbuilder-base.lock").wheels
        pins = "".join(
            f"  - {wheel.name}=={wheel.version}\n" for wheel in wheels if wheel.name in ("uv", "zstandard")
        )
        more = f"run: envbuilder\npackages:\n{pins}"
        base, lock = make_tiny(folder / "base", "base", (), pytorch="none", more=more)
        debs = load_lock(ROOT / "recipes/cpu.lock").debs  # all that `lock` asks for
        save_text(base.with_suffix(".lock"), lock_text(replace(lock, debs=debs, wheels=wheels)))
        run(ROOT / "scripts/image", "--base", base, folder / "out")
        recipe, _ = make_tiny(folder / "recipe")
        yield Own(folder / "out/envbuilder-hpc.sif", recipe)
        run("docker", "image", "rm", "--force", Own.image)


def test_what_is_named_reaches_envbuilder(envbuilder: Own):
    version = run(ENVBUILDER, "--version")
    for start in (("apptainer", "run", envbuilder.sif), ("docker", "run", "--rm", envbuilder.image)):
        assert run(*start, "--version") == version
        assert "Usage: envbuilder" in attempt(*start).stderr
    words = ("exec", "envbuilder-hpc", "--artifacts", envbuilder.sif.parent, "--in", "image", "--", "python", "-c", "print(6 * 7)")  # fmt: skip
    assert run(ENVBUILDER, *words) == "42\n"


def need_same(recipe: Path, outside: Built, place: Path, user: int, *start: object) -> None:
    """Build offline from an empty cache, as a user, by a command line that ends where envbuilder's words begin."""
    cache = cache_with_toolbox(cache_with_artifacts(place, recipe, copy=True))
    run("chown", "-R", f"{user}:{user}", place)
    words = ("build", recipe, "--output", place / "out", "--json", "--offline")
    env = {"ENVBUILDER_CACHE": str(cache)}
    data = json.loads(run(*start, *words, cwd=place, env=env, timeout=3000))["data"][0]
    assert (data["manifest"], data["sif_sha256"]) == outside.digests


@pytest.mark.release
def test_the_sif_builds_the_same_files(envbuilder: Own, tiny: Built, spacious: Path):
    """`test_wheel.py` builds the same files in every run, with the wheel that the SIF holds."""
    need_same(envbuilder.recipe, tiny, spacious, 65534, *as_nobody("apptainer", "run", envbuilder.sif))


@pytest.mark.release
def test_the_sif_compiles_the_same_extension(envbuilder: Own, built: Built, spacious: Path):
    name = built.name
    for file in (f"{name}.yaml", f"{name}.lock"):
        shutil.copy(ROOT / "recipes" / file, spacious)
    shutil.copytree(ROOT / "recipes/fused", spacious / "fused")
    start = as_nobody("apptainer", "run", envbuilder.sif)
    need_same(spacious / f"{name}.yaml", built, spacious, 65534, *start)


@pytest.mark.release
def test_the_image_builds_the_same_files_without_privileges(envbuilder: Own, tiny: Built, spacious: Path):
    folders = (spacious, envbuilder.recipe.parent)
    mounts = [f"--volume={folder}:{folder}" for folder in folders]
    options = (
        "--network", "none", "--user", f"{USER}:{USER}", "--env", "ENVBUILDER_CACHE", "--workdir", spacious,
    )  # fmt: skip
    start = ("docker", "run", "--rm", *options, *mounts, envbuilder.image)
    need_same(envbuilder.recipe, tiny, spacious, USER, *start)
