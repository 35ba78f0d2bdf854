"""The result of a build, as the command shows and answers it."""

from dataclasses import dataclass
from pathlib import Path

from envbuilder.artifacts.outputs import Outputs, Record
from envbuilder.core.answer import Answer
from envbuilder.core.findings import Finding


class BuiltRecipe(Answer):
    """The result of one build. A failed one has `log` and no artifacts. One of several has `exit_code` and `seconds`."""

    name: str
    sif: Path = Path()
    sif_sha256: str = ""
    sif_bytes: int = 0
    layout: Path = Path()
    manifest: str = ""
    tree_bytes: int = 0
    recipe_sha256: str = ""  # of the recipe's values, and of the lock, that the artifacts are made from
    lock_sha256: str = ""
    tested: tuple[str, ...] = ()  # "SIF" and "image", each with the sha256 of the tests that passed there
    image: str = ""
    built: bool
    log: str = ""
    exit_code: int = 0
    seconds: float = 0


class PlannedRecipe(Answer):
    """The plan of a recipe, and the commands of the layers that the cache lacks."""

    name: str
    plan: str
    commands: tuple[str, ...]

    def text(self) -> str:
        return f"{self.plan}\n" + "\n".join(f"$ {line}" for line in self.commands)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """The artifacts of one recipe after a build."""

    outputs: Outputs
    record: Record
    done: bool  # False: there was nothing to build
    image: str  # its name in the Docker engine; "" without an engine
    findings: tuple[Finding, ...]
    not_loaded: str = ""  # why the image is in no Docker engine
    tested: bool = False  # the artifacts were there, and were tested anew

    @property
    def words(self) -> str:
        unbuilt = (
            "nothing to build; tested with the recipe's tests of now" if self.tested else "nothing to do"
        )
        return "built and verified" if self.done else unbuilt

    def answer(self) -> BuiltRecipe:
        return BuiltRecipe(
            name=self.outputs.name,
            sif=self.outputs.sif,
            sif_sha256=self.record.sif,
            sif_bytes=self.record.sif_size,
            layout=self.outputs.image,
            manifest=f"sha256:{self.record.manifest}",
            tree_bytes=self.record.content_size,
            recipe_sha256=self.record.recipe,
            lock_sha256=self.record.lock,
            tested=self.record.tested,
            image=self.image,
            built=self.done,
        )

    def text(self) -> str:
        """Return the output of the command."""
        image = self.image or f"not loaded: {self.not_loaded}"
        compared = f"  of     recipe sha256:{self.record.recipe[:12]}, lock sha256:{self.record.lock[:12]}"
        lines = [
            f"{self.outputs.name}: {self.words}",
            *(() if self.done else (compared,)),
            f"  SIF    {self.outputs.sif}  {self.record.sif_size / 1e9:.2f} GB  sha256:{self.record.sif}",
            f"  image  {image}  sha256:{self.record.manifest}",
            f"  layout {self.outputs.image}  (a tree of {self.record.content_size / 1e9:.2f} GB)",
        ]
        return "\n".join(lines)
