"""The console of the commands that show progress, and the runner of those that use the toolbox."""

import os
from pathlib import Path

from envbuilder.commands.context import OUTPUT, Session
from envbuilder.core.cache import Store, remove_tree
from envbuilder.core.console import Console, folds
from envbuilder.core.private import kept_out
from envbuilder.core.process import SYSTEM_PATH, ProcessRunner
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
