"""The extensions layer: a recipe's extensions, compiled without a GPU for exactly the recipe's GPUs.

`build` compiles each extension or takes it from the store, `cache` is its entry there, `list` reports the entries, `programs` are the
programs that compile it, `stage_sources` writes its sources into the build directory, and `install` writes the layer.
"""
