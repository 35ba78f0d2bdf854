"""What every command shares: common options, the session that it gets, and the decorator that makes it one.

The only module, beside Typer, that reads the environment of the process.
"""

import inspect
import itertools
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer

from envbuilder.core import console
from envbuilder.core.answer import Reply
from envbuilder.core.cache import Store, cache_folder
from envbuilder.core.spelling import nearest_name
from envbuilder.core.text.redact import know_secrets

RECIPES: Final = Path("recipes")
# zsh evaluates what it completes, so no other name is offered.
_RECIPE_FILE: Final = re.compile(r"([a-z0-9][a-z0-9._-]*)\.yaml")
# The settings of envbuilder and those inside of its environments, without the prefix.
SETTING: Final = "ENVBUILDER_"
SETTINGS: Final = frozenset({
    "APT_MIRRORS", "CACHE", "CACHE_LIMIT", "CONDA_MIRRORS", "CUDA_REDIST", "DEBIAN_KEYRING", "DEBIAN_MIRROR",
    "DEBIAN_SECURITY", "DEBIAN_SNAPSHOT", "DEBUG", "EXTENSIONS", "EXTENSION_STORE", "FOLDERS", "INDEX",
    "JOB", "KEEP_COMPILED", "KEY", "KEY_PASSPHRASE", "LAYER_STORE", "NCCL", "PYTORCH_INDEX", "RECIPES", "REGISTRY",
    "REGISTRY_HTTP", "REGISTRY_MIRRORS", "SHELL", "SITE", "START", "STORE_KEY", "UBUNTU_FILES",
    "UBUNTU_KEYRING", "UBUNTU_MIRROR", "UBUNTU_SNAPSHOT", "VERSIONS", "WHOLE_LINES",
})  # fmt: skip


class Interrupts:
    """What Ctrl-C ends before this process ends."""

    def __init__(self) -> None:
        self._ends: list[Callable[[], None]] = []
        self.note = ""  # what an interrupted command says of its work

    def __bool__(self) -> bool:
        return bool(self._ends)

    def add(self, end: Callable[[], None], note: str = "") -> None:
        self._ends.append(end)
        self.note = self.note or note

    def end(self) -> None:
        """End everything, the latest first."""
        for end in reversed(self._ends):
            end()


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One call of the command line, as a command gets it."""

    environment: Mapping[str, str]
    typed: tuple[str, ...] = ()  # the words after `envbuilder`
    program: tuple[str, ...] = ()  # the words after `--`, of a command that runs a program
    as_json: bool = False
    color: bool = True
    width: int = 0  # of the terminal that the answer goes to; 0 for a file or a program
    interrupts: Interrupts = field(default_factory=Interrupts)


def open_session(words: Sequence[str]) -> Session:
    """Return the session of a command line whose options are not parsed yet."""
    environment = dict(os.environ)
    know_secrets(environment)
    return Session(
        environment=environment,
        typed=tuple(words),
        as_json="--json" in itertools.takewhile(lambda word: word != "--", words),
        width=shutil.get_terminal_size().columns if sys.stdout.isatty() else 0,
    )


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
    files = (_RECIPE_FILE.fullmatch(name) for name in names)
    return [file[1] for file in files if file and file[1].startswith(incomplete)]


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
Recipes = Annotated[Path, typer.Option("--recipes", help="the folder of recipes", envvar="ENVBUILDER_RECIPES")]  # fmt: skip
_SITE: Final = "a file, or its name in `sites/`"
Profile = Annotated[str, typer.Option("--profile", metavar="SITE", help=_SITE, envvar="ENVBUILDER_SITE")]
_HOST: Final = "facts of the target machine, written there by `detect --save`"
Host = Annotated[Path | None, typer.Option("--host", metavar="FILE", help=_HOST)]
Output = Annotated[Path, typer.Option("--output", metavar="FOLDER", help="the folder to write the artifacts to")]  # fmt: skip
Artifacts = Annotated[Path, typer.Option("--artifacts", metavar="FOLDER", help="the folder of the artifacts")]
_LOAD: Final = "load the image into the Docker engine, if one is running"
Load = Annotated[bool, typer.Option("--load/--no-load", help=_LOAD)]
Force = Annotated[bool, typer.Option("--force", help="replace a file with other content")]
OUTPUT: Final = Path("build")
# A command that takes one of these gets its default as well.
_DEFAULTS: Final[dict[object, object]] = {
    Recipes: RECIPES, Profile: "", Output: OUTPUT, Artifacts: OUTPUT, Host: None, Force: False, Load: True,
}  # fmt: skip
# The options that all commands share, in the order of `--help`.
_SHARED: Final[Mapping[str, inspect.Parameter]] = {
    name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option)
    for name, option, default in (
        ("as_json", Json, False), ("verbose", Verbose, 0), ("no_color", NoColor, False),
    )
}  # fmt: skip


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
    *examples: str,
    app: typer.Typer | None = None,
    has_json: bool = True,
    **settings: Any,
) -> Callable[[Callable[..., Reply[Any]]], typer.Typer]:
    r"""Return a decorator that makes a function the command `label`, in `app` or in a Typer app of its own.

    The function's first parameter is the session, and it returns its reply: the type of its data under `--json` stands
    in its annotation. The command has the function's options and those of `_SHARED`. Without `has_json` its output is a
    program's. `settings` are Typer's. Typer keeps the lines after `\b` as they are.
    """

    def add(function: Callable[..., Reply[Any]]) -> typer.Typer:
        shared = {name: option for name, option in _SHARED.items() if has_json or name != "as_json"}

        def run(context: typer.Context, **given: Any) -> Reply[Any]:
            common = {name: given.pop(name) for name in shared}
            session: Session = context.obj
            console.setup(common["verbose"])
            _warn_of_unknown_settings(session.environment)
            color = not common["no_color"] and not session.environment.get("NO_COLOR")
            return function(replace(session, color=color, program=tuple(context.args)), **given)

        signature = inspect.signature(function)
        options = [
            option.replace(default=_DEFAULTS.get(option.annotation, option.default))
            for option in list(signature.parameters.values())[1:]
        ]
        parameters = [inspect.signature(run).parameters["context"], *options, *shared.values()]
        run.examples = examples  # type: ignore[attr-defined] # for the reference, as `answer`
        (answer,) = get_args(signature.return_annotation)
        run.answer = None if answer is type(None) else answer  # type: ignore[attr-defined]
        run.__doc__ = function.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        epilog = "\n".join(["\b", "Examples:", *(f"  $ {line}" for line in examples)])
        into = app or new_app()
        into.command(label.rpartition(" ")[2], epilog=epilog, **settings)(run)
        return into

    return add


def open_store(session: Session, *, writes: bool = True) -> Store:
    """Return the cache, which a command that only reads does not create."""
    return Store(cache_folder(session.environment), create=writes)
