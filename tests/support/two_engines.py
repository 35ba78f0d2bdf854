"""Compare the results of both engines, and those of the steps' programs when they run by hand in a container.

There they run as any printed text does: as its root, in a root that can be written.
"""

import shutil
from pathlib import Path

import uv

from envbuilder import steps
from envbuilder.artifacts.oci.reader import read_tree
from envbuilder.builder.engine import layer_keys
from envbuilder.builder.step_folder import write_step
from envbuilder.core.cache import Store
from envbuilder.layers.layer import load_layer, write_layer
from envbuilder.plan.make import make_plan
from envbuilder.plan.program import OUT, PROGRAMS, Program
from envbuilder.verify.compare import compare
from tests.support.workbench import CACHE, ENVBUILDER, Built, run

IMAGE, STORE = "envbuilder-e2e-by-hand", Store(CACHE)


def need_the_same(composed: Built, baked: Built) -> None:
    """Assert that both made the same files, and the same image to the byte."""
    mine, theirs = read_tree(composed.layout), read_tree(baked.layout)
    assert compare(mine.entries, theirs.entries, ("assemble", "docker")) == ()
    assert (composed.layout / "index.json").read_text() == (baked.layout / "index.json").read_text()


def inside(built: Built, recipe: Path, *argv: str, place: str = "sif") -> str:
    return run(ENVBUILDER, "exec", recipe, "--artifacts", built.output, "--in", place, "--", *argv)


def need_the_same_layers(recipe: Path, folder: Path) -> None:
    """Assert that the programs of Python's layers give those of the sandbox, byte for byte. The recipe must have been built."""
    _, plan, _ = make_plan(str(recipe), recipe.parent, STORE)
    keys, root = layer_keys(plan), folder / "root"
    shutil.copytree(STORE.tree(keys[plan.os]), root, symlinks=True)
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
