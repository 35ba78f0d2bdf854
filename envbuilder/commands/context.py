"""What every command shares: common options, and the session with its answer.

The only module, beside Typer, that reads the environment of the process.
"""

import inspect
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import BaseModel

from envbuilder.core import log
from envbuilder.core.cache import Store, cache_folder
from envbuilder.core.findings import Finding
from envbuilder.core.spelling import nearest_name
from envbuilder.core.text.redact import know_secrets

RECIPES: Final = Path("recipes")
# zsh evaluates what it completes, so no other name is offered.
_RECIPE_FILE: Final = re.compile(r"([a-z0-9][a-z0-9._-]*)\.yaml")
# The settings of envbuilder and those inside of its environments, without the prefix.
SETTING: Final = "ENVBUILDER_"
SETTINGS: Final = frozenset(
    {
        "APT_MIRRORS", "CACHE", "CACHE_LIMIT", "CUDA_REDIST", "DEBIAN_KEYRING", "DEBIAN_MIRROR", "DEBIAN_SECURITY", "DEBIAN_SNAPSHOT",
        "DEBUG", "EXTENSIONS", "EXTENSION_STORE", "FOLDERS", "INDEX", "JOB", "KEY", "KEY_PASSPHRASE", "LAYER_STORE",
        "NCCL", "PYTORCH_INDEX", "RECIPES", "REGISTRY", "REGISTRY_HTTP", "REGISTRY_MIRRORS", "SHELL", "SITE", "START",
        "STORE_KEY", "UBUNTU_FILES", "UBUNTU_KEYRING", "UBUNTU_MIRROR", "UBUNTU_SNAPSHOT", "VERSIONS", "WHOLE_LINES",
    }
)  # fmt: skip


@dataclass(slots=True)
class Session:
    """One call of the command line: how to answer, and the answer."""

    command: str = ""
    typed: tuple[str, ...] = ()  # the words after `envbuilder`
    as_json: bool = False
    color: bool = True
    data: BaseModel | None = None
    text: str = ""
    is_document: bool = False  # `text` is a file, such as a Dockerfile, for another program to read
    findings: tuple[Finding, ...] = ()
    exit_code: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    stop: Callable[[], None] = lambda: None  # ends what runs, when the patience is over
    kept: str = ""  # what an interrupted command says of its work
    patience: float = 0.0  # seconds from an interrupt to the end; 0 for no limit
    width: int = 0  # of the terminal that the answer goes to; 0 for a file or a program

    def begin(self, command: str, typed: Sequence[str] = (), *, as_json: bool) -> None:
        """Forget an earlier call of this process."""
        fresh = Session(command=command, typed=tuple(typed), as_json=as_json)
        for one in fields(self):
            setattr(self, one.name, getattr(fresh, one.name))


SESSION: Final = Session()


def new_app(help_text: str = "") -> typer.Typer:
    """Return an empty Typer app; with help, a group of sub-commands."""
    return typer.Typer(
        help=help_text or None, no_args_is_help=bool(help_text), add_completion=False, rich_markup_mode=None
    )


def offer(*values: str) -> Callable[[str], list[str]]:
    """Return an `autocompletion` that offers fixed values."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


def complete_recipe(context: typer.Context, incomplete: str) -> list[str]:
    """Offer the recipes of the folder that `--recipes` or the environment names."""
    folder = context.params.get("recipes") or os.environ.get("ENVBUILDER_RECIPES") or RECIPES
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - one call, and the names are all that is needed
    except OSError:
        return []
    found = (_RECIPE_FILE.fullmatch(name) for name in names)
    return [match[1] for match in found if match and match[1].startswith(incomplete)]


def recipe_argument(what: str, metavar: str = "NAME") -> Any:
    """Return an argument that is completed with the names of recipes."""
    return typer.Argument(help=what, metavar=metavar, autocompletion=complete_recipe)


Name = Annotated[str, recipe_argument("a recipe in `recipes/`, or a path to a recipe file")]
BuiltName = Annotated[str, recipe_argument("a recipe that was built, or a path to a SIF")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON envelope on stdout")]
Verbose = Annotated[
    int, typer.Option("-v", "--verbose", count=True, help="show each command; twice: its output as well")
]
NoColor = Annotated[bool, typer.Option("--no-color", help="no color; NO_COLOR does the same")]
Recipes = Annotated[
    Path, typer.Option("--recipes", help="the folder of recipes", envvar="ENVBUILDER_RECIPES")
]
Profile = Annotated[
    str,
    typer.Option(
        "--profile", metavar="SITE", help="a file, or its name in `sites/`", envvar="ENVBUILDER_SITE"
    ),
]
Output = Annotated[Path, typer.Option("--output", help="the folder of artifacts")]
Load = Annotated[
    bool, typer.Option("--load/--no-load", help="load the image into the Docker engine, if one is running")
]
OUTPUT: Final = Path("build")
# A command that takes one of these gets its default as well.
_DEFAULTS: Final[dict[object, object]] = {Recipes: RECIPES, Profile: "", Output: OUTPUT}


def open_session(
    label: str, *, as_json: Json = False, verbose: Verbose = 0, no_color: NoColor = False
) -> Session:
    """Set the session up for one command. The options are those that all commands share."""
    SESSION.command, SESSION.as_json = label, as_json
    SESSION.environment = dict(os.environ)
    know_secrets(SESSION.environment)
    SESSION.color = not no_color and not SESSION.environment.get("NO_COLOR")
    SESSION.width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    log.setup(verbose)
    _warn_of_unknown_settings(SESSION.environment)
    return SESSION


def _warn_of_unknown_settings(environment: Mapping[str, str]) -> None:
    given = {name.removeprefix(SETTING) for name in environment if name.startswith(SETTING)}
    for name in sorted(given - SETTINGS):
        near = nearest_name(name, SETTINGS)
        logging.getLogger(__name__).warning(
            "warning: there is no setting `%s%s`, and it has no effect%s", SETTING, name,
            f": did you mean `{SETTING}{near}`?" if near else "",
        )  # fmt: skip


def command(
    label: str,
    examples: Sequence[str],
    answer: object = None,
    *,
    app: typer.Typer | None = None,
    has_json: bool = True,
    **settings: Any,
) -> Callable[[Callable[..., None]], typer.Typer]:
    r"""Return a decorator that makes a function the command `label`, in `app` or in a Typer app of its own.

    The function's first parameter is the session. The command has its options and those of `open_session`.
    `answer` is the type of its data under `--json`. Without `has_json` its output is a program's.
    `settings` are Typer's. Typer keeps the lines after `\b` as they are.
    """

    def add(function: Callable[..., None]) -> typer.Typer:
        shared = dict(list(inspect.signature(open_session).parameters.items())[1:])
        if not has_json:
            del shared["as_json"]

        def run(**given: Any) -> None:
            session = open_session(label, **{name: given.pop(name) for name in shared})
            function(session, **given)

        own = list(inspect.signature(function).parameters.values())[1:]
        own = [one.replace(default=_DEFAULTS.get(one.annotation, one.default)) for one in own]
        parameters = [*own, *shared.values()]
        run.examples, run.answer = tuple(examples), answer  # type: ignore[attr-defined] # for the reference
        run.__doc__ = function.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        epilog = "\n".join(["\b", "Examples:", *(f"  $ {line}" for line in examples)])
        into = app or new_app()
        into.command(label.rpartition(" ")[2], epilog=epilog, **settings)(run)
        return into

    return add


def open_store(session: Session, *, writes: bool = True) -> Store:
    """Return the cache, which a command that only reads does not create."""
    return Store(cache_folder(session.environment), create=writes)
