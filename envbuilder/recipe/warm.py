"""The key `warm`: what is compiled before a job starts, by programs that a build runs, or by an earlier job that kept it in a folder."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import Discriminator, Field, Tag

from envbuilder.core.models import FieldRule, Line, Mistake, RawRule
from envbuilder.core.plain import pasted
from envbuilder.recipe.fields import RecipeCode, check_command, check_path

_Command = Annotated[Line, FieldRule(check_command)]
_Commands = Annotated[
    Annotated[_Command, Tag("a text")]
    | Annotated[tuple[_Command, ...], Field(json_schema_extra={"minItems": 1}), Tag("a list")],
    Discriminator(lambda value: "a list" if isinstance(value, list | tuple) else "a text"),
]
# The folders in one that a job filled, as `runtime/lib/envbuilder_caches` has them.
KINDS: Final = ("inductor", "numba", "triton")


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """The key as a map. The text below each key is its description in the schema."""

    run: _Commands = ()
    """A command, or a list of them."""
    files: tuple[Line, ...] = ()
    """Files and folders that they read, beside the files that they name; paths from the recipe's own folder, and below it."""
    caches: tuple[Line, ...] = ()
    """Folders that a job filled with what it compiled, under `ENVBUILDER_KEEP_COMPILED=FOLDER`; paths from the recipe's own folder, and below it."""

    @property
    def commands(self) -> tuple[str, ...]:
        return (self.run,) if isinstance(self.run, str) else self.run

    def named(self, folder: Path) -> tuple[str, ...]:
        """Return the files and folders of the recipe's folder that are there for the commands."""
        words = (word for command in self.commands for word in shlex.split(command))
        return tuple(dict.fromkeys((*(word for word in words if _is_file(word, folder)), *self.files)))


NO_WARM: Final = Warm()


def kept_files(place: Path) -> Iterator[Path]:
    """Yield the files that libraries compiled into a folder, without their locks and what they had not written to its end."""
    for path in (path for kind in KINDS for path in (place / kind).rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(place).parts)
        if not is_hidden and path.suffix != ".lock" and ".tmp." not in path.name and path.is_file():
            yield path


def _check_caches(caches: object, folder: Path) -> Iterator[Mistake]:
    for at, path in enumerate(caches if isinstance(caches, list) else ()):
        if not isinstance(path, str):  # which the type reports
            continue
        mistakes = tuple(check_path(path, folder, is_folder=True))
        if not mistakes and not any(kept_files(folder / path)):
            kinds = ", ".join(f"`{path}/{kind}`" for kind in KINDS)
            hint = f"run a job inside with ENVBUILDER_KEEP_COMPILED={pasted(folder / path)}"
            message = f"nothing that a job compiled is in {kinds}"
            mistakes = (Mistake(message=message, code=RecipeCode.PATH, hint=hint),)
        yield from (replace(mistake, at=("caches", at)) for mistake in mistakes)


def _check_warm(given: object, folder: Path) -> Iterator[Mistake]:
    """Report files that are not there, in `files`, `caches` and the commands, and a list without a command."""
    files, run = (given.get("files"), given.get("run")) if isinstance(given, dict) else ((), given)
    commands = run if isinstance(run, list) else [run]
    for at, path in enumerate(files if isinstance(files, list) else ()):
        if isinstance(path, str):
            for mistake in check_path(path, folder, is_folder=(folder / path).is_dir()):
                yield replace(mistake, at=("files", at))
    caches = given.get("caches") if isinstance(given, dict) else None
    yield from _check_caches(caches, folder)
    if run == [] or (run is None and not caches):
        hint = "`warm: python warm.py`"
        yield Mistake(message="expected one command or more", hint=hint)
    for command in filter(lambda command: isinstance(command, str), commands):
        try:
            words = shlex.split(command)
        except ValueError:  # which the type reports
            continue
        for word in (word for word in words if word.endswith(".py") and not _is_file(word, folder)):
            yield from check_path(word, folder)


def _is_file(word: str, folder: Path) -> bool:
    return next(check_path(word, folder), None) is None if word else False


WarmKey = Annotated[
    Annotated[_Commands, Tag("commands")]
    | Annotated[
        Warm,
        Field(json_schema_extra={"anyOf": [{"required": ["run"]}, {"required": ["caches"]}]}),
        Tag("a map"),
    ],
    Discriminator(lambda value: "a map" if isinstance(value, dict | Warm) else "commands"),
    RawRule(_check_warm),
]
