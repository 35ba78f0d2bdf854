"""A client of OCI registries, for reading base images and for pushing and pulling our own artefacts.

The libraries there are for this (`oras`, the Docker SDK's engine calls) check no digest on what they fetch, cannot go on
where a transfer broke, and open connections and start programs by themselves; here all goes through `fetch` and `command`.
"""
