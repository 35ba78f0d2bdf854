"""The extensions layer: what a recipe's extensions compile to, made without a GPU for exactly the recipe's GPUs.

`build` makes or finds each extension, `cache` is its entry in the store, `commands` are the programs that run for it, and `install`
writes the layer. `list` reports what the store has.
"""

from envbuilder.build.extensions.build import (
    NVCC_MEMORY,
    ExtensionBuilder,
    ExtensionStatus,
)
from envbuilder.build.extensions.cache import CachedExtension
from envbuilder.build.extensions.commands import container_compiles, need_calls, need_sources
from envbuilder.build.extensions.install import install_extensions, installed_folder, make_index
from envbuilder.build.extensions.list import rows, table
from envbuilder.build.extensions.stage_sources import stage_sources

__all__ = [
    "NVCC_MEMORY",
    "CachedExtension",
    "ExtensionBuilder",
    "ExtensionStatus",
    "container_compiles",
    "install_extensions",
    "installed_folder",
    "make_index",
    "need_calls",
    "need_sources",
    "rows",
    "stage_sources",
    "table",
]
