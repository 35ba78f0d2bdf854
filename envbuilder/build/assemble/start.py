"""The start layer: what each Python of the environment runs first, byte-compiled by that Python."""

from pathlib import Path

from envbuilder.build.assemble.byte_code import ENVIRONMENT
from envbuilder.build.assemble.sandbox import Mount, Root, sandboxed
from envbuilder.core.process import Command, Runner
from envbuilder.plan.model import StartStep


def compile_command(step: StartStep, *, root: Root, tree: Path) -> Command:
    """Byte-compile all of the layer where the image will have it; unchecked, for a read-only image cannot change."""
    return sandboxed(
        root,
        (f"/usr/bin/python{step.python}", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "/opt"),
        why="byte-compile what each Python starts with",
        mounts=(Mount(source=tree / "opt", target="/opt", writable=True),),
        env=ENVIRONMENT,
    )  # fmt: skip


def write_start_files(step: StartStep, tree: Path, *, root: Root, runner: Runner) -> None:
    """Write the layer's files below `tree`, and their byte code."""
    for path, text in step.files:
        target = tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        target.chmod(0o755 if text.startswith("#!") else 0o644)
    runner.run(compile_command(step, root=root, tree=tree))
