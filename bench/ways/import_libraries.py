"""Import the libraries that `envbuilder check` needs, as it does: the lower bound of its cost."""

import gc
from importlib import import_module

gc.set_threshold(100_000)  # as envbuilder/__main__.py
for name in ("packaging.requirements", "typer", "yaml"):
    import_module(name)
gc.freeze()
