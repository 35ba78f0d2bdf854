"""One call of the command line: its options in common, what the environment says, and the answer it collects."""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from envbuilder.core.findings import Finding

if TYPE_CHECKING:
    from envbuilder.build.context import BuildContext
    from envbuilder.core.console import Console
    from envbuilder.core.process import ProcessRunner

Name = Annotated[
    str, typer.Argument(help="a recipe in `recipes/`, or a path to a recipe file", metavar="NAME")
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON envelope on stdout")]
Verbose = Annotated[
    int, typer.Option("-v", "--verbose", count=True, help="show each command; twice: its output as well")
]
NoColor = Annotated[bool, typer.Option("--no-color", help="no colour; NO_COLOR does the same")]
Recipes = Annotated[
    Path, typer.Option("--recipes", help="the folder of recipes", envvar="ENVBUILDER_RECIPES")
]
Profile = Annotated[
    str, typer.Option("--profile", help="the site: a file, or its name in `sites/`", envvar="ENVBUILDER_SITE")
]
Output = Annotated[Path, typer.Option("--output", help="the folder of artefacts")]
PATIENCE: Final = 1.0  # all is safe to end at any moment: each file gets its final name when it is whole
RECIPES: Final = Path("recipes")
OUTPUT: Final = Path("build")


@dataclass(slots=True)
class Session:
    """One call of the command line: how to answer, and the answer."""

    command: str = ""
    as_json: bool = False
    color: bool = True
    data: object = None
    text: str = ""
    findings: tuple[Finding, ...] = ()
    exit_code: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    stop: Callable[[], None] = lambda: None  # ends what runs, when the patience is over
    patience: float = 0.0  # seconds from an interrupt to the end; 0: what runs takes the time that it needs
    width: int = 0  # of the terminal that the answer goes to; 0 where it goes to a file or a program

    def begin(self, command: str, *, as_json: bool) -> None:
        """Forget an earlier call of this process."""
        fresh = Session(command=command, as_json=as_json)
        for one in fields(self):
            setattr(self, one.name, getattr(fresh, one.name))


SESSION: Final = Session()


@contextlib.contextmanager
def verb(command: str, *, as_json: bool, verbose: int, no_color: bool) -> Iterator[Session]:
    """Set the session up for one command."""
    from envbuilder.core import console  # noqa: PLC0415

    SESSION.command, SESSION.as_json = command, as_json
    SESSION.environment = dict(os.environ)
    SESSION.color = not no_color and not SESSION.environment.get("NO_COLOR")
    SESSION.width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    console.setup(verbose)
    yield SESSION


def cache_folder(session: Session) -> Path:
    import platformdirs  # noqa: PLC0415

    return Path(session.environment.get("ENVBUILDER_CACHE") or platformdirs.user_cache_dir("envbuilder"))


def console(session: Session, runner: "ProcessRunner | None" = None) -> "Console":
    """Where progress is shown; from here on Ctrl-C ends the process soon, with the programs of `runner`."""
    from envbuilder.core.console import Console, folds  # noqa: PLC0415

    shown = Console(color=session.color, folds=folds(session.environment))

    def stop() -> None:
        if runner is not None:
            runner.stop()
        shown.close()

    session.stop, session.patience = stop, PATIENCE
    return shown


def workshop(session: Session, recipes: Path, *, writes: bool = True) -> "BuildContext":
    """What the environment says: cache folder, cores, memory."""
    from envbuilder.build.context import BuildContext  # noqa: PLC0415
    from envbuilder.core.cache import Store  # noqa: PLC0415
    from envbuilder.core.limits import Limits, usable_cores, usable_memory  # noqa: PLC0415
    from envbuilder.core.process import ProcessRunner  # noqa: PLC0415

    runner = ProcessRunner(session.environment)
    return BuildContext(
        store=Store(cache_folder(session), create=writes),
        runner=runner,
        console=console(session, runner),
        environment=session.environment,
        recipes=recipes,
        limits=Limits(threads=usable_cores(), memory=usable_memory(), root=os.geteuid() == 0),
    )
