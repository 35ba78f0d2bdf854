"""Share layers, compiled extensions and built wheels with other machines: open the stores, and put there what a build used."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from envbuilder.builder.context import BuildContext
from envbuilder.builder.engine import Job, SharedStores
from envbuilder.builder.extensions.list import find_extensions, label
from envbuilder.builder.extensions.wheels import wheel_folders
from envbuilder.core.cache import Sha256
from envbuilder.plan.model import PythonStep

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
    for one in find_extensions(job.plan, job.store):
        if one.compiled:
            yield job.store.extension(one.key.entry), label(one.extension, one.name)
    for step in job.plan.steps:
        if isinstance(step, PythonStep):
            for folder in wheel_folders(step, job):
                for wheel in folder.glob("*.whl"):
                    yield folder, wheel.name
