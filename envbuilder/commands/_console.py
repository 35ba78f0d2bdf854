"""The console of the commands that show progress."""

from typing import Final

from envbuilder.commands.context import Session
from envbuilder.core.console import Console, folds
from envbuilder.core.process import ProcessRunner

PATIENCE: Final = 1.0  # seconds to the end; each file gets its final name when it is whole


def open_console(session: Session, runner: ProcessRunner | None = None) -> Console:
    """Return the console for progress. From here on Ctrl-C ends the process soon, with the programs of `runner`."""
    shown = Console(color=session.color, folds=folds(session.environment))

    def stop() -> None:
        if runner is not None:
            runner.stop()
        shown.close()

    session.stop, session.patience = stop, PATIENCE
    return shown
