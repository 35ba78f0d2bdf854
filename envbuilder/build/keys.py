"""What decides the bytes of a layer and of a build's artefacts, known without anything that makes them."""

from importlib import metadata
from typing import Final

import zstandard

from envbuilder import __version__
from envbuilder.build.engine_names import EngineName
from envbuilder.core.cache import Sha256
from envbuilder.layers.writer import BLOCK_SIZE, PARAMETERS
from envbuilder.plan.model import Plan, RuntimeStep, Step

# What decides a layer's bytes beside the tools.
PACKING: Final = (
    f"frames of {BLOCK_SIZE}, {', '.join(f'{name} {value}' for name, value in PARAMETERS.items())}"
)
RUNTIME: Final = 2  # raise it when we write a runtime layer in another way
OURS: Final = f"envbuilder {__version__}, runtime {RUNTIME}"
# What an engine adds to the keys of its layers; raise its number when it makes other bytes of the same plan.
_ENGINES: Final = {EngineName.ASSEMBLE: (), EngineName.DOCKER: ("docker 1",)}


def tools() -> tuple[str, ...]:
    """The tools whose versions decide a layer's bytes, part of every layer's key."""
    return (f"zstd {'.'.join(map(str, zstandard.ZSTD_VERSION))}", f"uv {metadata.version('uv')}")


def layer_keys(plan: Plan, engine: EngineName) -> dict[Step, Sha256]:
    """The key of each step's layer and tree in the store, in the plan's order."""
    every = (*tools(), PACKING, *_ENGINES[engine])
    return {
        # The runtime layer says by which envbuilder it was made.
        step: plan.step_key(step, " ".join((*every, OURS) if isinstance(step, RuntimeStep) else every))
        for step in plan.steps
    }


def record_key(plan: Plan, engine: EngineName) -> str:
    """The build key, and the tools and the engine that decide bytes beside it."""
    return " ".join((plan.key, *tools(), PACKING, *_ENGINES[engine], OURS))
