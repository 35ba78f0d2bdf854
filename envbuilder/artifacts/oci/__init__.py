"""OCI images: descriptors, manifests and configurations in `model`, names in `reference` and `naming`.

`layout` writes the image of a build. `reader` reads any image, whatever wrote it.
"""
