"""Run the programs of steps by hand in a container, as any printed text does: as its root, in a root that can be written."""

import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

import uv
import zstandard

from envbuilder import steps
from envbuilder.artifacts.oci.layout import read_layout
from envbuilder.builder.step_folder import write_step
from envbuilder.core.cache import Store
from envbuilder.layers.layer import write_layer
from envbuilder.plan.make import make_plan
from envbuilder.plan.program import OUT, PROGRAMS, Program
from tests.support.workbench import CACHE, Built, run

IMAGE = "envbuilder-e2e-by-hand"


def need_the_same_layers(recipe: Path, composed: Built, folder: Path) -> None:
    """Assert that the programs of Python's layers give those of the sandbox, byte for byte."""
    _, plan, _ = make_plan(str(recipe), recipe.parent, Store(CACHE))
    layout = read_layout(composed.layout)
    names = [step.name for step in plan.steps]
    layers = dict(zip(names, map(layout.path, layout.manifest.layers), strict=True))
    (folder / "root").mkdir()
    unpack(layers["os"], folder / "root")
    try:
        for step in filter(None, (plan.interpreter, plan.python)):
            run("sh", "-c", f"tar -C {folder}/root -c . | docker import - {IMAGE}")
            out = run_program(step.made_by(plan), folder / step.name)
            (folder / f"{step.name}-layer").mkdir()
            layer = write_layer(
                name=step.name, tree=out, folder=folder / f"{step.name}-layer", epoch=plan.epoch, threads=2,
                omit=plan.shared_folders(step),
            )  # fmt: skip
            assert layer.digest == layers[step.name].name, f"the {step.name} layer differs"
            shutil.copytree(out, folder / "root", symlinks=True, dirs_exist_ok=True)
    finally:
        run("docker", "image", "rm", "--force", IMAGE)


def unpack(layer: Path, root: Path) -> None:
    with (
        layer.open("rb") as packed,
        zstandard.open(packed) as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        tar.extraction_filter = lambda member, _: member
        tar.extractall(root)


def run_program(program: Program, folder: Path) -> Path:
    """Return the OUT of a program, after those of its parts."""
    parts = {part.name: run_program(part, folder / part.name) for part in program.parts}
    write_step(program, folder / "step", Store(CACHE), parts)
    (folder / "steps").mkdir()
    for name in program.files:
        shutil.copy(steps.FOLDER / name, folder / "steps")
    shutil.copy(uv.find_uv_bin(), folder / "steps")
    (folder / "out").mkdir()
    mounts = {f"{folder}/steps": f"{PROGRAMS}:ro", f"{folder}/step": "/step:ro", f"{folder}/out": OUT}
    run(
        "docker", "run", "--rm", "--network", "none", *words("--volume", mounts, ":"), *words("--env", steps.ENVIRONMENT, "="),
        IMAGE, *program.argv,
    )  # fmt: skip
    return folder / "out"


def words(option: str, pairs: Mapping[str, str], sign: str) -> list[str]:
    return [word for name, value in pairs.items() for word in (option, f"{name}{sign}{value}")]
