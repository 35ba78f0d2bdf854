"""Trees as bytes: one canonical tar a layer, one manifest line a path.

Every artefact is made from these tars and every proof compares these manifests, so a tree has one spelling: sorted
paths, numeric owners, times clamped to the epoch, nothing of the machine that wrote it.
"""

from dataclasses import dataclass
from pathlib import Path

from envbuilder.store import Sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A finished layer in a store folder: `layer.tar.zst`, `manifest.txt` and `layer.json` (these fields)."""

    name: str  # os | cuda | python | extensions | runtime
    folder: Path
    digest: Sha256  # of layer.tar.zst
    size: int  # of layer.tar.zst, bytes
    diff_id: Sha256  # of the tar
    tar_size: int  # of the tar, bytes
    content_size: int  # sum of the sizes of its regular files, bytes

    @property
    def blob(self) -> Path:
        return self.folder / "layer.tar.zst"

    @property
    def manifest(self) -> Path:
        return self.folder / "manifest.txt"
