"""What commands open for their work: a console, a runner of programs, a context for builds and artifacts."""

import os
from pathlib import Path
from typing import Final

from envbuilder.builder.context import BuildContext
from envbuilder.commands.context import OUTPUT, Session, open_store
from envbuilder.core.cache import Store, remove_tree
from envbuilder.core.console import Console, folds
from envbuilder.core.private import kept_out
from envbuilder.core.process import SYSTEM_PATH, ProcessRunner
from envbuilder.core.system import Limits, usable_cores, usable_memory, user_ids
from envbuilder.runners.toolbox import PROGRAMS, toolbox_folder


def open_console(session: Session, runner: ProcessRunner | None = None) -> Console:
    """Return the console for progress. From here on Ctrl-C ends the process soon, with the programs of `runner`."""
    console = Console(color=session.color, folds=folds(session.environment))
    session.interrupts.add(console.close)
    if runner is not None:
        session.interrupts.add(runner.stop)
    return console


def say_closed(
    session: Session, place: Path, *paths: Path, instead: str = "choose another `--output`"
) -> None:
    """Say which folder keeps others from files that are for them, if one does. `build`, the default, is for its user."""
    ways = (way for path in paths if path.exists() for way in (path.absolute(), path.resolve()))
    closed = (kept_out(str(way)) for way in ways)
    if place != OUTPUT and (why := next(filter(None, closed), "")):
        Console(color=session.color).say(f"note: {why}, or {instead}")


def open_runner(session: Session, store: Store) -> ProcessRunner:
    """Return a runner that finds the toolbox's programs before those of this machine. A damaged toolbox is removed."""
    toolbox = toolbox_folder(store)
    if toolbox.is_dir() and not store.holds(toolbox):
        with store.lock("toolbox"):
            if toolbox.is_dir() and not store.holds(toolbox):  # another process may have made it again
                remove_tree(toolbox)
    path = session.environment.get("PATH", SYSTEM_PATH)
    return ProcessRunner({**session.environment, "PATH": f"{toolbox / PROGRAMS}{os.pathsep}{path}"})


KEPT: Final = ": finished parts are kept; run the same command to go on"  # of an interrupted build


def build_context(session: Session, recipes: Path, *, writes: bool = True, note: str = "") -> BuildContext:
    """Return the cache, the runner, the console and the limits that the environment asks for.

    `note` is what the command says of its work when it is interrupted.
    """
    store = open_store(session, writes=writes)
    runner = open_runner(session, store)
    context = BuildContext(
        store=store,
        runner=runner,
        console=open_console(session, runner),
        environment=session.environment,
        recipes=recipes,
        limits=Limits(threads=usable_cores(), memory=usable_memory(), root=user_ids()[0] == 0),
    )

    def stop() -> None:
        for call in tuple(context.when_interrupted):
            call()

    session.interrupts.add(stop, note)
    return context
