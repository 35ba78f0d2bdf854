"""The folder of a step that every runner gives its program: SPEC, and INPUTS as links to files of the cache."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from envbuilder import steps
from envbuilder.builder.job import Job, tools
from envbuilder.core.cache import Store, link_or_copy, remove_tree, save_text
from envbuilder.core.console import Step
from envbuilder.core.process import Command, Runner
from envbuilder.layers.layer import Layer
from envbuilder.lock.model import Artifact
from envbuilder.plan.contents import runtime_program
from envbuilder.plan.documents import write_documents
from envbuilder.plan.model import OsStep, Plan, RuntimeStep
from envbuilder.plan.model import Step as PlanStep
from envbuilder.plan.program import INPUTS, OUT, SPEC, Program

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


def outside_command(program: Program, work: Path) -> Command:
    """Return the command that runs a program of the interpreter `OUTSIDE`. Its step's folder and its OUT are in `work`."""
    step = work / Path(SPEC).parent.name
    words = (
        steps.FOLDER / program.files[0], step / Path(SPEC).name, step / Path(INPUTS).name, work / Path(OUT).name
    )  # fmt: skip
    argv = (sys.executable, "-I", *map(str, words))
    return Command(argv=argv, env=tuple(steps.ENVIRONMENT.items()), why=program.why, bare=True, merged=True)


def run_outside(
    program: Program, work: Path, store: Store, runner: Runner, on_line: Callable[[str], None] | None = None
) -> Path:
    """Run a program of the interpreter `OUTSIDE` in the new folder `work`. Returns its OUT."""
    command, out = outside_command(program, work), work / Path(OUT).name
    write_step(program, work / Path(SPEC).parent.name, store)
    out.mkdir()
    runner.run(command, on_line=on_line)
    return out


def unpack_packages(debs: Sequence[Artifact], plan: Plan, root: Path, store: Store, runner: Runner) -> None:
    """Unpack packages into the new folder `root`, and configure none."""
    (program,) = OsStep(suite="", gcc=plan.os.gcc, artifacts=tuple(debs)).made_by(plan).parts
    work = root.with_name(f"{root.name}-packages")
    (run_outside(program, work, store, runner) / "root").rename(root)
    remove_tree(work)


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


def write_runtime_layer(
    step: RuntimeStep, job: Job, layers: Mapping[type[PlanStep], Layer], out: Path, work: Path
) -> None:
    """Write the runtime layer. `layers` are all others. They are not unpacked if the store has their trees."""
    trees = {type(lower): job.store.tree(key) for lower, key in job.keys.items()}
    documents = write_documents(job.plan, layers, trees, tools())
    program = runtime_program(step, documents)
    job.pack(step, run_outside(program, work, job.store, job.runner), out)
