"""What a build asks of an engine, whichever it is: it turns a plan into layers, each in the store under a key of its own."""

from concurrent.futures import Executor, Future
from typing import Protocol

from envbuilder.build.engine_names import EngineName
from envbuilder.build.keys import layer_keys
from envbuilder.core.cache import Store, remove_tree, sha256_file
from envbuilder.core.process import Command
from envbuilder.layers.layer import Layer, load_layer
from envbuilder.lock.model import Artefact
from envbuilder.plan.model import Plan, Step


class Engine(Protocol):
    """One of the ways from a plan to its layers."""

    @property
    def name(self) -> EngineName: ...

    def need_tools(self) -> None:
        """Raise ToolError with a finding for every program that is missing, too old or not set up."""
        ...

    def artefacts(self, plan: Plan) -> tuple[Artefact, ...]:
        """What the layers that the store lacks are made of; raises BuildError for a plan that this engine cannot follow."""
        ...

    def start(self, plan: Plan, pool: Executor) -> "tuple[Future[Layer], ...]":
        """Begin every layer of the plan; `pool` needs a thread for each of them and its tree."""
        ...

    def commands(self, plan: Plan) -> tuple[Command, ...]:
        """The commands of the layers that the store lacks, with `WORK` for the folder that each run makes anew."""
        ...


def missing_steps(plan: Plan, store: Store, engine: EngineName) -> tuple[Step, ...]:
    """The steps whose layers are not in the store."""
    return tuple(
        step for step, key in layer_keys(plan, engine).items() if load_layer(store.layer(key)) is None
    )


def discard_damaged(plan: Plan, store: Store, engine: EngineName) -> tuple[str, ...]:
    """Remove layers that are no longer what they were when they were made, and their trees; returns their names."""
    names: list[str] = []
    for key in layer_keys(plan, engine).values():
        with store.lock(f"layer-{key}"):
            layer = load_layer(store.layer(key))
            if layer is None or sha256_file(layer.blob) == layer.digest:
                continue
            names.append(layer.name)
            for folder in (layer.folder, store.tree(key)):
                if folder.is_dir():
                    remove_tree(folder)
    return tuple(names)
