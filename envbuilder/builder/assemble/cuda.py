"""The cuda layer: a CUDA toolkit installed from packages, by a row of `compat/tables/toolkits.yaml`.

Headers and libraries that torch's wheels have are linked, not copied. BuildKit runs the same program in a container.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from envbuilder.builder.engine import Job
from envbuilder.core.cache import remove_tree
from envbuilder.core.errors import BuildError
from envbuilder.plan.model import CudaStep
from envbuilder.plan.render.steps import rules
from envbuilder.runtime.kit.install_toolkit import ToolkitError, Tree, install, install_part
from envbuilder.sources.deb import open_tar


def write_tree(step: CudaStep, job: Job, python: Path, work: Path) -> None:
    """Install the toolkit into `work/tree`. `python` is the tree of the Python environment."""
    packages = {one.name: job.store.artifact(one.sha256) for one in step.artifacts}
    with job.console.step(f"install CUDA {step.toolkit.cuda}") as shown:
        shown.expect(sum(path.stat().st_size for path in packages.values()))
        install_toolkit(
            step, packages, site=job.plan.python.site_packages, python=python, root=work / "tree",
            advance=shown.advance,
        )  # fmt: skip


def install_programs(step: CudaStep, packages: Mapping[str, Path], root: Path) -> None:
    """Install the toolkit's programs alone below `root`, out of the packages for another processor than the step's."""
    described = json.loads(rules(step))
    tree = Tree(str(root), f"/{step.toolkit.folder}")
    try:
        for part in described["parts"]:
            install_part(part, str(packages[part["name"]]), tree, _read_deb)
    except ToolkitError as error:
        raise BuildError(str(error), hint=error.hint) from error
    for folder in (root / step.toolkit.folder).iterdir():
        if folder.name != "bin" and not folder.name.startswith("nvvm"):
            remove_tree(folder) if folder.is_dir() else folder.unlink()
    for libraries in (root / step.toolkit.folder).glob("nvvm*/*"):
        if libraries.name != "bin":
            remove_tree(libraries)


def install_toolkit(
    step: CudaStep, packages: Mapping[str, Path], *, site: str, python: Path, root: Path,
    advance: Callable[[int], None] = lambda _: None,
) -> None:  # fmt: skip
    """Install `usr/local/cuda-X.Y` and the link `usr/local/cuda` below `root`. Raises BuildError for a ToolkitError.

    `packages` maps each part to its package. `advance` is told the bytes of each package that is installed. `site` is the image's site-packages, below `python` on this machine.
    """
    paths = {name: str(path) for name, path in packages.items()}
    try:
        install(
            json.loads(rules(step)), paths, site, root=str(root), python=str(python), deb=_read_deb,
            done=lambda name: advance(packages[name].stat().st_size),
        )  # fmt: skip
    except ToolkitError as error:
        raise BuildError(str(error), hint=error.hint) from error


def _read_deb(_name: str, package: str) -> AbstractContextManager[IO[bytes]]:
    return open_tar(Path(package), "data")
