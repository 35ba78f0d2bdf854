"""The file system in a SIF: `writer` makes it of the layers' compressed bytes, `reader` reads any squashfs."""
