"""OCI images: descriptors, manifests and configurations in `model`, names in `naming`.

`layout` writes the image of a build. `reader` reads any image, whatever wrote it.
"""
