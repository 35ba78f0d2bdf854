"""The engine that composes layers from locked files, without a daemon and without root.

`engine` orders the layers. `os`, `python`, `cuda` and `runtime` make them. `sandbox` isolates the programs that they run.
"""
