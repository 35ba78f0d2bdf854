"""The start layer: what each Python of the environment runs first. That Python byte-compiles it."""

from dataclasses import dataclass
from pathlib import Path

from envbuilder.build.assemble.byte_code import ENVIRONMENT
from envbuilder.build.assemble.sandbox import Mount, Root, sandboxed
from envbuilder.build.assemble.step import Job, OtherSteps, write_text
from envbuilder.core.process import Command
from envbuilder.lock.model import Artifact
from envbuilder.plan.model import OsStep, StartStep


@dataclass(frozen=True, slots=True, kw_only=True)
class StartMaker:
    """Make the start step."""

    step: StartStep
    job: Job

    def inputs(self) -> tuple[Artifact, ...]:
        return ()

    def commands(self, work: Path, root: Root) -> tuple[Command, ...]:
        return (compile_command(self.step, root=Root(os=root.os), tree=work / "tree"),)

    def write_layer(self, out: Path, work: Path, others: OtherSteps) -> None:
        root, tree = Root(os=others.tree(OsStep)), work / "tree"
        write_start_files(self.step, tree)
        self.job.runner.run(compile_command(self.step, root=root, tree=tree))
        self.job.pack(self.step, tree, out)

    def write_inputs(self, folder: Path) -> None:
        write_start_files(self.step, folder / "start")


def compile_command(step: StartStep, *, root: Root, tree: Path) -> Command:
    """Byte-compile the whole layer at its final path. Byte code is unchecked, since a read-only image cannot change."""
    return sandboxed(
        root,
        (f"/usr/bin/python{step.python}", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "/opt"),
        why="byte-compile what each Python starts with",
        mounts=(Mount(source=tree / "opt", target="/opt", writable=True),),
        env=ENVIRONMENT,
    )  # fmt: skip


def write_start_files(step: StartStep, tree: Path) -> None:
    """Write the layer's files below `tree`, without their byte code."""
    for path, text in step.files:
        write_text(tree / path, text, mode=0o755 if text.startswith("#!") else 0o644)
