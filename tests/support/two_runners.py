"""Compare the results of both runners, and those of the steps' programs when they run by hand in a container.

There they run as any printed text does: as its root, in a root that can be written.
"""

import json
import os
import shutil
import tarfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import uv

from envbuilder import steps
from envbuilder.artifacts.oci.reader import read_tree
from envbuilder.builder.job import layer_keys, write_step
from envbuilder.core.cache import Store, save_text
from envbuilder.layers.layer import extract, load_layer, write_layer
from envbuilder.lock.file import load_lock, lock_text
from envbuilder.lock.model import Lock, recipe_inputs
from envbuilder.lock.resolve.base_image import resolve_image
from envbuilder.lock.resolve.context import LockOptions
from envbuilder.plan.make import make_plan
from envbuilder.plan.program import OUT, PROGRAMS, Program
from envbuilder.recipe.load import load
from envbuilder.verify.compare import compare
from tests.support import bases
from tests.support.debs import header, make_tar
from tests.support.registries import Registry
from tests.support.workbench import CACHE, ENVBUILDER, ROOT, Built, resolve_context, run

IMAGE, STORE = "envbuilder-e2e-by-hand", Store(CACHE)


def need_the_same(composed: Built, baked: Built) -> None:
    """Assert that both made the same files, and the same image to the byte."""
    mine, theirs = read_tree(composed.layout), read_tree(baked.layout)
    assert compare(mine.entries, theirs.entries, ("sandbox", "buildkit")) == ()
    assert (composed.layout / "index.json").read_text() == (baked.layout / "index.json").read_text()


def inside(built: Built, recipe: Path, *argv: str, place: str = "sif") -> str:
    return run(ENVBUILDER, "exec", recipe, "--artifacts", built.output, "--in", place, "--", *argv)


def need_the_same_layers(recipe: Path, folder: Path) -> None:
    """Assert that the programs of Python's layers give those of the sandbox, byte for byte. The recipe must have been built."""
    _, plan, _ = make_plan(str(recipe), recipe.parent, STORE)
    keys, root = layer_keys(plan), folder / "root"
    system = load_layer(STORE.layer(keys[plan.os]))
    assert system
    extract(system, root)
    try:
        for step in filter(None, (plan.interpreter, plan.python)):
            run("sh", "-c", f"tar -C {root} -c . | docker import - {IMAGE}")
            out, packed = run_program(step.made_by(plan), folder / step.name), folder / f"{step.name}-layer"
            packed.mkdir()
            omit = plan.shared_folders(step)
            layer = write_layer(
                name=step.name, tree=out, folder=packed, epoch=plan.epoch, threads=2, omit=omit
            )
            composed = load_layer(STORE.layer(keys[step]))
            assert composed
            assert layer.digest == composed.digest, f"the {step.name} layer differs"
            shutil.copytree(out, root, symlinks=True, dirs_exist_ok=True)
    finally:
        run("docker", "image", "rm", "--force", IMAGE)


def run_program(program: Program, folder: Path) -> Path:
    """Return the OUT of a program, after those of its parts."""
    parts = {part.name: run_program(part, folder / part.name) for part in program.parts}
    write_step(program, folder / "step", STORE, parts)
    shutil.copytree(steps.FOLDER, folder / "steps")
    shutil.copy(uv.find_uv_bin(), folder / "steps")
    (folder / "out").mkdir()
    mounts = (f"{folder}/steps:{PROGRAMS}:ro", f"{folder}/step:/step:ro", f"{folder}/out:{OUT}")
    variables = (f"--env={name}={value}" for name, value in steps.ENVIRONMENT.items())
    options = (*(f"--volume={mount}" for mount in mounts), *variables)
    run("docker", "run", "--rm", "--network", "none", *options, IMAGE, *program.argv)
    return folder / "out"


RECIPE = """\
base: {{image: "{image}"}}
python: "3.11"
gcc: "12"
libxcrypt: "4.4"
pytorch: "{torch}"
{more}"""


@dataclass(frozen=True)
class World:
    """A recipe on a suite, built by both engines, and a registry with images made from its root."""

    recipe: Path
    lock: Lock
    composed: Built
    baked: Built
    server: Registry
    login: dict[str, str]  # the environment in which the registry's password is found

    @property
    def host(self) -> str:
        return self.server.host

    @property
    def folder(self) -> Path:
        return self.recipe.parent


SHAPES = {
    "engine-debian": bases.Shape([{"etc/site.conf": "of the site"}], env=("PATH=/site/bin:/usr/bin:/bin", "SITE=a b")),
    "engine-devel": replace(
        bases.devel(),
        # The compilers are imitations, so that nothing has to be added.
        layers=[bases.cuda("12.4.1") | bases.plain_cuda("12.4"), bases.gcc("12.2.0") | {"etc/apt/sources.list.d/cuda.list": "deb https://index.example/cuda /"}],
    ),
}  # fmt: skip


def blob(built: Built, digest: str) -> bytes:
    return (built.layout / "blobs/sha256" / digest.removeprefix("sha256:")).read_bytes()


def open_to_all() -> bytes:
    """A layer with a folder and a file that everybody can write, as some images have, and a pipe."""
    return make_tar(
        (
            header("everybody", tarfile.DIRTYPE, mode=0o777),
            header("everybody/all", mode=0o666),
            header("everybody/pipe", tarfile.FIFOTYPE),
        )
    )


def pack(world: World, shape: bases.Shape) -> bases.Packed:
    """The image of `shape` with the root of the world's recipe below it."""
    index = json.loads((world.composed.layout / "index.json").read_text())
    manifest = json.loads(blob(world.composed, index["manifests"][0]["digest"]))
    below = json.loads(blob(world.composed, manifest["config"]["digest"]))["rootfs"]["diff_ids"][0]
    root, more, last = manifest["layers"][0], bases.pack(shape), open_to_all()
    config = json.loads(more.config)
    config["rootfs"]["diff_ids"] = [below, *config["rootfs"]["diff_ids"], bases.sha256(last)]
    return bases.Packed(
        config=json.dumps(config).encode(),
        blobs=[blob(world.composed, root["digest"]), *more.blobs, last],
        media_types=[root["mediaType"], *more.media_types, "application/vnd.oci.image.layer.v1.tar"],
    )


def write_on_image(world: World, name: str, *, torch: str, more: str = "") -> Path:
    """Write a recipe on this image and its lock: the image's real facts, and the packages of `cpu` that it lacks."""
    path = world.folder / f"{name}.yaml"
    path.write_text(RECIPE.format(image=f"{world.host}/site/{name}:1", torch=torch, more=more))
    recipe = load(path)
    options = LockOptions(today=datetime.now(UTC).date())
    base = resolve_image(recipe, resolve_context(os.environ | world.login), old=None, options=options)
    there = {deb.name for deb in world.lock.debs}
    cpu = load_lock(ROOT / "recipes/cpu.lock")
    lacking = () if base.inside.gcc("12") else cpu.debs
    lock = replace(
        world.lock, recipe=recipe.digest, inputs=recipe_inputs(recipe), base=base,
        debs=tuple(deb for deb in lacking if deb.name not in there),
    )  # fmt: skip
    save_text(path.with_suffix(".lock"), lock_text(lock))
    return path
