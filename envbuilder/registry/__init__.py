"""A client of OCI registries: `push` and `pull` transfer artifacts, `client` and `download` read base images.

Libraries such as `oras` check no digest of what they fetch and cannot resume a broken transfer.
They also open connections and start programs themselves; here everything goes through `sources/http`
and `core/process`.
"""
