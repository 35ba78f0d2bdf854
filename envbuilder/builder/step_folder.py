"""The folder of a step that every runner gives its program: SPEC, and INPUTS as links to files of the cache."""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from envbuilder import steps
from envbuilder.core.cache import Store, link_or_copy, save_text
from envbuilder.core.console import Step
from envbuilder.core.process import Command, Runner
from envbuilder.plan.program import INPUTS, SPEC, Program

_PROGRESS: Final = re.compile(r"(\d{1,9})/(\d{1,9}) (.{1,80})")


def write_step(program: Program, folder: Path, store: Store, parts: Mapping[str, Path] | None = None) -> None:
    """Write SPEC and INPUTS of a program. `parts`: the name of each part that has run → its OUT.

    The store must have the inputs.
    """
    inputs = folder / Path(INPUTS).name
    inputs.mkdir(parents=True)
    save_text(folder / Path(SPEC).name, program.spec)
    for path, text in program.texts:
        save_text(inputs / path, text)
    for path, artifact in program.inputs:
        target = inputs / path
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(store.artifact(artifact.sha256), target)
    for name, out in (parts or {}).items():
        out.rename(inputs / name)


def run_outside(program: Program, folder: Path, out: Path, runner: Runner) -> None:
    """Run a program that needs no root, with the Python of envbuilder. `folder` is what `write_step` wrote; OUT is made."""
    out.mkdir(parents=True)
    words = (folder / Path(SPEC).name, folder / Path(INPUTS).name, out)
    argv = (sys.executable, "-I", str(steps.FOLDER / program.files[0]), *map(str, words))
    runner.run(Command(argv=argv, why=program.why, bare=True))


def progress(shown: Step) -> Callable[[str], None]:
    """Return a reader of a program's lines that shows its progress."""
    last = 0

    def read(line: str) -> None:
        nonlocal last
        if matched := _PROGRESS.fullmatch(line):
            done, total = int(matched[1]), int(matched[2])
            if shown.total != total:
                shown.expect(total, items=True)
                last = 0
            shown.advance(done - last)
            last = done
            shown.show_note(matched[3])

    return read
