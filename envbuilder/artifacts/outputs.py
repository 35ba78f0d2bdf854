"""Where the artefacts of a recipe are, and the record of what was built; known to all who only look for them."""

import contextlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from envbuilder.core.cache import Sha256, remove_tree, save_text, sha256_file

SIF: Final = ".sif"


def image_name(name: str) -> str:
    """What a Docker engine calls the image of a recipe."""
    return f"envbuilder/{name}:latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Where the artefacts of a plan go."""

    folder: Path
    name: str

    @property
    def sif(self) -> Path:
        return self.folder / f"{self.name}{SIF}"

    @property
    def image(self) -> Path:
        """The OCI layout."""
        return self.folder / f"{self.name}.oci"

    @property
    def record(self) -> Path:
        """What was built, so that a build with nothing to do can say so without reading 6 GB."""
        return self.folder / f"{self.name}.json"

    @property
    def image_name(self) -> str:
        """What a Docker engine calls the image."""
        return image_name(self.name)

    @property
    def bundle(self) -> Path:
        """The signed statement of image and SIF, where they were signed."""
        return self.folder / f"{self.name}.sigstore.json"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What stands in the record: the inputs' key, the artefacts' digests, and the files as they were left."""

    key: str
    manifest: Sha256
    sif: Sha256
    sif_size: int
    sif_time: int  # st_mtime_ns
    content_size: int  # bytes of all files in the tree

    def knows_sif(self, sif: Path) -> bool:
        """Whether the SIF is as it was left, by its size and time; raises OSError where it is not there."""
        status = sif.stat()
        return (status.st_size, status.st_mtime_ns) == (self.sif_size, self.sif_time)

    def knows_image(self, image: Path) -> bool:
        """Whether the layout has this manifest."""
        return (image / "blobs/sha256" / self.manifest).is_file()

    def of_sif(self, sif: Path) -> "Record":
        """The same build whose SIF has been signed since."""
        status = sif.stat()
        return replace(self, sif=sha256_file(sif), sif_size=status.st_size, sif_time=status.st_mtime_ns)

    def save(self, path: Path) -> None:
        save_text(path, json.dumps(asdict(self), indent=1, sort_keys=True) + "\n")


def find_outputs(name: str, folder: Path) -> Outputs:
    """Where `build` puts the artefacts of a recipe, by its name or its file; of a path to a SIF, those beside it."""
    path = Path(name)
    if path.suffix == SIF:
        return Outputs(folder=path.parent, name=path.stem)
    is_file = "/" in name or path.suffix in (".yaml", ".yml")
    return Outputs(folder=folder, name=path.stem if is_file else name)


def read_record(outputs: Outputs) -> Record | None:
    """The record as it stands, whatever has become of the artefacts; None where there is none."""
    try:
        return Record(**json.loads(outputs.record.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def load_any_record(outputs: Outputs) -> Record | None:
    """The record of the artefacts as they are, of whichever plan; None when they have changed since."""
    record = read_record(outputs)
    with contextlib.suppress(OSError):
        if record and record.knows_sif(outputs.sif) and record.knows_image(outputs.image):
            return record
    return None


def load_record(outputs: Outputs, key: str) -> Record | None:
    """The record of an earlier build whose artefacts are still what a plan of this key would give; else None."""
    record = load_any_record(outputs)
    return record if record and record.key == key else None


def rejected(path: Path) -> Path:
    """Where an artefact is kept that is not what was promised, until the next build, for a person to look at."""
    return path.with_name(f"{path.name}.refused")


def drop_rejected(outputs: Outputs) -> None:
    """Remove what an earlier build left there."""
    rejected(outputs.sif).unlink(missing_ok=True)
    if rejected(outputs.image).is_dir():
        remove_tree(rejected(outputs.image))
