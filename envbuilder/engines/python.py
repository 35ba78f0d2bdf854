"""The python layer: the locked wheels installed by uv, offline and by hash, into /opt/env."""

from importlib import metadata
from pathlib import Path
from typing import Final

import uv

from envbuilder.command import Command, Runner
from envbuilder.engines.sandbox import Mount, Root, sandboxed
from envbuilder.plan import ENV_PREFIX, PythonStep
from envbuilder.store import Store, remove_tree
from envbuilder.tree import Layer, write_layer

WORK: Final = (
    "/work"  # the one writable mount: uv's cache and the environment share it, so that hard links work
)


def tool_version() -> str:
    return f"uv {metadata.version('uv')}"


def install_command(*, root: Root, work: Path, epoch: int) -> Command:
    """Install every wheel of `work/wheels`, checked against `work/requirements.txt`; byte code by source hash unchecked.

    Unchecked because the image is read-only: a read of each source at each import would be the only effect.
    """
    argv = (
        "/uv", "pip", "install", "--offline", "--no-index", "--find-links", f"{WORK}/wheels", "--no-deps", "--no-config",
        "--require-hashes", "-r", f"{WORK}/requirements.txt", "--python", f"{ENV_PREFIX}/bin/python",
        "--link-mode", "hardlink", "--compile-bytecode", "--cache-dir", f"{WORK}/cache",
    )  # fmt: skip
    return sandboxed(
        root,
        argv,
        why="install the locked Python packages",
        mounts=(
            Mount(source=work, target=WORK, writable=True),
            Mount(source=Path(uv.find_uv_bin()), target="/uv"),
        ),
        links=((ENV_PREFIX, f"{WORK}/tree{ENV_PREFIX}"),),
        env=(
            ("SOURCE_DATE_EPOCH", str(epoch)),
            ("PYC_INVALIDATION_MODE", "UNCHECKED_HASH"),
            ("UV_NO_PROGRESS", "1"),
            ("UV_NO_INSTALLER_METADATA", "1"),  # it holds the time at which the wheel came into the cache
        ),
    )


def build_python(
    step: PythonStep, *, store: Store, runner: Runner, root: Root, epoch: int, work: Path
) -> Path:
    """Install into `work/tree`; returns that folder. The layer is written by `write_python_layer`."""
    make_environment(work / "tree", step)
    wheels = work / "wheels"
    wheels.mkdir()
    for wheel in step.artefacts:
        (wheels / wheel.filename).hardlink_to(store.artefact(wheel.sha256))
    lines = (f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in step.artefacts)
    (work / "requirements.txt").write_text("".join(lines), encoding="utf-8")
    runner.run(install_command(root=root, work=work, epoch=epoch))
    remove_tree(work / "cache")
    return work / "tree"


def make_environment(tree: Path, step: PythonStep) -> None:
    """An empty environment over the distribution's Python, spelled alike whoever makes it.

    The version is the minor one: the layer is shared by distributions with another patch level.
    """
    prefix = tree / ENV_PREFIX[1:]
    (prefix / "bin").mkdir(parents=True)
    (tree / step.site_packages[1:]).mkdir(parents=True)
    (prefix / "lib64").symlink_to("lib")
    (prefix / "bin/python").symlink_to(f"/usr/bin/python{step.python}")
    for name in ("python3", f"python{step.python}"):
        (prefix / "bin" / name).symlink_to("python")
    (prefix / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {step.python}\n",
        encoding="utf-8",
    )


def write_python_layer(tree: Path, *, folder: Path, epoch: int, threads: int) -> Layer:
    return write_layer(name="python", tree=tree, folder=folder, epoch=epoch, threads=threads, omit=("opt",))
