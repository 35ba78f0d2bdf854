"""What a build does for the cache beside making layers.

It sees to the space, shares what it made, notes what it used, and removes what nothing needs.
"""

import contextlib
import os
import shutil
import time
import uuid
import zipfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from envbuilder.artifacts.outputs import Outputs
from envbuilder.builder.context import BuildContext
from envbuilder.builder.extensions.built_wheels import wheel_key
from envbuilder.builder.extensions.compiled import find_extensions, label
from envbuilder.builder.job import BuildJob, SharedStores, layer_keys, lower_steps, places, root_steps
from envbuilder.core.cache import Sha256, Store, cache_limit, link_or_copy
from envbuilder.core.console import Console
from envbuilder.core.errors import SpaceError, full_error, lacks_inodes
from envbuilder.layers.layer import load_layer
from envbuilder.layers.writer import BLOCK_SIZE
from envbuilder.lock.model import Artifact, LockedExtension
from envbuilder.plan.extension import extension_program, project_key
from envbuilder.plan.make import make_plan
from envbuilder.plan.model import CudaStep, ExtensionsStep, Plan, ProgramStep, PythonStep, Step, inputs
from envbuilder.recipe.load import need_recipes
from envbuilder.runners.toolbox import toolbox_files
from envbuilder.sources.names import Wanted

if TYPE_CHECKING:
    from envbuilder.artifacts.docker_engine import DockerEngine

DAY: Final = 24 * 60 * 60  # seconds
LAYERS: Final = "ENVBUILDER_LAYER_STORE"
EXTENSIONS: Final = "ENVBUILDER_EXTENSION_STORE"

# ---- the disk space of a build: what its layers and artifacts, and the files on the way to them, take beyond what the cache has


class Size(NamedTuple):
    """What a step, or one of its files, takes on the disk, in bytes: unpacked, as a layer, and while the layer is made."""

    tree: float
    layer: float
    making: float
    diff_id: str = ""  # of a layer that is made

    def of(self, size: float) -> "Size":
        return Size(self.tree * size, self.layer * size, self.making * size)


# For each byte of a file, a little above what `cpu`, `a100` and tests/support/tiny.py take: packages 3.6 and 1.20, wheels
# 4.55 and 1.17, all wheels of `a100` 1.83 and 0.98, its toolkit 1.36 and 0.42, blocks 1.06.
_PACKAGE: Final = Size(3.9, 1.25, 3.9)
_TOOLKIT: Final = Size(2.5, 1.0, 2.5)  # the libraries that torch's wheels have are links
_WHEEL: Final = Size(4.7, 1.25, 4.7)  # its byte code too
_GPU_WHEEL: Final = Size(2.2, 1.1, 0.5)  # machine code for GPUs hardly compresses, and lies in large files
_LARGE: Final = 300e6  # bytes of a wheel: only those for GPUs have more
_OTHER: Final = Size(6, 1.5, 6)  # sources, and a standalone Python: a few MB
_BYTE_CODE: Final = 1.8  # for each byte of a module
_BLOCKS: Final = 1.08  # for each byte of a tree's files: few fill their last block
_BLOCK: Final = 4096
_SIF: Final = 1.02  # for each byte of its layers
_EXTENSION: Final = 100e6  # the build directory and the library of one that is not compiled yet
_HINT: Final = "free space there, point ENVBUILDER_CACHE and --output at a larger disk, or leave the Docker engine out: `--no-load`"
_SPARE: Final = 50e6  # logs, inventories, and the Python that installs the wheels


def need_space(
    job: BuildJob, fetched: Sequence[Wanted], outputs: Outputs, staged: Path, docker: "DockerEngine | None"
) -> None:
    """Say how much space the build needs, and make it; raises SpaceError. `fetched` are the inputs that the cache lacks."""
    store, made = job.store, job.missing()
    sizes = {step: _size_of_step(step, job) for step in job.plan.steps}
    layers = sum(size.layer for size in sizes.values())
    kept = _SPARE + sum(file.size for file in fetched) + _EXTENSION * len(_uncompiled(job, made))
    kept += sum(sizes[step].layer for step in made)

    def read_of(steps: Collection[Step]) -> float:
        """Programs read the SIF. Where it cannot be mounted, the layers that they read are unpacked."""
        is_read = () if job.folders.can_mount() else steps_read(job, steps)
        return sum(sizes[step].tree for step in is_read)

    # While layers are made, the files of some at once, with those in which programs run, and the SIF has the others; then the files in
    # which extensions compile; then the whole SIF, and the image beside it.
    largest = sorted((sizes[step] for step in made), key=lambda size: size.making)[-places(job.limits) - 1 :]
    packed, lacking = sum(size.making for size in largest), sum(size.layer for size in largest)
    early = read_of([step for step in made if not isinstance(step, ExtensionsStep)])
    phases = [
        [(store.root, kept + packed + early), (outputs.folder, _SIF * (layers - lacking))],
        [(store.root, kept + read_of(made)), (outputs.folder, _SIF * layers)],
        [(store.root, kept), (outputs.folder, _SIF * layers + (0 if _links(store, staged) else layers))],
    ]
    if docker and (images := docker.folder()):
        known = docker.diff_ids(outputs.image_name)
        new = (size for size in sizes.values() if size.diff_id not in known)
        loaded = (images, sum(size.tree + size.layer for size in new))
        phases = [[*phase, loaded] for phase in phases]
    _need_free(phases, job)


