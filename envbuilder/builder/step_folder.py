"""The folder of a step that every runner gives its program: SPEC, and INPUTS as links to files of the cache."""

from collections.abc import Mapping
from pathlib import Path

from envbuilder.core.cache import Store, link_or_copy, save_text
from envbuilder.plan.program import INPUTS, SPEC, Program


def write_step(program: Program, folder: Path, store: Store, parts: Mapping[str, Path] | None = None) -> None:
    """Write SPEC and INPUTS of a program. `parts`: the name of each part that has run → its OUT.

    The store must have the inputs.
    """
    inputs = folder / Path(INPUTS).name
    inputs.mkdir(parents=True)
    save_text(folder / Path(SPEC).name, program.spec)
    for path, artifact in program.inputs:
        target = inputs / path
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(store.artifact(artifact.sha256), target)
    for name, out in (parts or {}).items():
        out.rename(inputs / name)
