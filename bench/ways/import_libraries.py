"""Imports the libraries that no `envbuilder check` can do without, as it does: the least that one could take."""

import gc

gc.set_threshold(100_000)  # as envbuilder/__main__.py

import packaging.requirements  # noqa: E402, F401
import typer  # noqa: E402, F401
import yaml  # noqa: E402, F401

gc.freeze()