def _need_free(phases: Sequence[Sequence[tuple[Path, float]]], job: BuildJob) -> None:
    """Compare what is needed in any phase with what is free, by file system. The first folder is the cache's."""
    disks: dict[int, tuple[Path, Path, float]] = {}
    for phase in phases:
        needs: dict[int, float] = defaultdict(float)
        for folder, need in phase:
            place = next(path for path in (folder, *folder.parents) if path.exists())
            device = place.stat().st_dev
            needs[device] += need
            disks.setdefault(device, (folder, place, 0.0))
        for device, need in needs.items():
            first, place, before = disks[device]
            disks[device] = first, place, max(before, need)
    _, cache, most = next(iter(disks.values()))
    make_room(job.store, job.console, lambda: most - shutil.disk_usage(cache).free)
    for folder, place, need in disks.values():
        free = shutil.disk_usage(place).free
        words = f"this build needs up to {need / 1e9:.2f} GB at `{folder}`; {free / 1e9:.2f} GB are free"
        if lacks_inodes(folder):
            raise full_error(folder)
        if free < need:
            raise SpaceError(words, hint=f"{_HINT}; `envbuilder cache` shows what can go")
        job.console.say(words)


def _size_of_step(step: Step, job: BuildJob) -> Size:
    """Return the size of a step: what its layer says, otherwise by the files that it is made from."""
    if layer := load_layer(job.store.layer(job.keys[step])):
        tree = _BLOCKS * layer.content_size
        return Size(tree, layer.size, tree, f"sha256:{layer.diff_id}")
    if isinstance(step, CudaStep):
        return _TOOLKIT.of(sum(part.size for part in step.artifacts))
    sizes = [_size_of_file(file, job.store) for file in inputs(step)]
    return Size(
        sum(size.tree for size in sizes),
        sum(size.layer for size in sizes),
        sum(size.making for size in sizes),
    )


def _size_of_file(artifact: Artifact, store: Store) -> Size:
    """Return what a file becomes: a wheel in the cache says itself what it unpacks to."""
    if artifact.kind != "wheel":
        return (_PACKAGE if artifact.kind == "deb" else _OTHER).of(artifact.size)
    is_for_gpus = artifact.name.startswith("nvidia") or artifact.size > _LARGE
    size = (_GPU_WHEEL if is_for_gpus else _WHEEL).of(artifact.size)
    try:
        with zipfile.ZipFile(store.artifact(artifact.sha256)) as wheel:
            files = [(member.file_size, member.filename.endswith(".py")) for member in wheel.infolist()]
    except (OSError, zipfile.BadZipFile):  # not fetched yet, or damaged
        return size
    code = sum(_blocks(_BYTE_CODE * count) for count, is_module in files if is_module)
    tree = sum(_blocks(count) for count, _ in files)
    small = sum(_blocks(count) for count, is_module in files if is_module or count < BLOCK_SIZE)
    # Without its large files, a wheel is copied as well.
    return size._replace(tree=code + tree, making=code + (2 * small if small < tree else tree))


