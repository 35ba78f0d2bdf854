"""Fetch the inputs of a build, after a check of the disk space."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from envbuilder.artifacts.outputs import Outputs
from envbuilder.core.cache import Store
from envbuilder.core.console import Console
from envbuilder.core.errors import SpaceError
from envbuilder.core.fetch import Fetcher
from envbuilder.core.sources import Wanted
from envbuilder.plan.model import Plan

# Bytes on disk per fetched byte, measured on the recipes of this repository: an unpacked tree (2.1) and a layer (1.1)
# for each step that is built, and always the SIF (1.2). The image takes 1.2 too if its layers cannot be links.
SPACE_PER_STEP: Final = 3.2
SPACE_PER_BUILD: Final = 1.2


def fetch_inputs(wanted: Sequence[Wanted], fetcher: Fetcher, console: Console) -> None:
    """Fetch what the store lacks, and show the progress."""
    missing = fetcher.missing(wanted)
    if not missing:
        fetcher.fetch(wanted)
        return
    with console.step(f"fetch {len(missing)} artifacts", sum(one.size for one in missing)) as transfer:
        fetcher.fetch(wanted, transfer)


def need_space(
    plan: Plan, wanted: Sequence[Wanted], missing: Sequence[Wanted], outputs: Outputs, store: Store
) -> None:
    """Raise SpaceError if the disks of store and output are too small for the build. `missing` are the inputs to fetch."""
    fetch = sum(item.size for item in missing)
    layers = int(SPACE_PER_STEP * sum(item.size for item in wanted))
    sif = int(SPACE_PER_BUILD * sum(item.size for item in plan.artifacts))
    needs = {store.root: fetch + layers + sif, outputs.folder: 2 * sif}
    if store.root.stat().st_dev == _existing(outputs.folder).stat().st_dev:
        needs = {store.root: fetch + layers + 2 * sif}
    for folder, need in needs.items():
        free = shutil.disk_usage(_existing(folder)).free
        if free < need:
            raise SpaceError(
                f"this build needs about {need / 1e9:.1f} GB at `{folder}`; {free / 1e9:.1f} GB are free",
                hint="free space there, or point ENVBUILDER_CACHE and --output at a larger disk",
            )


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())
