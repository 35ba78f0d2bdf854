"""What a build does for the cache: share what it made with other machines, note what it used, and remove what nothing needs."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from envbuilder.builder.context import BuildContext
from envbuilder.builder.extensions.cache import find_extensions, label
from envbuilder.builder.extensions.wheels import wheel_key
from envbuilder.builder.job import Job, SharedStores, layer_keys
from envbuilder.builder.sandbox.foreign import tools_tree
from envbuilder.core.cache import Sha256, Store, cache_limit
from envbuilder.core.console import Console
from envbuilder.plan.extension import project_key
from envbuilder.plan.make import make_plan
from envbuilder.plan.model import Plan, PythonStep
from envbuilder.recipe.load import need_recipes
from envbuilder.runners.toolbox import toolbox_files

DAY: Final = 24 * 60 * 60  # seconds


def mark_used(job: Job) -> None:
    """Note on the entries in the cache that a build has just used them."""
    compiled = (folder for folder, _ in compiled_entries(job))
    for folder in (*map(job.store.layer, job.keys.values()), *compiled):
        with contextlib.suppress(FileNotFoundError):
            os.utime(folder)


def keep_trees(job: Job) -> AbstractContextManager[None]:
    """Keep the trees of the job's plan from `make_room` during the block, also of other builds."""
    tools = (tools_tree(job),) if job.cross_tools else ()
    return job.store.keep_trees((*map(job.store.tree, job.keys.values()), *tools))


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
    return frozenset(files)


def _plans(context: BuildContext) -> Iterator[Plan]:
    for name in need_recipes(context.recipes):
        path = context.recipes / f"{name}.yaml"
        if path.with_suffix(".lock").exists():
            yield make_plan(str(path), context.recipes, context.store)[1]


def _keys(plan: Plan, store: Store) -> Iterator[Sha256]:
    yield from layer_keys(plan).values()
    yield from (status.key.entry for status in find_extensions(plan, store))
    yield from (
        project_key(plan.ground, extension).digest for extension in plan.extensions
    )  # of captures too
    yield from _wheel_keys(plan)


def _wheel_keys(plan: Plan) -> Iterator[Sha256]:
    for step in plan.steps:
        if isinstance(step, PythonStep):
            yield from (wheel_key(part, plan) for part in step.made_by(plan).parts)


LAYERS: Final = "ENVBUILDER_LAYER_STORE"
EXTENSIONS: Final = "ENVBUILDER_EXTENSION_STORE"


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


def share(job: Job) -> None:
    """Put into the stores what the build used and they lack. Only a verified build is shared."""
    if layers := job.shared.layers:
        for step, key in job.keys.items():
            layers.put(key, job.store.layer(key), f"the {step.name} layer", packed=False)
    if extensions := job.shared.extensions:
        for folder, name in compiled_entries(job):
            if job.store.holds(folder, whole=True):
                extensions.put(Sha256(folder.name), folder, f"`{name}`", packed=True)


def compiled_entries(job: Job) -> Iterator[tuple[Path, str]]:
    """Yield folder and name of each compiled extension and built wheel of the plan that the cache has."""
    for status in find_extensions(job.plan, job.store):
        if status.compiled:
            yield job.store.extension(status.key.entry), label(status.extension, status.name)
    for folder in map(job.store.extension, _wheel_keys(job.plan)):
        for wheel in folder.glob("*.whl"):
            yield folder, wheel.name
