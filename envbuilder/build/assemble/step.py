"""What a kind of step brings to a build: its layer made by assemble, and the files that its stage in BuildKit reads."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from envbuilder.build.assemble.sandbox import Root
from envbuilder.build.engine import EngineName
from envbuilder.core.cache import Sha256, Store, link_or_copy
from envbuilder.core.console import Console
from envbuilder.core.limits import Limits
from envbuilder.core.process import Command, Runner
from envbuilder.layers.layer import Layer, write_layer
from envbuilder.lock.model import Artifact
from envbuilder.plan.model import CudaStep, OsStep, Plan, PythonStep, Step

KeptStep = OsStep | PythonStep | CudaStep  # later steps run in these trees, so the store keeps them


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every step of one plan is made with."""

    plan: Plan
    store: Store
    runner: Runner
    console: Console
    limits: Limits
    engine: EngineName

    def pack(self, step: Step, tree: Path, out: Path) -> None:
        """Write the step's layer from a tree into the folder `out`."""
        write_layer(
            name=step.name, tree=tree, folder=out, epoch=self.plan.epoch, threads=self.limits.threads,
            omit=self.plan.shared_folders(step),
        )  # fmt: skip


class OtherSteps(Protocol):
    """The rest of a build, as one step sees it. Each method waits until what it returns is made."""

    def layers(self) -> dict[type[Step], Layer]:
        """Return every layer but the runtime's."""
        ...

    def layer(self, kind: type[Step]) -> Layer: ...

    def tree(self, kind: type[KeptStep]) -> Path:
        """Return the unpacked layer of the plan's step of this kind."""
        ...

    def kept_trees(self) -> dict[type[Step], Path]:
        """Return where the unpacked layer of each step lies, if it is kept."""
        ...

    def root(self) -> Root:
        """Return the root that extensions are compiled in."""
        ...


class StepMaker(Protocol):
    """How one step is made. `work` is a temporary folder."""

    def inputs(self) -> tuple[Artifact, ...]:
        """Return what is fetched before the layer is made."""
        ...

    def commands(self, work: Path, root: Root) -> tuple[Command, ...]:
        """Return the programs that make the layer, for `--dry-run`."""
        ...

    def write_layer(self, out: Path, work: Path, others: OtherSteps) -> None:
        """Write the layer into the folder `out`."""
        ...

    def write_inputs(self, folder: Path) -> None:
        """Write what the step's stage reads into the folder that BuildKit builds from."""
        ...


class TreeMaker(StepMaker, Protocol):
    """How a step is made whose tree is kept."""

    def write_tree(self, work: Path, others: OtherSteps) -> None:
        """Write the tree into `work/tree`."""
        ...


def link_files(folder: Path, files: Iterable[tuple[str, str]], store: Store) -> None:
    """Fill a folder with links to the store: name → sha256."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, digest in files:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            link_or_copy(store.artefact(Sha256(digest)), target)


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def write_settings(path: Path, values: Mapping[str, str], *, export: bool = False) -> None:
    """Write assignments as the shell reads them."""
    word = "export " if export else ""
    write_text(path, "".join(f"{word}{name}={shlex.quote(value)}\n" for name, value in values.items()))
