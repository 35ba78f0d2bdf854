"""A locked image as an OCI layout: what lies beside its blobs and says which images are there."""

from typing import Final

from envbuilder.artifacts.oci.model import LAYOUT, Descriptor, make_index, parse_manifest
from envbuilder.lock.base_image.locked import LockedBase

INDEX: Final = "index.json"
_REFERENCE: Final = "org.opencontainers.image.ref.name"  # by which other tools find one of several


def layout_files(base: LockedBase, index: bytes = b"") -> dict[str, bytes]:
    """Name → content of the files that make a folder with the image's blobs a layout; `index` is what names the others there.

    An index that cannot be read is begun anew: the blobs are found by their digests.
    """
    try:
        others = parse_manifest(index).manifests if index else ()
    except ValueError:
        others = ()
    own = Descriptor(
        media_type=base.manifest.media_type,
        digest=base.manifest.digest,
        size=base.manifest.size,
        annotations=((_REFERENCE, base.reference),),
    )
    listed = [own, *(one for one in others if one.annotations != own.annotations)]
    listed.sort(key=lambda one: (one.annotations, one.digest))
    return {"oci-layout": LAYOUT, INDEX: make_index(listed).content}
