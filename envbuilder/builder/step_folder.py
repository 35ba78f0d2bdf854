"""The folder of a step that every runner gives its program: SPEC, and INPUTS as links to files of the cache."""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from envbuilder import steps
from envbuilder.core.cache import Store, link_or_copy, save_text
from envbuilder.core.console import Step as ShownStep
from envbuilder.core.process import Command, Runner
from envbuilder.plan.program import INPUTS, OUT, SPEC, Program

_STEP: Final = Path(SPEC).parent.name
_PROGRESS: Final = re.compile(r"(\d{1,9})/(\d{1,9}) (.{1,200})")  # DONE/TOTAL WHAT


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


def outside_command(program: Program, folder: Path, out: Path) -> Command:
    """Return the command that runs a program of the interpreter `OUTSIDE`. `folder` is its step's."""
    words = (steps.FOLDER / program.files[0], folder / Path(SPEC).name, folder / Path(INPUTS).name, out)
    argv = (sys.executable, "-I", *map(str, words))
    return Command(
        argv=argv, env=tuple(steps.ENVIRONMENT.items()), why=program.why, bare=True, merged=True
    )


def run_outside(
    program: Program, folder: Path, store: Store, runner: Runner, on_line: Callable[[str], None] | None = None
) -> Path:
    """Run a program of the interpreter `OUTSIDE` in a new folder. Returns its OUT."""
    out = folder / Path(OUT).name
    write_step(program, folder / _STEP, store)
    out.mkdir()
    runner.run(outside_command(program, folder / _STEP, out), on_line=on_line)
    return out


def progress_reader(shown: ShownStep, log: Callable[[str], None]) -> Callable[[str], None]:
    """Return a reader of a program's lines, which shows its progress and logs all else."""
    total = 0

    def read(line: str) -> None:
        nonlocal total
        log(line)
        if match := _PROGRESS.fullmatch(line):
            done, number, what = int(match[1]), int(match[2]), match[3]
            if done <= 1 or number != total:
                total = number
                shown.expect(total, items=True)
            shown.advance(1)
            shown.show_note(what)

    return read
