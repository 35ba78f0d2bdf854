"""The runner that makes layers in a sandbox of this machine, without a daemon and without root.

`runner` orders the layers. `distribution` makes that of the OS. `root` is the root of the sandbox, `foreign` has the tools of
another processor.
"""
