"""The engine that composes layers from locked files, without a daemon and without root.

`engine` says which layer waits for which. `os`, `python`, `cuda` and `runtime` make them, in the sandbox of `sandbox`.
"""
