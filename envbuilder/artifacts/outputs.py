"""The files of a recipe's artifacts, and the record of the build that wrote them."""

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, cast

from envbuilder.core.cache import Sha256, remove_tree, save_text, sha256_file
from envbuilder.core.errors import UsageError
from envbuilder.core.models import adapter
from envbuilder.core.plain import one_line, pasted
from envbuilder.core.private import is_trusted
from envbuilder.core.processor import PROCESSORS, Processor, own_processor

SIF: Final = ".sif"
VERSIONS: Final = "ENVBUILDER_VERSIONS"  # how many versions of a SIF a folder keeps
OCI_LAYOUT: Final = "oci-layout"  # a file in the folder of an image
_RECIPE: Final = (".yaml", ".yml")
VARIANT: Final = "@"  # in a recipe's name, before its variant: a100@torch2.6.0


def image_name(name: str) -> str:
    """Return the name of a recipe's image in the Docker engine. Variants of a matrix are its tags."""
    recipe, _, variant = name.partition(VARIANT)
    return f"envbuilder/{recipe}:{variant or 'latest'}"


def versions_to_keep(environment: Mapping[str, str]) -> int:
    """Return how many versions of a SIF a folder keeps, the current one among them; raises UsageError."""
    text = environment.get(VERSIONS, "") or "1"
    if not (text.isdecimal() and int(text) > 0):
        raise UsageError(f"{VERSIONS} is `{text}`", hint="write a number: 1 keeps the current SIF alone")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The files of one environment in the output folder."""

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
        """The record. A build with nothing to do compares it instead of reading 6 GB."""
        return self.folder / f"{self.name}.json"

    @property
    def exist(self) -> bool:
        """Whether the image or the SIF is there."""
        return self.sif.is_file() or self.image.exists()

    @property
    def image_name(self) -> str:
        return image_name(self.name)

    @property
    def bundle(self) -> Path:
        """The signed statement about image and SIF, after `envbuilder sign`."""
        return self.folder / f"{self.name}.sigstore.json"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The record of a build: the key of its inputs, the digests of the artifacts and of their files, its steps.

    A later build has nothing to do if its key is the same and its tests passed here. Recipe and lock are for people.
    """

    key: str
    manifest: Sha256
    sif: Sha256
    sif_size: int
    content_size: int  # bytes of all files in the tree
    recipe: str = ""  # sha256 of the values that decide the artifacts, as their label has it
    lock: str = ""  # the same of the lock
    path: str = ""  # of the recipe's file; `--recipes` may have named its folder
    tested: tuple[str, ...] = ()  # "SIF" and "image", each with the sha256 of the tests that passed there
    steps: tuple[tuple[str, float], ...] = ()  # title and seconds, as they ended
    # Path beside the record, sha256, and a state that each write changes: of the SIF and of each file of the layout.
    files: tuple[tuple[str, str, str], ...] = ()

    def knows_sif(self, sif: Path) -> bool:
        """Whether nothing wrote to the SIF since the build; raises OSError when it does not exist."""
        return (sif.name, self.sif, _state(sif)) in self.files

    def knows_image(self, image: Path) -> bool:
        """Whether the layout has this manifest."""
        return (image / "blobs/sha256" / self.manifest).is_file()

    def is_of(self, build_key: str) -> bool:
        return self.key.partition(" ")[0] == build_key

    def of_sif(self, sif: Path) -> "Record":
        """Return the record of the same build after its SIF was signed."""
        digest = sha256_file(sif)
        others = (file for file in self.files if file[0] != sif.name)
        files = ((sif.name, digest, _state(sif)), *others)
        return replace(self, sif=digest, sif_size=sif.stat().st_size, files=files)

    def of_files(self, outputs: Outputs) -> "Record":
        """Return the record with the files of the verified artifacts, after they got their names."""
        files = []
        for path in _files(outputs):
            name, digest = path.relative_to(outputs.folder).as_posix(), path.name
            if path == outputs.sif:
                digest = self.sif
            elif path.parent.name != "sha256":
                digest = sha256_file(path)
            files.append((name, digest, _state(path)))
        return replace(self, files=tuple(files))

    def compare(self, outputs: Outputs) -> "Record | str":
        """Return which file of the artifacts changed, otherwise the record with the states of now.

        A file is hashed where its state is not the one that was noted: a new hard link to it is enough for that.
        """
        noted = {name: (digest, state) for name, digest, state in self.files}
        files = []
        try:
            for path in _files(outputs):
                name, state = path.relative_to(outputs.folder).as_posix(), _state(path)
                if name not in noted:
                    return f"`{name}` was added"
                digest, before = noted.pop(name)
                if state != before and (
                    not stat.S_ISREG(path.lstat().st_mode) or sha256_file(path) != digest
                ):
                    return f"`{name}` differs"
                files.append((name, digest, state))
        except OSError as error:
            return f"`{error.filename}` cannot be read: {error.strerror}"
        return f"`{min(noted)}` is gone" if noted else replace(self, files=tuple(files))

    def save(self, path: Path) -> None:
        save_text(path, json.dumps(asdict(self), indent=1, sort_keys=True) + "\n")


