"""What a build reports: the artifacts, and whether there was anything to do."""

from dataclasses import dataclass

from envbuilder.artifacts.outputs import Outputs, Record
from envbuilder.core.findings import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """The artifacts of one recipe after a build."""

    outputs: Outputs
    record: Record
    done: bool  # False: there was nothing to do
    image: str  # its name in the Docker engine; "" without an engine
    findings: tuple[Finding, ...]

    def summary(self) -> dict[str, object]:
        """Return the data of the JSON answer."""
        return {
            "name": self.outputs.name,
            "sif": str(self.outputs.sif),
            "sif_sha256": self.record.sif,
            "sif_bytes": self.record.sif_size,
            "layout": str(self.outputs.image),
            "manifest": f"sha256:{self.record.manifest}",
            "tree_bytes": self.record.content_size,
            "image": self.image,
            "built": self.done,
        }

    def text(self) -> str:
        """Return the answer for people."""
        status = "built and verified" if self.done else "nothing to do"
        image = self.image or "not loaded: no Docker engine is running"
        lines = [
            f"{self.outputs.name}: {status}",
            f"  SIF    {self.outputs.sif}  {self.record.sif_size / 1e9:.2f} GB  sha256:{self.record.sif}",
            f"  image  {image}  sha256:{self.record.manifest}",
            f"  layout {self.outputs.image}  (a tree of {self.record.content_size / 1e9:.2f} GB)",
        ]
        return "\n".join(lines)
