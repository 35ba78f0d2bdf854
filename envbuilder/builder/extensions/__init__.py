"""The extensions layer: a recipe's extensions, compiled without a GPU for exactly the recipe's GPUs.

`build` runs the program of each extension or takes its result from the store, `cache` is its entry there, and `list` reports the
entries. `envbuilder/steps/extension.py` is the program, and `plan/extension.py` says what decides its bytes.
"""
