"""The extensions layer: what a recipe's extensions compile to, made without a GPU for exactly the recipe's GPUs.

`build` makes or finds each extension, `cache` is its entry in the store, `programs` are what runs for it, and `install` writes the
layer.
"""

from envbuilder.build.extensions.build import (
    ExtensionBuilder,
    ExtensionStatus,
    extension_commands,
    find_extensions,
)
from envbuilder.build.extensions.cache import CachedExtension
from envbuilder.build.extensions.install import install_extensions
from envbuilder.build.extensions.programs import container_compiles, need_calls, need_sources
from envbuilder.build.extensions.stage_sources import stage_sources

__all__ = [
    "CachedExtension",
    "ExtensionBuilder",
    "ExtensionStatus",
    "container_compiles",
    "extension_commands",
    "find_extensions",
    "install_extensions",
    "need_calls",
    "need_sources",
    "stage_sources",
]
