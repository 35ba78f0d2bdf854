"""The extensions layer: everything that a recipe's extensions compile, made without a GPU for exactly the recipe's GPUs."""

from envbuilder.build.extensions.build import NVCC_MEMORY, Found, Kept, Shop
from envbuilder.build.extensions.install import arrange, installed_folder, make_index
from envbuilder.build.extensions.list import rows, table

__all__ = [
    "NVCC_MEMORY",
    "Found",
    "Kept",
    "Shop",
    "arrange",
    "installed_folder",
    "make_index",
    "rows",
    "table",
]