def _files(outputs: Outputs) -> Iterator[Path]:
    """Yield the SIF, and everything in the layout that is no folder."""
    if outputs.sif.exists():
        yield outputs.sif
    for parent, _, names in os.walk(outputs.image):
        yield from (Path(parent, name) for name in sorted(names))


def _state(path: Path) -> str:
    """Return what no write leaves as it is. No program can set the time of change."""
    status = path.lstat()
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def environment_name(name: str) -> str:
    """Return the name of an environment that is given by its name, or by the path of its recipe or its SIF.

    Raises UsageError for a name with a line break, which would forge lines of answers and scripts.
    """
    path = Path(one_line(name))
    return path.stem if "/" in name or path.suffix in (SIF, *_RECIPE) else name


def need_no_folder(name: str) -> None:
    """Raise UsageError for a path that names a SIF, and that is a folder: an image's, or one with artifacts."""
    path = Path(name)
    is_image = ("/" in name or path.suffix == ".oci") and (path / OCI_LAYOUT).is_file()
    if not path.is_dir() or not (is_image or path.suffix == SIF):
        return
    if (path / OCI_LAYOUT).is_file():
        raise UsageError(
            f"`{name}` is an image, an OCI layout in a folder; a SIF or a recipe is expected",
            hint=f"`{pasted('envbuilder', 'verify', path)} SIF` compares it with a SIF",
        )
    inside = next(iter(sorted(path.glob(f"*{SIF}"))), path / f"NAME{SIF}")
    raise UsageError(
        f"`{name}` is a folder; a SIF or a recipe is expected",
        hint=f"a SIF in it is `{pasted(inside)}`; `{pasted('--artifacts', path)}` names the folder of a recipe's artifacts",
    )


def find_outputs(name: str, folder: Path) -> Outputs:
    """Return the output files of a recipe, given by name or file; for the path of a SIF, the files beside it.

    Of a recipe that was built for several processors, they are those for this machine's. Raises UsageError for a folder.
    """
    need_no_folder(name)
    named = Outputs(
        folder=Path(name).parent if Path(name).suffix == SIF else folder, name=environment_name(name)
    )
    if named.exist or Path(name).suffix == SIF:
        return named
    return _by_processor(named).get(own_processor(), named)


def names_built(name: str, folder: Path) -> tuple[str, ...]:
    """Return the name of a recipe, or the names of its variants if it was built for several processors."""
    named = Outputs(folder=folder, name=environment_name(name))
    if named.exist or Path(name).suffix == SIF:
        return (name,)
    end = next((suffix for suffix in _RECIPE if name.endswith(suffix)), "")
    base = name.removesuffix(f"{named.name}{end}")
    return tuple(f"{base}{outputs.name}{end}" for outputs in _by_processor(named).values()) or (name,)


def _by_processor(named: Outputs) -> dict[Processor | None, Outputs]:
    """Return those of a recipe's variants for one processor that are there; `envbuilder.recipe.matrix` names them."""
    mark = "-" if VARIANT in named.name else VARIANT
    every = ((kind, replace(named, name=f"{named.name}{mark}{kind.debian}")) for kind in PROCESSORS)
    return {kind: outputs for kind, outputs in every if outputs.exist}


def read_record(outputs: Outputs) -> Record | None:
    """Return the record without comparing it with the artifacts, or None. Another user's record does not count."""
    if not outputs.record.is_file() or not is_trusted(str(outputs.record)):
        return None
    try:
        return cast("Record", adapter(Record).validate_json(outputs.record.read_bytes(), extra="forbid"))
    except (OSError, ValueError):
        return None


def load_record(outputs: Outputs, changed: Callable[[str], None] = lambda _: None) -> Record | None:
    """Return the build record, or None if a file of the artifacts changed since the build or is another user's. `changed` is told which."""
    record = read_record(outputs)
    if record is None or not record.files:
        return None
    if any(os.path.lexists(path) and not is_trusted(str(path)) for path in (outputs.sif, outputs.image)):
        return None
    now = record.compare(outputs)
    if isinstance(now, str):
        changed(now)
        return None
    if now != record:
        with contextlib.suppress(OSError):  # of a folder that is read-only
            now.save(outputs.record)
    return now


def rejected(path: Path) -> Path:
    """Return where a rejected artifact is kept for inspection, until the next build."""
    return path.with_name(f"{path.name}.refused")


def drop_rejected(outputs: Outputs) -> None:
    """Remove the rejected artifacts of an earlier build."""
    sif, image = rejected(outputs.sif), rejected(outputs.image)
    sif.unlink(missing_ok=True)
    if image.is_symlink():  # of another user: nothing else makes one
        image.unlink()
    elif image.is_dir():
        remove_tree(image)
