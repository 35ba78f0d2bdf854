"""The extensions layer: everything that a recipe's extensions compile, made without a GPU for exactly the recipe's GPUs."""

from envbuilder.engines.extensions.layer import arrange, installed_folder, make_index
from envbuilder.engines.extensions.listing import rows, table
from envbuilder.engines.extensions.shop import NVCC_MEMORY, Found, Kept, Shop

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
