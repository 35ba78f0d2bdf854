"""The engine that composes layers from locked files, without a daemon and without root.

`engine` runs the steps. `os`, `python`, `cuda`, `start` and `runtime` each make one layer, in the
sandbox of `sandbox`.
"""
