"""The build context of the commands that build, lock or read artifacts."""

from pathlib import Path
from typing import Final

from envbuilder.builder.context import BuildContext
from envbuilder.commands._console import open_console, open_runner
from envbuilder.commands.context import Session, open_store
from envbuilder.core.system import Limits, usable_cores, usable_memory, user_ids

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
