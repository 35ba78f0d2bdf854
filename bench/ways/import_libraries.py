"""Imports the libraries that no `envbuilder check` can do without, as it does: the least that one could take."""

import gc
from importlib import import_module

gc.set_threshold(100_000)  # as envbuilder/__main__.py
for name in ("packaging.requirements", "typer", "yaml"):
    import_module(name)
gc.freeze()