def _blocks(size: float) -> float:
    """Return what a file takes on a disk."""
    return -(-size // _BLOCK) * _BLOCK


def steps_read(job: BuildJob, made: Collection[Step]) -> set[Step]:
    """Return the steps in whose files programs run if the layers of these steps are made."""
    plan = job.plan
    if job.cross_tools:  # the recipe's tests run in all layers
        return set(plan.steps)
    steps: set[Step] = set()
    for extension in _uncompiled(job, made):
        steps |= set(root_steps(plan.named(extension_program(plan.ground, extension).root)))
    for step in made:
        steps |= set(lower_steps(step, plan)) if isinstance(step, ProgramStep) else set()
        if isinstance(step, PythonStep) and step.sdists:
            steps.add(plan.os)
    return steps


def _uncompiled(job: BuildJob, made: Collection[Step]) -> list[LockedExtension]:
    is_made = any(isinstance(step, ExtensionsStep) for step in made)
    return [one.extension for one in find_extensions(job.plan, job.store) if is_made and one.compiled is None]


def _links(store: Store, folder: Path) -> bool:
    """Return whether a layer's file gets a second name in the folder; otherwise the image's layers are copies."""
    with store.workspace() as work:
        source, target = work / "file", folder / f".{uuid.uuid4().hex}"
        source.touch()
        link_or_copy(source, target)
        return target.samefile(source)


# ---- what machines share


def open_stores(context: BuildContext, *, offline: bool) -> SharedStores:
    """Return the stores that the environment names; raises UsageError."""
    environment = context.environment
    if offline or not (environment.get(LAYERS) or environment.get(EXTENSIONS)):
        return SharedStores()
    from envbuilder.registry.shared_store import open_store  # noqa: PLC0415 - requests and cryptography, for stores alone

    return SharedStores(
        layers=open_store(LAYERS, environment, context.store, context.console),
        extensions=open_store(EXTENSIONS, environment, context.store, context.console),
    )


def share(job: BuildJob) -> None:
    """Put into the stores what the build used and they lack. Only a verified build is shared."""
    if layers := job.shared.layers:
        for step, key in job.keys.items():
            layers.put(key, job.store.layer(key), f"the {step.name} layer", packed=False)
    if extensions := job.shared.extensions:
        for folder, name in compiled_entries(job):
            if job.store.holds(folder, whole=True):
                extensions.put(Sha256(folder.name), folder, f"`{name}`", packed=True)


def compiled_entries(job: BuildJob) -> Iterator[tuple[Path, str]]:
    """Yield folder and name of each compiled extension and built wheel of the plan that the cache has."""
    for status in find_extensions(job.plan, job.store):
        if status.compiled:
            yield job.store.extension(status.key.entry), label(status.extension, status.name)
    for folder in map(job.store.extension, _wheel_keys(job.plan)):
        for wheel in folder.glob("*.whl"):
            yield folder, wheel.name


# ---- what was used, and what may go


def mark_used(job: BuildJob) -> None:
    """Note on the entries in the cache that a build has just used them."""
    compiled = (folder for folder, _ in compiled_entries(job))
    for folder in (*map(job.store.layer, job.keys.values()), *compiled):
        with contextlib.suppress(FileNotFoundError):
            os.utime(folder)


def keep_limit(store: Store, environment: Mapping[str, str], console: Console) -> None:
    """Bring the cache below its limit, as far as `make_room` can."""

    def excess() -> float:
        taken = sum(store.sizes().values())
        return taken - cache_limit(environment, taken + shutil.disk_usage(store.root).free)

    make_room(store, console, excess)


def make_room(store: Store, console: Console, excess: Callable[[], float]) -> None:
    """Remove what is quick to make again and in no use, the oldest first, until so many bytes are gone. Says what went."""
    try:
        removed = store.collect(excess)
    except OSError as error:  # what is built is worth more
        console.say(f"cache: `{error.filename}` cannot be removed: {error.strerror}")
        return
    if removed:
        kinds = ", ".join(f"{size / 1e9:.2f} GB of `{kind}`" for kind, size in removed.items())
        console.say(f"cache: removed {kinds}, longest unused first; a later build makes it again")


def clear_unused(context: BuildContext, kinds: Collection[str], *, days: int) -> None:
    """Remove entries of these kinds that no build made or used for so many days and no lock names."""
    keep = locked_keys(context) | _locked_files(context)
    context.store.clear(kinds, before=time.time() - days * DAY, keep=keep)


def locked_keys(context: BuildContext) -> frozenset[Sha256]:
    """Return the keys of layers, extensions and wheels of every locked recipe; raises LockError for a stale lock."""
    return frozenset(key for plan in _plans(context) for key in _keys(plan, context.store))


def _locked_files(context: BuildContext) -> frozenset[Sha256]:
    files = {file.sha256 for file in toolbox_files()}
    for plan in _plans(context):
        files |= {artifact.sha256 for artifact in plan.artifacts}
        files |= {file.sha256 for extension in plan.extensions for file in extension.files}
        files |= {file.sha256 for file in plan.warm.files} if plan.warm else set()
    return frozenset(files)


def _plans(context: BuildContext) -> Iterator[Plan]:
    for name in need_recipes(context.recipes):
        path = context.recipes / f"{name}.yaml"
        if path.with_suffix(".lock").exists():
            yield make_plan(str(path), context.recipes, context.store)[1]


def _keys(plan: Plan, store: Store) -> Iterator[Sha256]:
    yield from layer_keys(plan).values()
    yield from (status.key.entry for status in find_extensions(plan, store))
    yield from (project_key(plan.ground, extension).digest for extension in plan.extensions)  # also captures
    yield from _wheel_keys(plan)


def _wheel_keys(plan: Plan) -> Iterator[Sha256]:
    for step in plan.steps:
        if isinstance(step, PythonStep):
            yield from (wheel_key(part, plan) for part in step.made_by(plan).parts)
