"""The extensions layer: what a recipe's extensions compile to, made without a GPU for exactly the recipe's GPUs.

`build` makes each extension or takes it from the store, `cache` is its entry there, `list` reports what is there, `programs` are what
runs for it, `stage_sources` puts its sources where they run, and `install` writes the layer.
"""
